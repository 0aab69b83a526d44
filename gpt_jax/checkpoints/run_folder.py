"""Run folder: claim it for one config and data set, and refuse a different run."""

import dataclasses
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from gpt_jax.checkpoints.remote import check_workdir
from gpt_jax.config import difference, from_json, resumable_fields, to_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError, about
from gpt_jax.files import exists, list_existing, list_folder, make_folders, read_json, write_json
from gpt_jax.ops.product import bfloat16_speed, onednn_speed
from gpt_jax.parallel.processes import check_agreement, is_main_process, log, smallest

_BEFORE_CONFIG = "tokenizer"  # can exist without config.json
_MIN_SPEEDUP = 1.1  # of a choice over the usual one, to which a draw goes


def claim(
  workdir: str,
  config: Any,
  tokenizer: Tokenizer,
  data: dict[str, Any],
  may_change: Sequence[str] = (),
  may_replace: bool = False,
) -> None:
  """Writes config.json and tokenizer/ to a new folder, or checks that the folder is this run's.

  Args:
    data: JSON values that identify the data, such as its size.
    may_change: dotted names of fields that may change, beside resumable ones; the caller handles
      a change, and records it by replace_config.
    may_replace: whether this run has the folder's lock, and so replaces the config.json of one that
      has no checkpoint yet; without the lock another run may be at work.
  """
  check_workdir(workdir)
  path = os.path.join(workdir, "config.json")
  data = {**data, "tokenizer_hash": tokenizer.hash}
  check_agreement(to_json(config), data)
  may_change = (*resumable_fields(config), *may_change)
  existed = exists(path)  # before another process can write it
  claimed = _is_claimed(workdir, config, data, tokenizer, may_change)
  begins_anew = existed and not claimed
  # Else a slow process would take the config.json that process 0 writes now for an older run's.
  multihost_utils.sync_global_devices("every process has checked the run folder")
  if claimed or not is_main_process() or (existed and not may_replace):
    return
  try:
    make_folders(workdir)
    # config.json last: it claims the folder, and after a kill before it the folder is still free.
    tokenizer.save(os.path.join(workdir, "tokenizer"))
    write_json(path, {"config": to_json(config), "data": data}, overwrite=begins_anew)
  except FileExistsError:  # another run claimed it in the meantime
    _is_claimed(workdir, config, data, tokenizer, may_change)
  except OSError as error:
    raise InputError(f"workdir={workdir}: cannot be written ({error.strerror})") from error


def claimed_config(workdir: str) -> Any:
  """The config that a claimed folder was last trained with."""
  return from_json(read_config(workdir)["config"])


def resume_microbatches(config: Any, workdirs: Iterable[str]) -> tuple[Any, bool]:
  """The config with microbatches as set, or as a run in one of these folders has trained with, and
  whether the number is open: not set, and no folder has a checkpoint. It is 1 then.

  Folders are not checked here; claim says what is wrong with one.
  """
  if config.train.microbatches:
    return config, False
  for workdir, saved in _claimed_configs(config, workdirs):
    if _has_checkpoint(workdir) and saved.train.microbatches:
      return with_microbatches(config, saved.train.microbatches), False
  return with_microbatches(config, 1), True


def resume_milestone(config: Any, workdirs: Iterable[str]) -> int:
  """The milestone of the config; if it names none, that of a run in one of these folders, so that
  what the run has kept stays.
  """
  saved = (saved.train.milestone for _, saved in _claimed_configs(config, workdirs))
  return config.train.milestone or next(filter(None, saved), 0)


def resume_choices(config: Any, workdirs: Iterable[str] = ()) -> Any:
  """The config with its choices made: those of a run in one of these folders, else by probes:
  trunk.dtype=auto becomes bfloat16 where every process multiplies it faster, else float32;
  mesh.cpu_products=auto becomes onednn where it is faster in every process, else xla.
  """
  dtype, products = config.trunk.dtype, config.mesh.cpu_products
  if "auto" not in (dtype, products):
    return config
  saved = next((saved for _, saved in _claimed_configs(config, workdirs)), None)
  if dtype == "auto":
    dtype = saved.trunk.dtype if saved else _faster("bfloat16", bfloat16_speed(), "float32")
  if products == "auto":
    products = saved.mesh.cpu_products if saved else _faster("onednn", onednn_speed(dtype), "xla")
  log(f"trunk.dtype={dtype}, mesh.cpu_products={products}")
  trunk = dataclasses.replace(config.trunk, dtype=dtype)
  mesh = dataclasses.replace(config.mesh, cpu_products=products)
  return dataclasses.replace(config, trunk=trunk, mesh=mesh)


def _faster(choice: str, speedup: float, usual: str) -> str:
  """The choice if it is faster than the usual one in every process."""
  return choice if smallest(speedup) > _MIN_SPEEDUP else usual


def _claimed_configs(config: Any, workdirs: Iterable[str]) -> Iterator[tuple[str, Any]]:
  """Each of these folders that a run of the same kind has claimed, and its config."""
  for workdir in workdirs:
    try:
      saved = claimed_config(workdir)
    except (InputError, KeyError, TypeError, OSError):
      continue
    if type(saved) is type(config):
      yield workdir, saved


def with_microbatches(config: Any, count: int) -> Any:
  """The config of a run with another number of microbatches."""
  return dataclasses.replace(config, train=dataclasses.replace(config.train, microbatches=count))


def replace_config(workdir: str, config: Any, change: dict[str, Any]) -> None:
  """Replaces the config of a claimed folder, and appends `change` to its list of changes.

  Every process calls it; process 0 writes.
  """
  # Else a slow process would compare its config with the new one.
  multihost_utils.sync_global_devices("every process has read config.json")
  if is_main_process():
    content = read_config(workdir)
    changes = [*content.get("changes", []), change]
    content |= {"config": to_json(config), "changes": changes}
    write_json(os.path.join(workdir, "config.json"), content)
  multihost_utils.sync_global_devices("config.json has been replaced")


def _is_claimed(
  workdir: str, config: Any, data: dict[str, Any], tokenizer: Tokenizer, may_change: tuple[str, ...]
) -> bool:
  """Whether this run has claimed the folder before, with the same microbatches or a checkpoint.

  Raises InputError if the folder is not free.
  """
  if not exists(os.path.join(workdir, "config.json")):
    _check_free(workdir, tokenizer)
    return False
  saved = read_config(workdir)
  if not isinstance(saved, dict) or not {"config", "data"} <= saved.keys():
    raise InputError(
      f"workdir={workdir} holds a config.json that no run wrote: not a run's folder; use another"
    )
  with about(f"workdir={workdir}: config.json"):
    saved_config = from_json(saved["config"])
  if type(saved_config) is not type(config):
    kind = type(saved_config).__name__
    raise InputError(f"workdir={workdir} holds a run of a {kind}; use another folder")
  changes = difference(saved_config, config)
  # A run that has saved nothing yet, as when it did not fit into memory, may take smaller parts.
  begins_anew = False
  if not _has_checkpoint(workdir):
    others = [change for change in changes if not change.startswith("train.microbatches")]
    begins_anew, changes = others != changes, others
  # Each begins with a dotted name; "mesh." among those that may change covers all fields below.
  changes = [change for change in changes if not change.startswith(may_change)]
  changes += _data_difference(saved["data"], data, tokenizer)
  if changes:
    raise InputError(
      f"workdir={workdir} holds a run with another config ({'; '.join(changes)}); "
      "use another folder, or the old settings"
    )
  return not begins_anew


def _has_checkpoint(workdir: str) -> bool:
  return any(name.isdecimal() for name in list_existing(os.path.join(workdir, "checkpoints")))


def _check_free(workdir: str, tokenizer: Tokenizer) -> None:
  """Raises InputError if a folder without config.json holds the files of something else."""
  entries = sorted(listing(workdir))
  for name in entries:
    if name.startswith(("seed_", "fold_")):
      raise InputError(f"workdir={workdir} holds runs of several {name[:4]}s; use another folder")
  for name in entries:
    unfinished = name.startswith("config.json.")  # of a killed write_json
    if name != _BEFORE_CONFIG and not unfinished:
      raise InputError(
        f"workdir={workdir} holds {name!r} but no config.json: not a run's folder; use another"
      )
  folder = os.path.join(workdir, _BEFORE_CONFIG)
  has_vocabulary = exists(os.path.join(folder, "tokenizer.json"))
  if has_vocabulary and load_tokenizer(folder).hash != tokenizer.hash:
    raise InputError(
      f"workdir={workdir} holds another vocabulary and no config.json: not a run's folder; "
      "use another"
    )


def _data_difference(
  saved: dict[str, Any], data: dict[str, Any], tokenizer: Tokenizer
) -> list[str]:
  changes = []
  for name in sorted(data.keys() | saved.keys()):
    before, now = saved.get(name), data.get(name)
    if before != now:
      change = f"{before} != {now}"
      if name == "tokenizer_hash":
        change = tokenizer.difference(str(before))
      changes.append(f"data {name}: {change}")
  return changes


def read_config(workdir: str) -> dict[str, Any]:
  """The content of config.json. Raises InputError if it is missing or damaged."""
  path = os.path.join(workdir, "config.json")
  try:
    return read_json(path)
  except FileNotFoundError as error:
    raise InputError(f"{path}: missing; {workdir!r} is not the folder of a run") from error
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: cannot be read ({error})") from error


def checksum(tree: Any) -> str:
  """CRC-32 of the bytes of all arrays in a tree, as hexadecimal: identifies parameters or data."""
  crc = 0
  for array in jax.tree.leaves(tree):
    crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
  return f"{crc:08x}"


def listing(workdir: str) -> list[str]:
  """The names in a folder, empty if it does not exist. Raises InputError if it cannot be read."""
  try:
    return list_folder(workdir)
  except FileNotFoundError:
    return []
  except NotADirectoryError as error:
    raise InputError(f"workdir={workdir} is a file; a folder is needed") from error
  except OSError as error:
    raise InputError(f"workdir={workdir}: cannot be read ({error.strerror})") from error
