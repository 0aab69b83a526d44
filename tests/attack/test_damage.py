"""Damaged files: bits flipped, files cut, emptied, zeroed, removed: none silent, no traceback.

A report is written whatever its files hold, with a note where one has another checksum.
"""

import pytest
from outcomes import outcome_of

pytestmark = pytest.mark.attack
# Kind -> share of the attempts.
KINDS = dict.fromkeys(("data", "run", "result", "npz export", "safetensors export", "hf export"), 1)
KINDS |= dict.fromkeys(("sharded data", "finetuned report", "pretrained report"), 0.1)
KINDS |= {"stablehlo export": 0.015, "onnx export": 0.1}
EXTRAS = {
  "safetensors export": "safetensors",
  "hf export": "safetensors",
  "onnx export": "jax2onnx",
}


def flip(content, random):
  damaged = bytearray(content)
  bit = int(random.integers(8 * len(content)))
  damaged[bit // 8] ^= 1 << (bit % 8)
  return bytes(damaged)


@pytest.fixture(autouse=True)
def packages(kind):
  if kind in EXTRAS:
    pytest.importorskip(EXTRAS[kind])


DAMAGE = {
  "empty": lambda content, random: b"",
  "half": lambda content, random: content[: len(content) // 2],
  "a byte less": lambda content, random: content[:-1],
  "two bytes more": lambda content, random: content + b"\0\0",
  "zeros": lambda content, random: bytes(len(content)),
  "junk": lambda content, random: random.bytes(len(content)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits(victim, kind, random, attempts, ledger):
  count = attempts(30 * KINDS[kind])
  copy, outcomes = victim(kind), []
  for _ in range(count):
    path = copy.files[random.integers(len(copy.files))]
    content = path.read_bytes()
    if content:
      path.write_bytes(flip(content, random))
      outcomes.append(outcome_of(copy.read, copy.expected, path.relative_to(copy.folder)))
      path.write_bytes(content)
  ledger(f"bit flips, {kind}", outcomes)


@pytest.mark.parametrize("kind", KINDS)
def test_other_damage(victim, kind, random, attempts, ledger):
  count = attempts(20 * KINDS[kind])
  copy, outcomes = victim(kind), []
  # A report of a run that has not written a file yet lacks a section.
  names = DAMAGE if "report" in kind else (*DAMAGE, "removed")
  damages = [(path, name) for path in copy.files for name in names]
  random.shuffle(damages)
  for path, name in damages[:count]:
    content = path.read_bytes()
    if name == "removed":
      path.unlink()
    else:
      path.write_bytes(DAMAGE[name](content, random))
    what = f"{path.relative_to(copy.folder)} {name}"
    outcomes.append(outcome_of(copy.read, copy.expected, what))
    path.write_bytes(content)
  ledger(f"other damage, {kind}", outcomes)
