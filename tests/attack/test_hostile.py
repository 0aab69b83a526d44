"""Files that a stranger made on purpose, in place of each file that a program reads: pipes,
devices, links in a circle, nested brackets, sizes beyond all memory.
"""

import json
import math
import os
from pathlib import Path

import pytest
from outcomes import outcome_of

from gpt_jax.checkpoints.formats.folder import describe_file
from gpt_jax.programs import evaluate

pytestmark = pytest.mark.attack
KINDS = ("data", "run", "result", "npz export", "safetensors export", "hf export")


def huge(path):
  with open(path, "wb") as file:
    file.truncate(1 << 42)  # sparse


def circle(path):
  path.symlink_to(path.name)


HOSTILE = {
  "a pipe": os.mkfifo,
  "a device": lambda path: path.symlink_to("/dev/zero"),
  "a random device": lambda path: path.symlink_to("/dev/urandom"),
  "a circle of links": circle,
  "a folder": os.mkdir,
  "4 TB": huge,
  "nested brackets": lambda path: path.write_text("[" * 100_000),
  "nested objects": lambda path: path.write_text('{"a":' * 100_000),
  "a list": lambda path: path.write_text("[1, 2]"),
  "a number": lambda path: path.write_text("1e999"),
  "huge numbers": lambda path: path.write_text(json.dumps({"n_tokens": 10**30, "step": 10**30})),
  "an npy header of 100 TB": lambda path: path.write_bytes(
    b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000000,), }".ljust(117)
    + b"\n"
  ),
  "a safetensors header of 100 TB": lambda path: path.write_bytes(b"\0\0\0\0\0\x5b\0\0{}"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files(victim, kinds, kind, random, attempts, ledger):
  if kind not in kinds:
    pytest.skip("needs the extra 'safetensors'")
  copy, outcomes = victim(kind), []
  attacks = [(path, name) for path in copy.files for name in HOSTILE]
  random.shuffle(attacks)
  for path, name in attacks[: attempts(20)]:
    content = path.read_bytes()
    path.unlink()
    HOSTILE[name](path)
    what = f"{path.relative_to(copy.folder)} is {name}"
    outcomes.append(outcome_of(copy.read, copy.expected, what))
    os.rmdir(path) if name == "a folder" else path.unlink()
    path.write_bytes(content)
  ledger(f"hostile files, {kind}", outcomes)


def test_hostile_configs(victim, random, attempts, ledger):
  """Exports whose config.json is crafted, with sums that agree."""
  copy, outcomes = victim("npz export"), []
  path, sums = copy.folder / "config.json", copy.folder / "sha256.json"
  config, before = json.loads(path.read_text()), (path.read_bytes(), sums.read_bytes())
  values = [None, -1, 0, 10**9, 10**30, 1.5, float("nan"), "", "x" * 10**6, [], {}, True]
  leaves = list(_leaves(config))
  choices = [(leaf, value) for leaf in leaves for value in values]
  random.shuffle(choices)
  for leaf, value in choices[: attempts(60)]:
    changed = json.loads(before[0])
    node = changed
    for name in leaf[:-1]:
      node = node[name]
    node[leaf[-1]] = value
    path.write_text(json.dumps(changed))
    sums.write_text(json.dumps(json.loads(before[1]) | {"config.json": describe_file(str(path))}))
    outcome = outcome_of(copy.read, None, f"config.json: {leaf} is {str(value)[:20]!r}")
    # A value that is allowed there gives another model, not a failure.
    outcomes.append("harmless" if outcome.endswith("not noticed") else outcome)
  ledger("hostile configs, npz export", outcomes)


def _leaves(node, path=()):
  items = node.items() if isinstance(node, dict) else enumerate(node)
  for name, value in items:
    yield (*path, name)
    if isinstance(value, dict | list):
      yield from _leaves(value, (*path, name))


def test_hostile_gates(finetuned, tmp_path, attempts, ledger):
  """The comparison of 8 bits with float32, on limits and rows that let nothing through unseen."""
  rows = {
    "as fine-tuned": Path(f"{finetuned.data_dir}/dev.tsv").read_text(),
    "empty": "",
    "a header": "text\tlabel\n",
    "no labels": "text\nthe cat\n",
    "another label": "text\tlabel\nthe cat\tpurrs\n",
    "a bad row": "text\tlabel\nthe cat\tmeows\textra\n",
    "no token": "text\tlabel\n\N{ZERO WIDTH SPACE}\tmeows\n",
  }
  checkpoint, outcomes = f"{finetuned.workdir}/seed_0", []
  keeps = dict.fromkeys((math.nan, math.inf, -math.inf, -1e-09, 1.0000001), "as fine-tuned")
  attacks = [*keeps.items(), *((1.0, name) for name in rows if name != "as fine-tuned")]
  for keep, name in attacks[: attempts(11)]:
    (tmp_path / "dev.tsv").write_text(rows[name])
    gate = lambda keep=keep: evaluate.run(checkpoint, str(tmp_path), weights="int8", keep=keep)
    outcomes.append(outcome_of(gate, None, f"{keep}, {name}"))
  ledger("hostile gates of 8 bits", outcomes)
