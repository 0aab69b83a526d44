"""The folder of a run: whose it is, and that the command given again is the same one."""

import functools
import json
import os
import zlib
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt_jax.config import difference, from_json, to_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import write_json

# What may change between a run and its resumption: nothing that the result depends on.
RESUMABLE_FIELDS = (
  "mesh.",
  "train.log_every",
  "train.checkpoint_every",
  "train.keep_checkpoints",
  "train.milestone",
)


def claim(workdir: str, config: Any, tokenizer: Tokenizer, data: dict[str, Any]) -> None:
  """Makes the folder this run's, or finds that it is: writes config.json and tokenizer/ where there
  are none.

  Args:
    config: the run's whole config, resolved.
    data: JSON values that tell whether the data is the same, such as its size.

  Raises:
    InputError: the folder is another run's, with the difference, or holds files that are no run's.
  """
  path = os.path.join(workdir, "config.json")
  wanted = {"config": to_json(config), "data": {**data, "tokenizer_hash": tokenizer.hash}}
  ours = _is_ours(workdir, config, wanted["data"], tokenizer)
  multihost_utils.sync_global_devices("every process has looked, so that one may write")
  if ours or jax.process_index() != 0:
    return
  try:
    os.makedirs(workdir, exist_ok=True)
    tokenizer.save(os.path.join(workdir, "tokenizer"))
    write_json(f"{path}.{os.getpid()}", wanted)
    _rename_unless_there(f"{path}.{os.getpid()}", path)
  except FileExistsError:  # of two runs that began at once the other was quicker
    _is_ours(workdir, config, wanted["data"], tokenizer)
  except OSError as error:
    raise InputError(f"--workdir={workdir}: cannot be written ({error.strerror})") from error


def _is_ours(workdir: str, config: Any, data: dict[str, Any], tokenizer: Tokenizer) -> bool:
  """Whether the folder is this run's already. Raises InputError where it may not become so."""
  if not os.path.exists(os.path.join(workdir, "config.json")):
    unfinished = {name for name in listing(workdir) if name.startswith("config.json.")}
    strangers = sorted(set(listing(workdir)) - {"compilation_cache", "tokenizer"} - unfinished)
    if strangers:
      raise InputError(
        f"--workdir={workdir} holds {strangers[0]!r} but no config.json: not a run's folder; use another"
      )
    vocabulary = os.path.join(workdir, "tokenizer")
    known = os.path.exists(os.path.join(vocabulary, "tokenizer.json"))
    if known and load_tokenizer(vocabulary).hash != tokenizer.hash:
      raise InputError(
        f"--workdir={workdir} holds another vocabulary and no config.json: not a run's folder; use another"
      )
    return False
  found = read_config(workdir)
  if not isinstance(found, dict) or not {"config", "data"} <= found.keys():
    raise InputError(
      f"--workdir={workdir} holds a config.json that no run wrote: not a run's folder; use another"
    )
  earlier = from_json(found["config"])
  if type(earlier) is not type(config):
    raise InputError(
      f"--workdir={workdir} holds a run of a {type(earlier).__name__}; use another folder"
    )
  differences = [
    line for line in difference(earlier, config) if not line.startswith(RESUMABLE_FIELDS)
  ]
  for name in sorted(data.keys() | found["data"].keys()):
    before, now = found["data"].get(name), data.get(name)
    if before != now:
      change = f"{before} != {now}"
      if name == "tokenizer_hash":
        change = tokenizer.difference(str(before))
      differences.append(f"data {name}: {change}")
  if differences:
    raise InputError(
      f"--workdir={workdir} holds a run with another config ({'; '.join(differences)}); "
      "use another folder, or the old settings"
    )
  return True


def read_config(workdir: str) -> dict[str, Any]:
  """What config.json says. Raises InputError where it is missing or damaged."""
  path = os.path.join(workdir, "config.json")
  try:
    with open(path, encoding="utf-8") as file:
      return json.load(file)
  except FileNotFoundError as error:
    raise InputError(f"{path}: missing; {workdir!r} is not the folder of a run") from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error


def checksum(tree: Any) -> str:
  """Of the bytes of all arrays: other parameters or data of the same size are not the same run."""
  return f"{functools.reduce(lambda sum, x: zlib.crc32(np.ascontiguousarray(x), sum), jax.tree.leaves(tree), 0):08x}"


def _rename_unless_there(old: str, new: str) -> None:
  try:
    os.link(old, new)
  except FileExistsError:
    os.remove(old)
    raise
  except OSError:  # a file system without links
    os.replace(old, new)
  else:
    os.remove(old)


def listing(workdir: str) -> list[str]:
  """The names in a folder, none where it is not there yet. Raises InputError where it cannot be
  read.
  """
  try:
    return os.listdir(workdir)
  except FileNotFoundError:
    return []
  except NotADirectoryError as error:
    raise InputError(f"--workdir={workdir} is a file; a folder is needed") from error
  except OSError as error:
    raise InputError(f"--workdir={workdir}: cannot be read ({error.strerror})") from error
