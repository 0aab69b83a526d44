"""Finds the files and data sets that a name stands for, and reads their documents."""

import functools
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from gpt_jax.data.cleaning import plain_line_ends
from gpt_jax.data.file_kinds import file_kind
from gpt_jax.data.sources import text
from gpt_jax.data.sources.utf8 import without_compression
from gpt_jax.errors import InputError, counted, warn_once
from gpt_jax.extensions import modules
from gpt_jax.files import check_path, find_files, split_names

MANY = 10_000  # sources


class Source(NamedTuple):
  """One file or one named data set; `size` in bytes on disk, 0 if unknown before it is read."""

  name: str
  size: int


class SourceFile(Protocol):
  """The module interface of a text source; files of this folder that have it are found.

  If its sources are data sets of several files, `files(name)` may give the name of each. FORMATS
  may name those of data/file_kinds.py that it reads, whatever the name of the file, and
  `typed_rows(name)` may give rows with all columns, see file_kinds.typed_rows.
  """

  USAGE: str  # how a user names such a source, for --help

  @property
  def FOLDER_SUFFIXES(self) -> tuple[str, ...] | None:
    """A folder is searched for files that end so; None if the sources are not files."""

  def reads(self, name: str) -> bool:
    """Whether it reads sources of such a name. Text also reads what nothing else claims."""

  def documents(self, name: str, field: str) -> Iterator[Iterable[str]]:
    """The documents of a Source, of rows their `field`; in chunks, as one may not fit in memory."""


_known = functools.partial(modules, __package__, "USAGE")  # () -> the modules of all sources


def find(name: str) -> list[Source]:
  """The files or data sets of a file name, glob, folder or data set name, in a fixed order.

  Files and folders may be on a store, as gs://bucket/folder/*.txt.
  """
  module: Any = _module_of(name)  # by the name alone; nothing is opened
  if module.FOLDER_SUFFIXES is None:
    files = module.files(name) if module in modules(__package__, "files") else [name]
    return [Source(file, 0) for file in files]
  check_path(name)
  try:
    sizes = find_files(name, _folder_suffixes())
  except (OSError, ValueError) as error:
    raise InputError(f"{name}: cannot be listed ({error})") from error
  is_glob = glob.has_magic(name)  # has *, ? or [
  if os.path.isdir(name) or (sizes and name not in sizes and not is_glob):  # a folder
    suffixes, listed = _folder_suffixes(), sizes
    sizes = {path: size for path, size in sizes.items() if path.lower().endswith(suffixes)}
    _warn_of_others(name, listed.keys() - sizes.keys())
    if not sizes:
      raise InputError(
        f"{name}: no {', '.join(suffixes)} file in this folder; give a glob for other file names"
      )
  if not sizes and os.path.exists(name):  # /dev/stdin may be one
    raise InputError(
      f"{name}: a pipe or a device, but a source is read more than once; write it to a file first"
    )
  if not sizes:
    fault = "no file matches" if is_glob else "no such file or folder"
    raise InputError(f"{name}: {fault}; a source is {usage()}")
  return [Source(path, size) for path, size in sizes.items()]


def find_all(names: str) -> list[Source]:
  """The sources of several names separated by commas."""
  sources: list[Source] = []
  for name in split_names(names):
    if not name:
      raise InputError(f"{names!r}: an empty name of a source; a source is {usage()}")
    sources += find(name)
  return sources


def as_json(sources: Sequence[Source]) -> list[Any]:
  """JSON that differs where sources do: name and size of each, or of many their number, all bytes
  and a digest, as a header should stay small.
  """
  listed = list(map(list, sources))
  if len(listed) <= MANY:
    return listed
  digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]
  return [len(listed), sum(source.size for source in sources), digest]


def documents(name: str, *, field: str = "text") -> Iterator[str]:
  """The documents of all sources that a name stands for, a text file or a row each."""
  for source in find(name):
    for chunks in chunked_documents(source.name, field):
      if document := "".join(chunks).strip():  # not blank
        yield document


def chunked_documents(name: str, field: str) -> Iterator[Iterable[str]]:
  """The documents of one Source as chunks of text, with "\\n" for every line end."""
  for chunks in _module_of_content(name).documents(name, field):
    yield map(plain_line_ends, chunks)


def is_plain_text(name: str) -> bool:
  """Whether a Source is text as a whole, so that its size is about the number of characters."""
  return _module_of(name) is text and without_compression(name) == name


def total_size(sources: Iterable[Source]) -> int | None:
  """Bytes of all sources; None if unknown."""
  sizes = [source.size for source in sources]
  return sum(sizes) if all(sizes) else None


def plain_size(sources: Sequence[Source]) -> int | None:
  """Bytes of all sources, if they are about as many characters."""
  is_text = all(is_plain_text(source.name) for source in sources)
  return total_size(sources) if is_text else None


def usage() -> str:
  """How a user names each kind of source."""
  files = [module.USAGE for module in _known() if module.FOLDER_SUFFIXES is not None]
  names = [module.USAGE for module in _known() if module.FOLDER_SUFFIXES is None]
  folders = ", ".join(end for end in _folder_suffixes() if end.count(".") == 1)
  return "; ".join([f"a file or glob of {' or '.join(files)}; a folder of {folders}", *names])


def _folder_suffixes() -> tuple[str, ...]:
  """How names of files end that are read of a folder."""
  return sum((module.FOLDER_SUFFIXES or () for module in _known()), ())


def _warn_of_others(folder: str, names: Iterable[str]) -> None:
  """Warns of files in a folder that are not read, though they would be by their own names."""
  others = [name for name in names if _module_of(name) is not text]
  if others:
    ends = sorted({os.path.splitext(without_compression(name))[1] for name in others})
    files = counted(len(others), "file")
    warn_once(f"{folder}: without {files} ({', '.join(ends)}), which a glob would read")


def _module_of(name: str) -> SourceFile:
  return next((module for module in _known() if module.reads(name)), text)


def _module_of_content(name: str) -> SourceFile:
  """As _module_of, but of a file's content where its name does not say, or says something else."""
  module, of_formats = _module_of(name), modules(__package__, "FORMATS")
  if module not in of_formats:
    return module
  found = file_kind(name).format
  return next((other for other in of_formats if found in other.FORMATS), module)
