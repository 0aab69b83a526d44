"""Damaged files: bits flipped, files cut, emptied, zeroed, removed: none silent, no traceback."""

import pytest
from conftest import outcome_of

pytestmark = pytest.mark.attack
KINDS = ("data", "run", "result", "npz export", "safetensors export", "hf export")


def flip(content, random):
  damaged = bytearray(content)
  bit = int(random.integers(8 * len(content)))
  damaged[bit // 8] ^= 1 << (bit % 8)
  return bytes(damaged)


DAMAGE = {
  "empty": lambda content, random: b"",
  "half": lambda content, random: content[: len(content) // 2],
  "a byte less": lambda content, random: content[:-1],
  "two bytes more": lambda content, random: content + b"\0\0",
  "zeros": lambda content, random: bytes(len(content)),
  "junk": lambda content, random: random.bytes(len(content)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits(victim, kinds, kind, random, attempts, ledger):
  if kind not in kinds:
    pytest.skip("needs the extra 'safetensors'")
  copy, outcomes = victim(kind), []
  for _ in range(attempts(30)):
    path = copy.files[random.integers(len(copy.files))]
    content = path.read_bytes()
    if content:
      path.write_bytes(flip(content, random))
      outcomes.append(outcome_of(copy.read, copy.expected, path.relative_to(copy.folder)))
      path.write_bytes(content)
  ledger(f"bit flips, {kind}", outcomes)


@pytest.mark.parametrize("kind", KINDS)
def test_other_damage(victim, kinds, kind, random, attempts, ledger):
  if kind not in kinds:
    pytest.skip("needs the extra 'safetensors'")
  copy, outcomes = victim(kind), []
  damages = [(path, name) for path in copy.files for name in (*DAMAGE, "removed")]
  random.shuffle(damages)
  for path, name in damages[: attempts(20)]:
    content = path.read_bytes()
    if name == "removed":
      path.unlink()
    else:
      path.write_bytes(DAMAGE[name](content, random))
    what = f"{path.relative_to(copy.folder)} {name}"
    outcomes.append(outcome_of(copy.read, copy.expected, what))
    path.write_bytes(content)
  ledger(f"other damage, {kind}", outcomes)
