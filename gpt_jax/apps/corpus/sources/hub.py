"""Data sets of the Hugging Face Hub: their files of text, JSON lines, tables or Parquet.

The sources are named by the commit, so that a data set that has changed is noticed. Files are
downloaded one at a time into the Hub's cache.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator

from gpt_jax.apps.corpus.sources import parquet
from gpt_jax.checkpoints.released import ask_hub
from gpt_jax.data.sources import jsonl, text
from gpt_jax.data.sources.source import chunked_documents
from gpt_jax.errors import InputError

USAGE = "hf://OWNER/SET[@REVISION][/PATH]"
FOLDER_SUFFIXES = None  # these are not files of this machine
_PREFIX, _KIND = "hf://", "data set"
# The Hub's own branches have slashes: refs/convert/parquet has any data set as Parquet.
_NAME = re.compile(r"([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)
_SUFFIXES = (*jsonl.FOLDER_SUFFIXES, *parquet.FOLDER_SUFFIXES, *text.FOLDER_SUFFIXES)


def reads(name: str) -> bool:
  return name.startswith(_PREFIX)


def files(name: str) -> list[str]:
  """The names of a data set's files that hold text, with their commit."""
  repository, revision, wanted = _place(name)
  info = ask_hub(name, _KIND, lambda hub: hub.HfApi().dataset_info(repository, revision=revision))
  paths = sorted(sibling.rfilename for sibling in info.siblings or ())
  if wanted in paths:
    chosen = [wanted]
  elif any(mark in wanted for mark in "*?["):
    chosen = [path for path in paths if fnmatch.fnmatchcase(path, wanted)]
  else:
    folder = f"{wanted.rstrip('/')}/" if wanted else ""
    chosen = [
      path for path in paths if path.startswith(folder) and path.lower().endswith(_SUFFIXES)
    ]
  if not chosen:
    shown = ", ".join(paths[:5])
    raise InputError(f"{name}: no file of text matches; the data set has {shown or 'no files'}")
  return [f"{_PREFIX}{repository}@{info.sha}/{path}" for path in chosen]


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  repository, revision, path = _place(name)
  place = {"repo_type": "dataset", "revision": revision}
  copy = ask_hub(name, _KIND, lambda hub: hub.hf_hub_download(repository, path, **place))
  yield from chunked_documents(copy, field)


def _place(name: str) -> tuple[str, str | None, str]:
  """Repository, revision and path of a name."""
  match = _NAME.fullmatch(name.removeprefix(_PREFIX).removeprefix("datasets/"))
  if match is None:
    raise InputError(f"{name}: should be {USAGE}, such as hf://stas/openwebtext-10k")
  return match[1], match[2], match[3] or ""
