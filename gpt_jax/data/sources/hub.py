"""Data sets of the Hugging Face Hub: their files of text, JSON lines, tables or Parquet.

`hf://OWNER/SET` is all files of a data set that a folder is searched for; a path or a glob may
follow. A revision is `hf://OWNER/SET@REVISION`. The sources are named by the commit, so that a data
set that has changed is noticed. Files are downloaded one at a time into the Hub's cache.
"""

import fnmatch
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpt_jax.data.sources import jsonl, parquet, table, text
from gpt_jax.errors import InputError

USAGE = "hf://OWNER/SET[@REVISION][/PATH]"
FOLDER_SUFFIXES = None  # these are not files of this machine
_PREFIX = "hf://"
_READERS = (jsonl, parquet, table, text)
_SUFFIXES = tuple(suffix for reader in _READERS for suffix in reader.FOLDER_SUFFIXES)


def reads(name: str) -> bool:
  return name.startswith(_PREFIX)


def files(name: str) -> list[str]:
  """The names of a data set's files that hold text, with their commit."""
  place = _place(name)
  hub = _hub(name)
  try:
    info = hub.HfApi().dataset_info(place.repository, revision=place.revision)
  except Exception as error:  # no network, no such data set, no permission
    raise InputError(f"{name}: {_line(error)}") from error
  paths = sorted(sibling.rfilename for sibling in info.siblings or ())
  if place.path in paths:
    chosen = [place.path]
  elif any(mark in place.path for mark in "*?["):
    chosen = [path for path in paths if fnmatch.fnmatchcase(path, place.path)]
  else:
    folder = f"{place.path.rstrip('/')}/" if place.path else ""
    chosen = [path for path in paths if path.startswith(folder) and path.endswith(_SUFFIXES)]
  if not chosen:
    shown = ", ".join(paths[:5])
    raise InputError(f"{name}: no file of text matches; the data set has {shown or 'no files'}")
  return [f"{_PREFIX}{place.repository}@{info.sha}/{path}" for path in chosen]


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  place = _place(name)
  hub = _hub(name)
  try:
    path = hub.hf_hub_download(
      place.repository, place.path, repo_type="dataset", revision=place.revision
    )
  except Exception as error:  # no network, a full disk
    raise InputError(f"{name}: {_line(error)}") from error
  reader = next((reader for reader in _READERS if reader.reads(place.path)), text)
  yield from reader.documents(path, field)


class _Place(NamedTuple):
  repository: str
  revision: str | None
  path: str


def _place(name: str) -> _Place:
  parts = name.removeprefix(_PREFIX).removeprefix("datasets/").split("/", 2)
  if len(parts) < 2 or not all(parts[:2]):
    raise InputError(f"{name}: should be {USAGE}, such as hf://stas/openwebtext-10k")
  dataset, _, revision = parts[1].partition("@")
  return _Place(f"{parts[0]}/{dataset}", revision or None, parts[2] if len(parts) == 3 else "")


def _hub(name: str) -> Any:
  try:
    import huggingface_hub
  except ImportError as error:
    raise InputError(f"{name}: needs huggingface_hub: pip install 'gpt_jax[hub]'") from error
  return huggingface_hub


def _line(error: BaseException) -> str:
  return " ".join(str(error).split())[:300] or type(error).__name__
