"""The memory traffic of a compiled program, read from XLA's optimized text.

XLA has then chosen what becomes a kernel: a fusion, a product, a library's call. A kernel reads its
operands from memory and writes its results to it; tiles that it reads twice are not known.
"""

import collections
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpt_jax.apps.topologies import Chip

PRODUCTS, ATTENTION, TRAFFIC, NETWORK = "products", "attention", "other traffic", "network"
# The first pattern that occurs in an operation's path names its cause.
_CAUSES = {
  "optimizer": r"\boptimizer\b|gradient_norm",
  "logits": r"\bloss\)*/",
  "embedding": r"embed",
  # A sublayer's gradient joins that of the residual stream around it.
  "norm, residual, dropout": r"_norm\b|add_any$|block_\w+/[\w()]*$",
  "weights in 16 bits": r"/(in|out|qkv|gate)/convert_element_type$",
  "MLP activation": r"/mlp\b",
  "q, k, v layout": r"attention",
  "other": r"",
}
_SCORES = re.compile(r"/scores\b")  # the scope of attention_plain.attend_allowed
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
CAUSES = (PRODUCTS, ATTENTION, *_CAUSES, *COLLECTIVES)
# Shares of an H200's peaks (989 TFLOP/s, 4.8 TB/s). From the profile of a step of GPT-1 (RESULTS,
# One H200): 22.9 TFLOP of products in 31.9 ms are about 713 TFLOP/s; attention reached 184, its
# FLOPs counted without a causal mask. 4.0 TB/s of all other kernels is assumed, not measured.
PRODUCTS_SHARE, ATTENTION_SHARE, BANDWIDTH_SHARE = 0.72, 0.19, 0.83

_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"}
_FREE |= {"opt-barrier", "partition-id"}
_PARTS = {"slice", "dynamic-slice", "gather"}
_ELEMENTWISE = {"bitcast", "copy", "convert", "select", "multiply", "add", "subtract", "reshape"}
_ELEMENTWISE |= {"broadcast", "transpose"}
_SHAPE = re.compile(r"\b(pred|b?f\d+\w*|[csu]\d+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
# name = type op(operands), attributes
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(([^)]*)\)(.*)$")
_NAME = re.compile(r"%([\w.\-]+)")


class Kernel(NamedTuple):
  """One or several equal operations of a step, on one device."""

  cause: str  # of CAUSES
  path: str  # of our modules, such as jvp(Model)/trunk/block_N/mlp/mul
  kind: str  # of a fusion, the target of a call, or the instruction
  result: str  # its type
  runs: int  # in a step
  # Bytes of all runs, as the rest; a collective has the larger of what it is given and gives, as
  # written.
  read: float
  written: float
  flops: float  # of its matrix products

  @property
  def moved(self) -> float:
    return self.read + self.written


class _Instruction(NamedTuple):
  """A line of the text."""

  name: str
  type: str  # such as bf16[64,512]{1,0}, or several in parentheses
  op: str
  operands: tuple[str, ...]  # their names
  attributes: str  # what follows them
  is_root: bool

  def attribute(self, name: str) -> str:
    """The last value of name=value, name={values} or "name":"value"; "" without it."""
    pattern = rf'\b{name}"?[=:](?:"([^"]*)"|\{{([^}}]*)\}}|([%\w.\-]+))'
    values = re.findall(pattern, self.attributes)
    return "".join(values[-1]) if values else ""

  def called(self, *attributes: str) -> list[str]:
    """The computations that these attributes name."""
    return [name for key in attributes for name in _NAME.findall(self.attribute(key))]


_Computations = Mapping[str, Sequence[_Instruction]]


def kernels(text: str) -> list[Kernel]:
  """The kernels of a step, of XLA's optimized text; equal ones together, the largest first.

  The body of a loop counts as often as it runs, of a conditional the branch that moves most.
  """
  found = _sums(_walk(*_parsed(text), 1), 4)
  return sorted(found, key=lambda kernel: -kernel.moved)


def by_cause(found: Iterable[Kernel]) -> dict[str, Kernel]:
  """The sums over the kernels of each cause, in the order of CAUSES."""
  sums = {kernel.cause: kernel for kernel in _sums(found, 1)}
  return {cause: sums[cause] for cause in CAUSES if cause in sums}


def _sums(found: Iterable[Kernel], fields: int) -> list[Kernel]:
  """The sums over the kernels that have their first fields in common."""
  sums: dict[tuple, Kernel] = {}
  for kernel in found:
    key = kernel[:fields]
    before = sums[key][4:] if key in sums else (0, 0.0, 0.0, 0.0)
    sums[key] = Kernel(*kernel[:4], *map(operator.add, before, kernel[4:]))
  return list(sums.values())


def seconds(found: Iterable[Kernel], chip: Chip, attention: float) -> dict[str, float]:
  """Seconds that the products, attention, other kernels and collectives of a step take, one after
  the other, at the shares of the chip's peaks that an H200 reached.

  attention: FLOPs of attention, counted whole; those of its kernels are in no text.
  """
  times = dict.fromkeys((PRODUCTS, ATTENTION, TRAFFIC, NETWORK), 0.0)
  for kernel in found:
    at_bandwidth = kernel.moved / (BANDWIDTH_SHARE * chip.bandwidth)
    if kernel.cause in COLLECTIVES:
      # A sum goes around the ring twice, once added up and once complete.
      rounds = 2 if kernel.cause == "all-reduce" else 1
      times[NETWORK] += rounds * kernel.moved / chip.interconnect
    elif kernel.cause in times:
      times[kernel.cause] += max(at_bandwidth, kernel.flops / (PRODUCTS_SHARE * chip.flops))
    else:
      times[TRAFFIC] += at_bandwidth
  if times[ATTENTION]:
    times[ATTENTION] = max(times[ATTENTION], attention / (ATTENTION_SHARE * chip.flops))
  return times


def _parsed(text: str) -> tuple[_Computations, str]:
  """The instructions of each computation, and the name of the first one to run."""
  computations: dict[str, list[_Instruction]] = {}
  entry = current = ""
  for line in text.splitlines():
    if not current:
      if match := _COMPUTATION.match(line):
        current = match[2]
        computations[current] = []
        entry = current if match[1] else entry
    elif line.startswith("}"):
      current = ""
    elif match := _INSTRUCTION.match(line):
      root, name, type_, op, operands, attributes = match.groups()
      names = tuple(_NAME.findall(operands))
      computations[current].append(_Instruction(name, type_, op, names, attributes, bool(root)))
  return computations, entry


def _walk(computations: _Computations, name: str, runs: int) -> Iterator[Kernel]:
  """The kernels of a computation that a step runs so often."""
  table = {instruction.name: instruction for instruction in computations[name]}
  for instruction in table.values():
    op = instruction.op
    if op.removesuffix("-done") in COLLECTIVES:  # whose type is the result's alone
      start = table[instruction.operands[0]] if op.endswith("-done") else instruction
      given = sum(_bytes(table[x].type) for x in start.operands)
      most = max(given, _bytes(instruction.type))  # of a reduce-scatter what it is given
      yield _kernel(instruction, [], runs)._replace(written=runs * most)
    elif op in _FREE or op.endswith(("-done", "-update")) or op.startswith(COLLECTIVES):
      continue
    elif op == "while":
      count = re.search(r"known_trip_count\W+n\W+(\d+)", instruction.attributes)
      (body,) = instruction.called("body")
      yield from _walk(computations, body, runs * (int(count[1]) if count else 1))
    elif op == "conditional":
      keys = ("branch_computations", "true_computation", "false_computation")
      branches = [list(_walk(computations, x, runs)) for x in instruction.called(*keys)]
      yield from max(branches, key=lambda branch: sum(kernel.moved for kernel in branch))
    elif op in ("call", "async-start"):
      for called in instruction.called("to_apply", "calls"):
        yield from _walk(computations, called, runs)
    elif op.startswith("fusion"):
      (body,) = instruction.called("calls")
      yield _kernel(instruction, computations[body], runs)
    else:
      # A body of its own, whose operands are parameters.
      names = dict.fromkeys(instruction.operands)
      inputs = [table[x]._replace(op="parameter", attributes="", is_root=False) for x in names]
      yield _kernel(instruction, [*inputs, instruction._replace(is_root=True)], runs)


def _kernel(instruction: _Instruction, body: Sequence[_Instruction], runs: int) -> Kernel:
  result = re.sub(r"\{[^}]*\}", "", instruction.type)  # without layouts
  # Some fusions have no name; that of their last instruction then says where they come from.
  names = [x.attribute("op_name") for x in (*body, instruction)]
  path = next(filter(None, reversed(names)), "")
  # One name for all layers, without the functions that are compiled.
  path = re.sub(r"\bjit\(\w+\)/", "", re.sub(r"\b(block|layer)_\d+", r"\1_N", path))
  kind = instruction.attribute("custom_call_target") or instruction.attribute("kind")
  kind = kind or instruction.op.removesuffix("-done")
  if not body:
    return Kernel(kind, path, kind, result, runs, 0.0, runs * _bytes(result), 0.0)
  read, written = _traffic(body)
  types = {x.name: x.type for x in body}
  flops = sum(_flops(x, types) for x in body)
  cause = next(name for name, where in _CAUSES.items() if re.search(where, path))
  if flops:
    cause = PRODUCTS
  is_call = instruction.op == "custom-call" and not flops
  if _SCORES.search(path) or (is_call and "attention" in path):
    cause = ATTENTION
  return Kernel(cause, path, kind, result, runs, runs * read, runs * written, runs * flops)


def _traffic(body: Sequence[_Instruction]) -> tuple[float, float]:
  """Bytes that a kernel reads and writes: of an array all that is not sliced away."""
  table = {x.name: x for x in body}
  users = collections.defaultdict(list)
  for x in body:
    for name in x.operands:
      users[name].append(x)

  (root,) = (x for x in body if x.is_root)
  in_place = dict(_in_place(root))  # of a call, whose array was allocated, and counted, before

  def read(x: _Instruction, depth: int = 6) -> float:
    if x.name in in_place.values():
      return 0.0
    total = 0.0
    for user in users[x.name]:
      is_first = user.operands[0] == x.name
      if user.op in _PARTS and is_first:
        total += _bytes(user.type)
      elif user.op in _ELEMENTWISE and depth and not user.is_root:
        total += read(user, depth - 1)
      elif user.op != "dynamic-update-slice" or not is_first:  # else it is written in place
        return _bytes(x.type)
    return min(total, _bytes(x.type))

  def written(x: _Instruction) -> float:
    if x.op == "tuple":
      return sum(written(table[name]) for name in x.operands)
    if x.op == "bitcast":
      return written(table[x.operands[0]])
    if x.op == "custom-call":
      results = [match[0] for match in _SHAPE.finditer(x.type)]
      # Without its workspace.
      whole = (y for y in results if not re.fullmatch(r"[su]8\[\d+\]", y))
      return sum(map(_bytes, whole)) - sum(_bytes(results[n]) for n in in_place)
    return _bytes(table[x.operands[1]].type if x.op == "dynamic-update-slice" else x.type)

  return sum(read(x) for x in body if x.op == "parameter"), written(root)


def _in_place(call: _Instruction) -> Iterator[tuple[int, str]]:
  """The number of each result that is written into an operand's array, and that operand."""
  _, _, pairs = call.attributes.partition("output_to_operand_aliasing=")
  for result, operand in re.findall(r"\{(\d*)\}: \((\d+), \{\}\)", pairs):
    yield int(result or 0), call.operands[int(operand)]


def _flops(instruction: _Instruction, types: Mapping[str, str]) -> float:
  """Of a product, XLA's own or a library's: 2 x the elements of its result x those of each sum."""
  match = re.search(r'lhs_contracting_dim(?:ension)?s\W+([\d,"]*)', instruction.attributes)
  if not match:
    return 0.0
  (_, left), (_, result) = _shapes(types[instruction.operands[0]])[0], _shapes(instruction.type)[0]
  inner = math.prod(left[int(axis)] for axis in re.findall(r"\d+", match[1]))
  return 2.0 * math.prod(result) * inner


def _bytes(type_: str) -> float:
  """Bytes of an array's type, or of a tuple's."""
  return sum(bits / 8 * math.prod(sizes) for bits, sizes in _shapes(type_))


def _shapes(type_: str) -> list[tuple[int, list[int]]]:
  """The bits of an element and the sizes of each array of a type."""
  shapes = []
  for dtype, sizes in _SHAPE.findall(type_):
    bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
    shapes.append((bits, [int(size) for size in sizes.split(",") if size]))
  return shapes
