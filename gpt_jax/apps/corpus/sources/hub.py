"""Data sets of the Hugging Face Hub: their files of text, JSON lines, tables or Parquet.

`hf://OWNER/SET` is all files of a data set that a folder is searched for; a path or a glob may
follow. A revision is `hf://OWNER/SET@REVISION`. The sources are named by the commit, so that a data
set that has changed is noticed. Files are downloaded one at a time into the Hub's cache.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpt_jax.apps.corpus.sources import parquet
from gpt_jax.data.sources import jsonl, text
from gpt_jax.data.sources.source import chunked_documents
from gpt_jax.errors import InputError, Unavailable, require

USAGE = "hf://OWNER/SET[@REVISION][/PATH]"
FOLDER_SUFFIXES = None  # these are not files of this machine
_PREFIX = "hf://"
# The Hub's own branches have slashes: refs/convert/parquet has any data set as Parquet.
_NAME = re.compile(r"([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)
_SUFFIXES = (*jsonl.FOLDER_SUFFIXES, *parquet.FOLDER_SUFFIXES, *text.FOLDER_SUFFIXES)


def reads(name: str) -> bool:
  return name.startswith(_PREFIX)


def files(name: str) -> list[str]:
  """The names of a data set's files that hold text, with their commit."""
  repository, revision, wanted = _place(name)
  hub = require("huggingface_hub", f"{name}:", "huggingface_hub", "hub")
  try:
    info = hub.HfApi().dataset_info(repository, revision=revision)
  except Exception as error:
    raise _fault(name, error) from error
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
  hub = require("huggingface_hub", f"{name}:", "huggingface_hub", "hub")
  try:
    copy = hub.hf_hub_download(repository, path, repo_type="dataset", revision=revision)
  except Exception as error:
    raise _fault(name, error) from error
  yield from chunked_documents(copy, field)


def _place(name: str) -> tuple[str, str | None, str]:
  """Repository, revision and path of a name."""
  match = _NAME.fullmatch(name.removeprefix(_PREFIX).removeprefix("datasets/"))
  if match is None:
    raise InputError(f"{name}: should be {USAGE}, such as hf://stas/openwebtext-10k")
  return match[1], match[2], match[3] or ""


def _fault(name: str, error: Exception) -> InputError:
  """One line for what the Hub answered, or for why it did not."""
  cause: BaseException | None = error
  response: Any = None
  while cause is not None and (response := getattr(cause, "response", None)) is None:
    if any(kind.__name__ == "TransportError" for kind in type(cause).__mro__):  # of httpx
      return Unavailable(f"{name}: the Hub was not reached ({_line(cause)})")
    cause = cause.__cause__
  if cause is None:
    return InputError(f"{name}: {_line(error)}")  # a full disk, HF_HUB_OFFLINE
  code, kind = response.status_code, response.headers.get("X-Error-Code", "")
  if code == 429 or code >= 500:
    return Unavailable(f"{name}: the Hub answered {code} {response.reason_phrase}")
  login = "log in with `hf auth login`, or set HF_TOKEN"
  if kind == "GatedRepo":
    advice = f"its owner asks for consent: agree on its page of the Hub, then {login}"
  elif kind == "RevisionNotFound":
    advice = "the data set has no such revision"
  elif code in (401, 403):  # without a token, also for a data set that does not exist
    advice = f"no such data set, or none that this user may read: {login}"
  else:
    advice = "no such data set, or file in it"
  return InputError(f"{name}: {advice} (the Hub answered {code})")


def _line(error: BaseException) -> str:
  return " ".join(str(error).split())[:300] or type(error).__name__
