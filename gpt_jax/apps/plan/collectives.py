"""The bytes that a compiled program moves between devices, read from its HLO."""

import math
import re
from collections import Counter, defaultdict

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(OPERATIONS)})(-start)?\(")
_CALLED = re.compile(r"(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+)(?:e\dm\d\w*)?\[([\d,]*)\]")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_COUNTED_GROUPS = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")


def bytes_moved(hlo: str) -> dict[str, int]:
  """operation -> bytes on one device in one run of the program.

  Of an all-gather these are the bytes of its result, of the others those of what goes in. The body
  of a loop counts as often as it runs, where the compiler knows how often.

  Args:
    hlo: the text of a compiled program (jax.stages.Compiled.as_text).
  """
  own: dict[str, list[tuple[str, int]]] = defaultdict(list)
  called: dict[str, list[tuple[str, int]]] = defaultdict(list)
  name = entry = ""
  for line in hlo.splitlines():
    if (match := _COMPUTATION.match(line)) is not None:
      name = match[1]
      entry = name if line.startswith("ENTRY") else entry
      continue
    if (match := _COLLECTIVE.search(line)) is not None:
      own[name].append(_collective(match, line))
      continue
    trips = _TRIPS.search(line)
    times = int(trips[1]) if trips else 1
    callees = _CALLED.findall(line)
    for branches in _BRANCHES.findall(line):
      callees += [branch.strip().lstrip("%") for branch in branches.split(",")]
    # A conditional counts all of its branches: an upper bound.
    called[name] += [(callee, times) for callee in callees]

  def total(computation: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for operation, size in own[computation]:
      sums[operation] += size
    for callee, times in called[computation]:
      for operation, size in total(callee).items():
        sums[operation] += times * size
    return sums

  return dict(total(entry))


def _collective(match: re.Match, line: str) -> tuple[str, int]:
  """The name of an operation, and the bytes of its largest side on a device."""
  shapes, operation, start = match.groups()
  sizes = [_size(dtype, dims) for dtype, dims in _ARRAY.findall(shapes)]
  if operation == "all-gather":
    # A start returns what goes in and what comes out.
    return operation, max(sizes) if start else sum(sizes)
  size = sum(sizes) // (2 if start and operation == "collective-permute" else 1)
  if operation == "reduce-scatter":
    # Its result is one device's part; what goes in is the whole.
    size *= _group_size(line)
  return operation, size


def _size(dtype: str, dims: str) -> int:
  elements = 1
  for dim in dims.split(","):
    elements *= int(dim or 1)
  bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype))
  return elements * bits // 8


def _group_size(line: str) -> int:
  """The devices that take part together."""
  if match := _LISTED_GROUPS.search(line):
    return len(match[1].split(","))
  if match := _COUNTED_GROUPS.search(line):
    return int(match[1])
  if match := _MESH_GROUPS.search(line):
    sizes = dict(axis.split("=") for axis in match[1].split(","))
    return math.prod(int(sizes[axis.strip()]) for axis in match[2].split(","))
  raise ValueError(f"no replica_groups in {line!r}")
