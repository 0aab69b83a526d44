"""Processes of a multi-host run: the main one, values gathered from all of them, and the check that
all have the same code, config and data.
"""

import hashlib
import itertools
import json
import pathlib
import platform
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils

from gpt_jax import errors
from gpt_jax.errors import InputError

_PADDED = 1 << 14  # bytes; a program of its own is compiled for every size that is gathered
_MAX_LISTED = 3  # in the message
_MAX_HOSTS = 4  # with the same value


def is_main_process() -> bool:
  """Whether this process logs and writes what the run writes once; one process of a run does."""
  return jax.process_index() == 0


def log(text: str) -> None:
  """Prints to standard error on process 0."""
  if is_main_process():
    print(errors.for_user(text), file=sys.stderr, flush=True)


def largest(value: float) -> float:
  """The largest value that a process gives, as float32; all processes must call this."""
  if jax.process_count() == 1:
    return value
  return float(multihost_utils.process_allgather(np.float32(value)).max())


def smallest(value: float) -> float:
  """The smallest, as `largest`."""
  return -largest(-value)


def gather(text: str) -> list[str]:
  """The texts of all processes, in their order; all must call this."""
  content = text.encode()
  sizes = multihost_utils.process_allgather(np.int32(len(content))).reshape(-1)
  # An allgather takes arrays of one shape: texts are padded to the longest.
  padded = np.zeros(_PADDED * -(-int(sizes.max()) // _PADDED), np.uint8)
  padded[: len(content)] = np.frombuffer(content, np.uint8)
  rows = multihost_utils.process_allgather(padded).reshape(len(sizes), -1)
  return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def check_agreement(config: Any, data: Mapping[str, Any]) -> None:
  """Every process calls it, before it trains; with one process it does nothing."""
  if jax.process_count() == 1:
    return
  facts = {"code": code_version(), "jax": jax.__version__, "config": config, "data": data}
  gathered = gather(json.dumps([platform.node(), facts]))
  hosts, all_facts = zip(*map(json.loads, gathered), strict=True)
  differences = list_differences(all_facts, hosts)
  if not differences:
    return
  # Every process raises: one that went on would wait for the others at its next collective.
  if not is_main_process():
    raise InputError("the processes of this run differ; process 0 says in what")
  if len(differences) > _MAX_LISTED:
    differences[_MAX_LISTED:] = [f"and {len(differences) - _MAX_LISTED} more"]
  raise InputError(
    f"the processes of this run differ: {'; '.join(differences)}. All need the same code, the same "
    "command and the same data"
  )


def list_differences(facts: tuple[dict[str, Any], ...], hosts: tuple[str, ...]) -> list[str]:
  """Lists differences between processes: "config.train.steps is 6 on process 0 (a), 7 on …".

  facts: nested dicts of JSON values, one per process.
  """
  flat = [flatten_dict(of_one, keep_empty_nodes=True, sep=".") for of_one in facts]
  differences = []
  for name in dict.fromkeys(itertools.chain.from_iterable(flat)):
    processes: dict[str, list[int]] = {}
    for number, of_one in enumerate(flat):
      processes.setdefault(str(of_one.get(name, "missing")), []).append(number)
    if len(processes) > 1:
      parts = [f"{value} on {_name(numbers, hosts)}" for value, numbers in processes.items()]
      differences.append(f"{name} is {', '.join(parts)}")
  return differences


def code_version() -> str:
  """A hash of the source files of this package, its version among them."""
  folder = pathlib.Path(__file__).parents[1]
  digest = hashlib.sha256()
  for path in sorted(folder.rglob("*.py")):
    digest.update(f"{path.relative_to(folder)}\n".encode())
    digest.update(path.read_bytes())
  return digest.hexdigest()[:8]


def _name(numbers: list[int], hosts: tuple[str, ...]) -> str:
  """ "process 1 (a)", "processes 1, 2 (a, b)", and the first few of many."""
  shown = numbers[:_MAX_HOSTS]
  more = f" and {len(numbers) - _MAX_HOSTS} more" if len(numbers) > _MAX_HOSTS else ""
  words = "process" if len(numbers) == 1 else "processes"
  machines = ", ".join(dict.fromkeys(hosts[number] for number in shown))
  return f"{words} {', '.join(map(str, shown))}{more} ({machines})"
