"""The folder of a run: whose it is, and that the command given again is the same one."""

import json
import os
from typing import Any

import jax

from gpt_jax import config as configs
from gpt_jax.data.tokenizer import Tokenizer
from gpt_jax.errors import InputError

# What may change between a run and its resumption: nothing that the result depends on.
FREE = ("mesh.", "train.log_every", "train.checkpoint_every")


def claim(workdir: str, config: Any, tokenizer: Tokenizer, data: dict[str, Any]) -> None:
  """Makes the folder this run's, or finds that it is: writes config.json and tokenizer/ where there are none.

  Args:
    config: the run's whole config, resolved.
    data: JSON values that tell whether the data is the same, such as its size.

  Raises:
    InputError: the folder is another run's, with the difference, or holds files that are no run's.
  """
  path = os.path.join(workdir, "config.json")
  wanted = {"config": configs.to_json(config), "data": {**data, "tokenizer_hash": tokenizer.hash}}
  if os.path.exists(path):
    found = read(workdir)
    differences = [
      line for line in configs.difference(configs.from_json(found["config"]), config) if not line.startswith(FREE)
    ]
    for name in sorted(wanted["data"].keys() | found["data"].keys()):
      before, now = found["data"].get(name), wanted["data"].get(name)
      if before != now:
        differences.append(f"data {name}: {before} != {now}")
    if differences:
      raise InputError(
        f"--workdir={workdir} holds a run with another config ({'; '.join(differences)}); "
        "use another folder, or the old settings"
      )
    return
  strangers = sorted(set(_listing(workdir)) - {"compilation_cache", "tokenizer", "config.json.partial"})
  if strangers:
    raise InputError(f"--workdir={workdir} holds {strangers[0]!r} but no config.json: not a run's folder; use another")
  vocabulary = os.path.join(workdir, "tokenizer")
  if os.path.exists(os.path.join(vocabulary, "tokenizer.json")) and Tokenizer.load(vocabulary).hash != tokenizer.hash:
    raise InputError(
      f"--workdir={workdir} holds another vocabulary and no config.json: not a run's folder; use another"
    )
  if jax.process_index() == 0:
    try:
      os.makedirs(workdir, exist_ok=True)
      tokenizer.save(vocabulary)
      write_json(path, wanted)
    except OSError as error:
      raise InputError(f"--workdir={workdir}: cannot be written ({error.strerror})") from error


def read(workdir: str) -> dict[str, Any]:
  """What config.json says. Raises InputError where it is missing or damaged."""
  path = os.path.join(workdir, "config.json")
  try:
    with open(path, encoding="utf-8") as file:
      return json.load(file)
  except FileNotFoundError as error:
    raise InputError(f"{path}: missing; {workdir!r} is not the folder of a run") from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error


def write_json(path: str, value: Any) -> None:
  """Writes the whole file or nothing."""
  with open(f"{path}.partial", "w", encoding="utf-8") as file:
    json.dump(value, file, indent=2)
    file.write("\n")
  os.replace(f"{path}.partial", path)


def _listing(workdir: str) -> list[str]:
  try:
    return os.listdir(workdir)
  except FileNotFoundError:
    return []
  except NotADirectoryError as error:
    raise InputError(f"--workdir={workdir} is a file; a folder is needed") from error
  except OSError as error:
    raise InputError(f"--workdir={workdir}: cannot be read ({error.strerror})") from error
