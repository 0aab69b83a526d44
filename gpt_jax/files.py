"""Reading files that may be damaged, and atomic writes: a file or folder appears complete.

Paths are local or begin with gs:// or s3://. On a store an object appears complete by itself; a
folder is marked by the object _UPLOADING until all of it is there.
"""

import collections
import contextlib
import errno
import fcntl
import functools
import glob
import importlib.util
import io
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, TextIO

from gpt_jax.errors import InputError, how_to_install

_STORES = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}  # scheme: package, extra
_SIGN_INS = {
  "gs": "gcloud auth application-default login",
  "s3": "aws sso login, or new AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
}
_UPLOADING = "_UPLOADING"
MAX_JSON = 32 << 20  # bytes; the header of a token file of 250 GB has this size
PATIENCE = 5.0  # seconds without a word

# Shows a line to the person who waits. A command line sets it; a library says nothing.
announce: Callable[[str], object] | None = None
_waiting = threading.Lock()  # held while the main thread waits for something


class StoreError(OSError):
  """A store did not do what it was asked, also when asked again: its packages retry for a while.

  Its errno is EACCES if it refuses the user, and then its strerror says what to do; else EIO.
  """


@contextlib.contextmanager
def announced(wait: str) -> Iterator[None]:
  """Announces what is waited for, such as "loading the model", once it takes longer than PATIENCE.

  Nothing is said of a wait within another one, or in another thread than the main one.
  """
  is_main = threading.current_thread() is threading.main_thread()
  if announce is None or _waiting.locked() or not is_main:
    yield
    return
  timer = threading.Timer(PATIENCE, announce, [wait])
  timer.daemon = True
  timer.start()
  try:
    with _waiting:
      yield
  finally:
    timer.cancel()


@contextlib.contextmanager
def atomic_file(path: str, mode: str = "w", *, overwrite: bool = True) -> Iterator[IO]:
  """Opens a temporary file beside path, PATH.partial-PID, and renames it to path at the end.

  On an error it is removed, and an existing file stays. Text is UTF-8 with line ends as given.

  Args:
    mode: "w" for text, "wb" for bytes.
    overwrite: whether to replace an existing file; else FileExistsError, at the end.

  Raises OSError if opening, writing or renaming failed.
  """
  encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
  if is_url(path):
    with tempfile.TemporaryDirectory() as folder:
      local = os.path.join(folder, "object")
      with open(local, mode, encoding=encoding, newline=newline) as file:
        yield file
      _upload(local, path, overwrite)
    return
  # Beside the path: only within a file system a rename is atomic.
  partial = _partial(path)
  for name in abandoned(path):
    with contextlib.suppress(OSError):
      os.remove(name)
  rename = os.replace if overwrite else _rename_to_new
  try:
    with contextlib.suppress(FileNotFoundError):
      os.remove(partial)  # of a process that was killed, or a link that must not be followed
    # "x" refuses to follow a link that was put there since.
    with open(partial, mode.replace("w", "x"), encoding=encoding, newline=newline) as file:
      yield file
    rename(partial, path)
  finally:
    with contextlib.suppress(OSError):
      os.remove(partial)


@contextlib.contextmanager
def atomic_folder(folder: str, compare: Callable[[str, str], None] | None = None) -> Iterator[str]:
  """Makes a temporary folder beside folder, FOLDER.partial-PID, and renames it at the end.

  On an error the temporary folder is removed.

  compare: compare(new folder, existing folder) decides about a folder that exists: it raises
    InputError, or returns to keep the existing folder. None refuses every existing folder.
  """
  if is_url(folder):
    with _object_folder(folder, compare) as partial:
      yield partial
    return
  folder = os.path.abspath(folder)
  partial = _partial(folder)
  for name in abandoned(folder):
    shutil.rmtree(name, ignore_errors=True)
  if os.path.lexists(folder) and not compare:
    raise InputError(f"{folder} is there already; choose another place")
  try:
    make_folders(partial)
    yield partial
    if compare and os.path.lexists(folder):
      compare(partial, folder)
    else:
      # Fails if another process has made a folder there meanwhile, unless it is empty.
      os.rename(partial, folder)
  except OSError as error:
    raise InputError(f"cannot write {folder}: {error}") from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def write_json(path: str, value: Any, *, overwrite: bool = True) -> None:
  """Writes a JSON file atomically. Raises what `atomic_file` does."""
  with atomic_file(path, overwrite=overwrite) as file:
    json.dump(value, file, indent=2)
    file.write("\n")


def read_json(path: str, limit: int = MAX_JSON) -> Any:
  """The value in a JSON file. Raises what read_bytes and parse_json do."""
  return parse_json(read_bytes(path, limit))


def read_bytes(path: str, limit: int) -> bytes:
  """The content of a file. Raises OSError, and ValueError where it has more than `limit` bytes or
  is no regular file.
  """
  length = size(path)
  if length > limit:
    raise ValueError(f"{length:,} bytes, more than {limit:,}")
  if is_url(path):
    with _store_errors(path):
      return _store(path).cat_file(path)  # in one request: the object may be replaced meanwhile
  with open_regular(path) as file:
    return file.read()


def open_regular(path: str) -> io.BufferedReader:
  """Opens a file to read, at any position. Raises OSError, and ValueError for a pipe, a device, a
  folder, or a file such as those of /proc that has no length, and perhaps no end.
  """
  if is_url(path):
    return io.BufferedReader(_StoreReader(path))
  # Opening a pipe would wait for a writer.
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  try:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
      raise ValueError("not a regular file")
    # A page, as some of /proc give no less. The length is asked for after it: a log may just grow.
    if os.pread(descriptor, 4096, 0) and not os.fstat(descriptor).st_size:
      raise ValueError("not a regular file: it has contents and no length")
  except BaseException:
    os.close(descriptor)
    raise
  return open(descriptor, "rb")


def open_to_append(path: str) -> IO[str] | None:
  """Opens a text file whose end is written on; None on a store, whose objects have no such end."""
  return None if is_url(path) else open(path, "a", encoding="utf-8")


def check_regular(folder: str) -> None:
  """Raises ValueError if there is a pipe or device in a folder: reading it would wait for ever."""
  for root, _, names in os.walk(folder):  # nothing is in a URL
    for name in names:
      path = os.path.join(root, name)
      if not os.path.isfile(path) and not os.path.isdir(path):
        raise ValueError(f"{os.path.relpath(path, folder)} is not a regular file")


def parse_json(text: str | bytes) -> Any:
  """The value of a JSON text. Raises ValueError if it is none, has an object with two entries of
  one name, or is nested too deeply to read.
  """
  try:
    return json.loads(text, object_pairs_hook=_without_duplicates)
  except RecursionError as error:
    raise ValueError("nested too deeply") from error


def with_checksum(entries: dict[str, Any]) -> dict[str, Any]:
  """JSON entries and "checksum", the CRC-32 of the others."""
  return entries | {"checksum": _checksum(entries)}


def verified(value: Any) -> dict[str, Any]:
  """The entries that with_checksum was given. Raises ValueError if the checksum does not match."""
  if not isinstance(value, dict) or "checksum" not in value:
    raise ValueError("no JSON object with a checksum")
  entries = {name: entry for name, entry in value.items() if name != "checksum"}
  if value["checksum"] != _checksum(entries):
    raise ValueError("the checksum does not match")
  return entries


def _checksum(entries: dict[str, Any]) -> int:
  # In a fixed order: that of the entries may change where they are written again.
  return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  value = dict(pairs)
  if len(value) < len(pairs):
    [(twice, _)] = collections.Counter(name for name, _ in pairs).most_common(1)
    raise ValueError(f"two entries named {twice!r}")
  return value


def is_url(path: str | os.PathLike) -> bool:
  """Whether a path begins with gs://, s3:// or the like, supported or not."""
  scheme, separator, _ = os.fspath(path).partition("://")
  return bool(separator) and scheme.isalnum()


def check_path(path: str | os.PathLike) -> None:
  """Raises InputError for a URL of a store that is not supported, or whose package is missing."""
  if not is_url(path):
    return
  scheme = os.fspath(path).partition("://")[0]
  if scheme not in _STORES:
    known = " and ".join(f"{name}://" for name in _STORES)
    raise InputError(f"{path}: {scheme}:// is not supported; {known} and local paths are")
  package, extra = _STORES[scheme]
  if importlib.util.find_spec(package) is None:
    raise InputError(f"{path}: needs the package {package}: {how_to_install(extra)}")


def refuse_url(path: str, message: str = "") -> None:
  """Raises InputError for gs://, s3:// and the like, before a folder of that name is made."""
  if is_url(path):
    scheme = os.fspath(path).partition("://")[0]
    advice = "copy it to a disk of this machine and name that"
    raise InputError(message or f"{path}: {scheme}:// is not supported here; {advice}")


def absolute(path: str) -> str:
  """os.path.abspath, but for URLs, which are without a slash at the end."""
  return path.rstrip("/") if is_url(path) else os.path.abspath(path)


def _call(path: str, local: Callable[[str], Any], remote: str, **options: Any) -> Any:
  """local(path), or the method `remote` of a URL's store."""
  if not is_url(path):
    return local(path)
  with _store_errors(path):
    return getattr(_store(path), remote)(path, **options)


def exists(path: str) -> bool:
  """Whether there is a file or folder; on a store a folder is what has objects below it."""
  return _call(path, os.path.exists, "exists")


def is_folder(path: str) -> bool:
  return _call(path, os.path.isdir, "isdir")


def list_folder(folder: str) -> list[str]:
  """The names of what is in a folder, in no order. Raises OSError if there is no such folder."""
  if not is_url(folder):
    return os.listdir(folder)
  with _store_errors(folder):
    paths = _store(folder).ls(folder, detail=False)
  inside = {os.path.basename(path.rstrip("/")) for path in paths}
  return sorted(inside - {"", os.path.basename(folder.rstrip("/"))})


def is_file(path: str) -> bool:
  """Whether a path names a file, and no pipe or device; of a store, where there are none, True."""
  return is_url(path) or os.path.isfile(path)


def real_path(path: str) -> str:
  """The same for all spellings of a path, and for links to it."""
  return path.rstrip("/") if is_url(path) else os.path.realpath(path)


def list_existing(folder: str) -> list[str]:
  """The names of what is in a folder; none if there is no such folder.

  A store may say that a folder is there, and not find it when it is listed.
  """
  try:
    return list_folder(folder)
  except (FileNotFoundError, NotADirectoryError):
    return []
  except PermissionError as error:
    raise InputError(
      f"{folder}: cannot be listed ({error.strerror}); chmod u+rx allows it"
    ) from error


def make_folders(path: str) -> None:
  """Makes a folder and those above it; on a store they need not be made. Raises OSError."""
  if is_url(path):
    return
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    os.lstat(path)  # a name that is too long is refused before those above it are made
  try:
    os.makedirs(path, exist_ok=True)
  except RecursionError as error:  # a call for each of a thousand parts
    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path) from error


def lock_folder(folder: str, taken: str, exclusive: bool = True) -> TextIO:
  """Makes a folder, and opens and locks `<folder>/lock`, until it is closed or the process ends.

  Args:
    taken: the fault if another process has locked it.
    exclusive: False opens the file alone.
  """

  def without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)

  try:
    make_folders(folder)
    # Appending, and no link followed: whatever file a link names stays as it is.
    file = open(os.path.join(folder, "lock"), "a", encoding="utf-8", opener=without_links)
  except OSError as error:
    raise InputError(f"{folder}: cannot be written ({error.strerror})") from error
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_UN)
    is_free = os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
  except (BlockingIOError, FileNotFoundError):
    is_free = False  # locked, or removed by its owner at its end
  except OSError:
    is_free = True  # a file system without locks
  if not is_free:
    file.close()
    raise InputError(f"{folder}: {taken}")
  return file


def remove(path: str) -> None:
  """Removes a file. Raises OSError."""
  _call(path, os.remove, "rm_file")


def remove_folder(path: str) -> None:
  """Removes a folder with all in it. Raises OSError."""
  _call(path, shutil.rmtree, "rm", recursive=True)


def rename_folder(old: str, new: str) -> None:
  """Renames a folder. On a store its objects come here and go back: seldom needed, and so small."""
  if not is_url(old):
    os.rename(old, new)
    return
  with tempfile.TemporaryDirectory() as parent:
    local = os.path.join(parent, "folder")
    with _store_errors(old):
      _store(old).get(old, local, recursive=True)
    upload_folder(local, new)
  remove_folder(old)


def size(path: str) -> int:
  """File size in bytes. Raises OSError."""
  return _call(path, os.path.getsize, "size")


def modified_ns(path: str) -> int:
  """When a file was modified last, in ns; 0 on a store. Raises OSError."""
  return 0 if is_url(path) else os.stat(path).st_mtime_ns


def read_range(path: str, start: int, stop: int) -> bytes:
  """The bytes of a file from start to stop. Raises OSError."""
  if not is_url(path):
    with open(path, "rb") as file:
      file.seek(start)
      return file.read(stop - start)
  with _store_errors(path):
    return _store(path).cat_file(path, start=start, end=stop)


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
  """A copy of a file or folder of a store on this machine's disk; a local path is itself.

  An InputError that names the copy is raised with the name of the original. Raises OSError.
  """
  if not is_url(path):
    yield path
    return
  with tempfile.TemporaryDirectory() as parent:
    copy = os.path.join(parent, os.path.basename(path.rstrip("/")))
    with _store_errors(path):
      _store(path).get(path, copy, recursive=is_folder(path))
    try:
      yield copy
    except InputError as error:
      raise type(error)(str(error).replace(copy, path.rstrip("/"))) from error


def disk_folder(folder: str, purpose: str) -> str:
  """The folder itself or, for a URL, a new name on this machine's disk, where the caller creates,
  uploads (upload_folder) and removes a folder.
  """
  if not is_url(folder):
    return folder
  return os.path.join(tempfile.gettempdir(), f"gpt_jax-{purpose}-{uuid.uuid4().hex}")


def is_uploading(folder: str) -> bool:
  """Whether a folder of a store is not complete, since its upload goes on or was cut off."""
  return is_url(folder) and exists(os.path.join(folder, _UPLOADING))


def _is_path(name: str) -> bool:
  return os.path.exists(name) or any(glob.iglob(name))


def split_names(names: str, is_name: Callable[[str], bool] = _is_path) -> list[str]:
  """Names that are separated by commas; what `is_name`, be it with commas or spaces around it, is
  one name. By default a path that exists, or a glob that matches, is.
  """
  parts, found = names.split(","), []
  while parts:
    longer = [",".join(parts[:count]) for count in range(min(len(parts), 20), 0, -1)]
    candidates = (name for part in longer for name in (part.strip(), part))
    found.append(next(filter(is_name, candidates), parts[0].strip()))
    parts = parts[found[-1].count(",") + 1 :]
  return found


def find_files(pattern: str, needed: tuple[str, ...] = ()) -> dict[str, int]:
  """Path -> size in bytes, sorted, of the regular files that match a glob, or are below a folder.

  Raises OSError, also for a broken link below the folder whose name has one of the `needed` ends.
  """
  if not is_url(pattern):
    if os.path.isdir(pattern):
      pattern = os.path.join(glob.escape(pattern), "**")
    elif os.path.exists(pattern):  # whatever its name has of a glob
      pattern = glob.escape(pattern)
    found = glob.glob(pattern, recursive=True)
    paths = [path for path in found if os.path.isfile(path)]
    if pattern.endswith("**"):
      paths = _once_each(paths, [path for path in found if not os.path.isfile(path)], needed)
    return {path: os.path.getsize(path) for path in sorted(paths)}
  store, scheme = _store(pattern), pattern.partition("://")[0]
  with _store_errors(pattern):
    find = store.glob if glob.has_magic(pattern) else store.find
    # With details: the sizes come with the listing, without a request for each.
    entries = find(pattern, detail=True).values()
  # Consoles make an empty object "folder/" to show an empty folder.
  files = [e for e in entries if e["type"] == "file" and not e["name"].endswith("/")]
  return dict(sorted((f"{scheme}://{entry['name']}", entry["size"]) for entry in files))


def _once_each(paths: list[str], others: list[str], needed: tuple[str, ...]) -> list[str]:
  """The files below a folder, each once, though a link to a folder may lead to it again.

  others: folders, links and devices below it. Raises OSError as find_files does.
  """
  for path in others:
    # The last path of a loop of links cannot be opened, but what it resolves to exists.
    if path.lower().endswith(needed) and not os.path.exists(os.path.realpath(path)):
      raise FileNotFoundError(errno.ENOENT, "broken link", path)
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
      raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
  links = tuple(os.path.join(path, "") for path in others[1:] if os.path.islink(path))
  below = [path for path in paths if path.startswith(links)] if links else []
  if not below:
    return paths
  shown = dict.fromkeys(path for path in paths if not path.startswith(links))
  places = {os.path.realpath(path) for path in shown}
  for path in sorted(below, key=lambda path: (len(path), path)):
    if (place := os.path.realpath(path)) not in places:
      places.add(place)
      shown[path] = None
  return list(shown)


def abandoned(path: str) -> list[str]:
  """The temporary files or folders for a path that killed processes left beside it."""
  parent, name = os.path.split(os.path.abspath(path))
  try:
    entries = sorted(os.listdir(parent))
  except OSError:  # no such folder, or one that may be written but not listed
    return []
  paths = []
  for entry in entries:
    match = re.fullmatch(re.escape(name) + r"\.partial-(\d+)", entry)
    if match and not is_running(int(match[1])):
      paths.append(os.path.join(parent, entry))
  return paths


def is_running(process: int) -> bool:
  """Whether another process of this number exists on this machine."""
  try:
    # Signal 0 asks only; PermissionError says that it is another user's.
    os.kill(process, 0)
  except (ProcessLookupError, OverflowError):
    return False
  except PermissionError:
    pass
  # What has our own number was left by a killed process: in a container each may have the same.
  return process != os.getpid()


def _partial(path: str) -> str:
  return f"{path}.partial-{os.getpid()}"


def _rename_to_new(old: str, new: str) -> None:
  """Gives a file another name, without a race; raises FileExistsError if that is taken."""
  try:
    os.link(old, new)  # unlike a rename, it fails if the name is taken
  except FileExistsError:
    raise
  except OSError:  # a file system without hard links
    os.replace(old, new)


@functools.cache
def _file_system(scheme: str) -> Any:
  """fsspec's file system for a scheme, the one that etils.epath and so orbax use as well."""
  check_path(f"{scheme}://")
  # gcsfs.GCSFileSystem asks for the kind of every bucket first, for minutes where gRPC is blocked:
  # not loaded, and not used if the user's program has loaded it.
  os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
  from etils.epath import backend
  from fsspec.config import conf

  # Other processes and tensorstore write objects: a listing that was right a moment ago is not.
  for name in (scheme, "gcs") if scheme == "gs" else (scheme,):
    conf.setdefault(name, {}).setdefault("use_listings_cache", False)
  if scheme == "gs":
    import aiohttp
    import fsspec
    from gcsfs.core import GCSFileSystem

    fsspec.register_implementation("gcs", GCSFileSystem, clobber=True)
    # Without limits gcsfs waits for ever for an answer that does not come; with them it asks again.
    limits = aiohttp.ClientTimeout(total=None, connect=60, sock_connect=30, sock_read=60)
    conf["gcs"].setdefault("requests_timeout", limits)
  for name in ("gcsfs", "fsspec.prefetcher"):  # they log the errors that they raise
    logging.getLogger(name).setLevel(logging.CRITICAL)
  return backend.fsspec_backend.fs(f"{scheme}://")


def _store(path: str) -> Any:
  return _file_system(os.fspath(path).partition("://")[0])


@contextlib.contextmanager
def _store_errors(path: str) -> Iterator[None]:
  """Raises StoreError for what goes wrong on a store: its packages have exceptions of their own."""
  store = "/".join(os.fspath(path).split("/")[:3])  # with its bucket
  try:
    with announced(f"waiting for {store}"):
      yield
  except FileNotFoundError as error:
    if error.strerror:
      raise
    raise FileNotFoundError(errno.ENOENT, "no such file or bucket", path) from error
  except (FileExistsError, NotADirectoryError, StoreError, InputError):
    raise
  except Exception as error:
    message = " ".join(str(error).split())[:200] or type(error).__name__
    if is_refusal(error):
      raise StoreError(errno.EACCES, f"{message}; {sign_in_advice(path)}", path) from error
    raise StoreError(errno.EIO, message, path) from error


def sign_in_advice(path: str) -> str:
  """Advice where a store refuses the user, for the end of a message."""
  login = _SIGN_INS[os.fspath(path).partition("://")[0]]
  return f"sign in ({login}), or ask for the right to use this bucket"


def is_refusal(error: Exception) -> bool:
  """Whether a store says that the user may not; s3fs, gcsfs and their sign-ins differ."""
  if isinstance(error, PermissionError) or getattr(error, "code", 0) in (401, 403):
    return True
  kind = type(error).__name__
  if kind == "RefreshError":  # google-auth's, of a sign-in that has ended or a server that is busy
    return not getattr(error, "retryable", False)
  # S3 answers 400 where a token has run out, to HEAD without a reason.
  if isinstance(error, OSError) and error.errno == errno.EINVAL:
    return bool(re.search("Bad Request|token", str(error)))
  return str(error).startswith("Forbidden") or bool(re.search("Credential|SSO|Token", kind))


class _StoreReader(io.RawIOBase):
  """An object, read by ranged requests, whose errors are StoreErrors."""

  def __init__(self, path: str):
    self._path = path
    with _store_errors(path):
      self._file = _store(path).open(path, "rb")

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    with _store_errors(self._path):
      return self._file.readinto(buffer)

  def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
    return self._file.seek(offset, whence)

  def close(self) -> None:
    self._file.close()
    super().close()


def _upload(local: str, path: str, overwrite: bool = True) -> None:
  with _store_errors(path):
    if not overwrite and _store(path).exists(path):
      raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    # "create" fails where another process has made the object since.
    _store(path).put_file(local, path, mode="overwrite" if overwrite else "create")


def upload_folder(local: str, folder: str) -> None:
  """Copies a local folder to a store, file by file. Raises OSError."""
  for root, _, files in os.walk(local):
    for name in files:
      source = os.path.join(root, name)
      _upload(source, os.path.join(folder, os.path.relpath(source, local)))


@contextlib.contextmanager
def _object_folder(folder: str, compare: Callable[[str, str], None] | None) -> Iterator[str]:
  """See atomic_folder: a local folder, which is uploaded at the end."""
  folder = absolute(folder)
  marker = os.path.join(folder, _UPLOADING)
  try:
    is_empty = is_folder(folder) and not list_folder(folder)  # a console's object "folder/"
    # With the marker it is what a killed upload has left, and may be written over.
    is_there = exists(folder) and not is_empty and not exists(marker)
    if is_there and not compare:
      raise InputError(f"{folder} is there already; choose another place")
    with tempfile.TemporaryDirectory() as parent:
      local = os.path.join(parent, os.path.basename(folder))
      os.mkdir(local)
      yield local
      if is_there and compare:
        compare(local, folder)
        return
      # First there and last removed: a folder that has it is not complete.
      with atomic_file(marker) as file:
        file.write("_UPLOADING is removed when this folder is complete.\n")
      upload_folder(local, folder)
      remove(marker)
  except OSError as error:
    raise InputError(f"cannot write {folder}: {error}") from error
