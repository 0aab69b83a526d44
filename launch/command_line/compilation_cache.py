"""The cache of compiled programs, and of fonts, that all commands share: its folder, its size."""

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
  # Its list of fonts; it would be in another folder of the home, with an empty one of settings.
  os.environ.setdefault("MPLCONFIGDIR", os.path.join(_cache_home(), "gpt_jax", "matplotlib"))
  if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    return
  root = os.path.join(_cache_home(), "gpt_jax", "compiled")
  folder = os.path.join(root, _processor())
  try:
    _check(folder)
    _trim(root)
  except OSError as error:
    fault = f"no cache of compiled programs in {folder}: {error.strerror}; each start compiles anew"
    warnings.warn(f"{fault}. XDG_CACHE_HOME names another folder", stacklevel=2)
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

  As a rule nothing is made yet, so that a command that fails early leaves nothing behind.
  """
  if not os.path.isabs(folder):
    raise FileNotFoundError(0, "this user has no home")
  below = folder
  while not os.path.lexists(folder):
    below, folder = folder, os.path.dirname(folder)
  if not os.access(folder, os.R_OK | os.W_OK | os.X_OK) or not os.path.isdir(folder):
    raise PermissionError(0, f"{folder} is not a folder that can be written")
  if os.name != "posix":
    return
  # Programs are run as they are read. Who can write to a folder above can exchange this one.
  for path in dict.fromkeys((*_with_parents(folder), *_with_parents(os.path.realpath(folder)))):
    info = os.stat(path)
    # A sticky folder, such as /tmp, keeps others' names apart, once there is one of ours.
    is_sticky = info.st_mode & stat.S_ISVTX and path != below
    if info.st_uid not in (os.getuid(), 0) or (_others_can_write(info) and not is_sticky):
      raise PermissionError(0, f"other users can write to {path}")
  if below != folder and _others_can_write(os.stat(folder)):
    os.mkdir(below, 0o700)


def _with_parents(path: str) -> Iterator[str]:
  yield path
  while path != os.path.dirname(path):
    path = os.path.dirname(path)
    yield path


def _others_can_write(info: os.stat_result) -> bool:
  """Whether others than the user and root can write to a folder of this mode and group."""
  if not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
    return False
  import grp
  import pwd

  try:
    user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(info.st_gid)
  except KeyError:  # without a name
    return True
  # A group of the user's own, as many systems make. Containers put any user into the one of root.
  is_private = group.gr_gid and group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}
  return bool(info.st_mode & stat.S_IWOTH) or not is_private


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
