"""The cache of compiled programs that all commands share: its folder, and its size."""

import contextlib
import os
import platform
import stat
import warnings
import zlib
from collections.abc import Iterator

_LIMIT = 1 << 30  # bytes; a program of GPT-1's size takes about 1 MB


def set_up() -> None:
  """Names the folder in the environment, where JAX finds it, and removes old programs from it.

  A folder that JAX_COMPILATION_CACHE_DIR names already is left alone. Where the folder cannot be
  used there is a warning, and no cache.
  """
  # Smaller programs are compiled faster than they are read.
  os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
  if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    return
  root = os.path.join(_cache_home(), "gpt_jax", "compiled")
  folder = os.path.join(root, _processor())
  try:
    _check(folder)
    _trim(root)
  except OSError as error:
    warnings.warn(
      f"no cache of compiled programs in {folder}: {error.strerror}; each start compiles anew. "
      "XDG_CACHE_HOME names another folder",
      stacklevel=2,
    )
  else:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder


def _cache_home() -> str:
  """The user's folder of caches; the specification of XDG ignores relative paths."""
  home = os.environ.get("XDG_CACHE_HOME", "")
  return home if os.path.isabs(home) else os.path.expanduser("~/.cache")


def _processor() -> str:
  """Names the instructions of this CPU: on another one, with the same home, programs may crash."""
  features = ""
  with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
    lines = (line for line in file if line.startswith(("flags", "Features")))
    features = next(lines, "")  # of the first core
  return f"{platform.machine()}-{zlib.crc32(features.encode()):08x}"


def _check(folder: str) -> None:
  """Raises OSError unless JAX can make or use the folder, and nobody else can write to it.

  Nothing is made yet, so that a command that fails early leaves nothing behind.
  """
  if not os.path.isabs(folder):
    raise FileNotFoundError(0, "this user has no home")
  while not os.path.lexists(folder):
    folder = os.path.dirname(folder)
  if not os.access(folder, os.R_OK | os.W_OK | os.X_OK) or not os.path.isdir(folder):
    raise PermissionError(0, f"{folder} is not a folder that can be written")
  # Programs are run as they are read. A sticky folder, such as /tmp, keeps others' names apart.
  info = os.stat(folder)
  own = os.name != "posix" or info.st_uid in (os.getuid(), 0)
  if not own or info.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
    raise PermissionError(0, f"other users can write to {folder}")


def _trim(root: str) -> None:
  """Removes the programs used least recently until the others take no more than the limit.

  JAX can do so (jax_compilation_cache_max_size), but locks the folder at each read, needs another
  package, and stops caching once a process was killed between its two files of a program.
  """
  programs = sorted(_programs(root))
  total = sum(size for _, size, _ in programs)
  for _, size, path in programs:
    if total <= _LIMIT:
      return
    with contextlib.suppress(FileNotFoundError):  # another process removes the same ones
      os.remove(path)
    total -= size


def _programs(root: str) -> Iterator[tuple[float, int, str]]:
  """(time of the last use, size, path) of each program."""
  for folder, _, names in os.walk(root):
    for name in names:
      path = os.path.join(folder, name)
      with contextlib.suppress(FileNotFoundError):
        info = os.stat(path)
        yield max(info.st_atime, info.st_mtime), info.st_size, path
