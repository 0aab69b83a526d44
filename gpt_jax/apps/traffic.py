"""The memory traffic of a compiled program, read from XLA's optimized text.

XLA has then chosen what becomes a kernel: a fusion, a product, a library's call. A kernel reads its
operands from memory and writes its results to it; tiles that it reads twice are not known.
"""

import collections
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpt_jax.apps.topologies import Chip

# The first pattern that occurs in an operation's path names its cause. Attention's own kernels and
# scores, products and collectives are known before.
_CAUSES = {
  "optimizer": r"\boptimizer\b|gradient_norm",
  "logits": r"\bloss\)*/",
  "embedding": r"embed",
  # A sublayer's gradient joins that of the residual stream around it.
  "norm, residual, dropout": r"_norm\b|add_any$|block_\w+/[\w()]*$",
  "weights in 16 bits": r"/(in|out|qkv|gate)/convert_element_type$",
  "MLP activation": r"/mlp\b",
  "q, k, v layout": r"attention",
}
PRODUCTS, ATTENTION, NETWORK, OTHER = "products", "attention", "network", "other"
TRAFFIC = "other traffic"
CAUSES = (PRODUCTS, ATTENTION, *_CAUSES, NETWORK, OTHER)
# Shares of an H200's peaks, 989 TFLOP/s and 4.8 TB/s, in a step of GPT-1 (configs/RESULTS.md, One
# H200): of its products 713; of attention's kernels, counted whole, 184; 4.0 is assumed of others.
PRODUCTS_SHARE, ATTENTION_SHARE, BANDWIDTH_SHARE = 0.72, 0.19, 0.83
_SCORES = re.compile(r"/scores\b")  # the scope of attention_plain.attend_allowed
_COLLECTIVE = re.compile(
  r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)\b"
)
# Instructions that move nothing, or whose `-start` has been counted.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"}
_FREE |= {"opt-barrier", "partition-id", "replica-id"}
_FINISHES = re.compile(r"-(done|update)$")
_ELEMENTWISE = {"bitcast", "copy", "convert", "select", "multiply", "add", "subtract"}
_ELEMENTWISE |= {"reshape", "broadcast", "transpose"}
_WITHIN = 6  # elementwise instructions between a parameter and the slices of it that are read

_SHAPE = re.compile(r"\b(pred|b?f\d+\w*|[csu]\d+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")


class Instruction(NamedTuple):
  """A line of the text."""

  name: str
  type: str  # such as bf16[64,512]{1,0}, or several in parentheses
  op: str
  operands: tuple[str, ...]  # their names
  attributes: str  # what follows them
  is_root: bool

  def called(self, attribute: str) -> list[str]:
    """The computations that an attribute names, such as body=%b or branch_computations={%a, %b}."""
    match = re.search(rf"\b{attribute}=(?:\{{([^}}]*)\}}|(%[\w.\-]+))", self.attributes)
    return _NAME.findall(match[1] or match[2]) if match else []

  def quoted(self, attribute: str) -> str:
    """The text of ATTRIBUTE="text" or "ATTRIBUTE":"text"; "" without it."""
    match = re.search(rf'\b{attribute}"?[=:]"([^"]*)"', self.attributes)
    return match[1] if match else ""

  def plain(self, attribute: str) -> str:
    """The word of ATTRIBUTE=word; "" without it."""
    match = re.search(rf"\b{attribute}=(\w+)", self.attributes)
    return match[1] if match else ""


Computations = Mapping[str, Sequence[Instruction]]


class Kernel(NamedTuple):
  """One or several equal operations of a step, on one device."""

  cause: str  # of CAUSES
  path: str  # of our modules, such as jvp(Model)/trunk/block_N/mlp/mul
  kind: str  # of fusion, the call's target, or the collective
  result: str  # its type
  runs: int  # in a step
  read: float  # bytes of all runs, as the rest
  written: float
  flops: float  # of its matrix products

  @property
  def moved(self) -> float:
    return self.read + self.written


def kernels(text: str) -> list[Kernel]:
  """The kernels of a step, of XLA's optimized text; equal ones together, the largest first.

  The body of a loop counts as often as it runs, of a conditional the branch that moves most.
  """
  computations, entry = _parsed(text)
  groups: dict[tuple, list[Kernel]] = collections.defaultdict(list)
  for kernel in _walk(computations, entry, 1):
    groups[kernel[:4]].append(kernel)
  result = [
    Kernel(*key, *(sum(column) for column in zip(*(kernel[4:] for kernel in group), strict=True)))
    for key, group in groups.items()
  ]
  return sorted(result, key=lambda kernel: -kernel.moved)


def by_cause(found: Iterable[Kernel]) -> dict[str, Kernel]:
  """The sums over the kernels of each cause, in the order of CAUSES."""
  sums = {}
  for kernel in found:
    total = sums.get(kernel.cause, Kernel(kernel.cause, "", "", "", 0, 0.0, 0.0, 0.0))
    added = (a + b for a, b in zip(total[4:], kernel[4:], strict=True))
    sums[kernel.cause] = Kernel(kernel.cause, "", "", "", *added)
  return {cause: sums[cause] for cause in CAUSES if cause in sums}


def seconds(found: Iterable[Kernel], chip: Chip, attention: float) -> dict[str, float]:
  """Seconds that the products, attention, other kernels and collectives of a step take, by shares
  of the chip's peaks that an H200 reached, one after the other.

  attention: FLOPs of attention, counted whole; those of kernels of our own are in no text.
  """
  times = dict.fromkeys((PRODUCTS, ATTENTION, TRAFFIC, NETWORK), 0.0)
  for kernel in found:
    at_bandwidth = kernel.moved / (BANDWIDTH_SHARE * chip.bandwidth)
    if kernel.cause == NETWORK:
      # A sum goes around the ring twice, once added up and once complete.
      rounds = 2 if kernel.kind.startswith("all-reduce") else 1
      times[NETWORK] += rounds * kernel.written / chip.interconnect
    elif kernel.cause in times:
      times[kernel.cause] += max(at_bandwidth, kernel.flops / (PRODUCTS_SHARE * chip.flops))
    else:
      times[TRAFFIC] += at_bandwidth
  if times[ATTENTION]:
    times[ATTENTION] = max(times[ATTENTION], attention / (ATTENTION_SHARE * chip.flops))
  return times


def bytes_of(type_: str) -> float:
  """Bytes of an array's type, or of a tuple's."""
  return sum(_bytes(*shape) for shape in _SHAPE.findall(type_))


def _bytes(dtype: str, sizes: str) -> float:
  bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
  return bits / 8 * _count(_sizes(sizes))


def _sizes(text: str) -> list[int]:
  return [int(size) for size in text.split(",") if size]


def _count(sizes: Iterable[int]) -> int:
  result = 1
  for size in sizes:
    result *= size
  return result


def _parsed(text: str) -> tuple[dict[str, list[Instruction]], str]:
  """The instructions of each computation, and the name of the first one to run."""
  computations: dict[str, list[Instruction]] = {}
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
      computations[current].append(_instruction(match[2], match[3], bool(match[1])))
  return computations, entry


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
  """Of `type op(operands), attributes`."""
  end = _closing(text) if text.startswith("(") else text.index(" ")
  type_, rest = text[:end], text[end:].lstrip()
  op, _, rest = rest.partition("(")
  end = _closing(f"({rest}")
  return Instruction(name, type_, op, tuple(_NAME.findall(rest[:end])), rest[end:], is_root)


def _closing(text: str) -> int:
  """Where what follows the parenthesis that opens a text begins."""
  depth = 0
  for match in re.finditer(r"[()]", text):
    depth += 1 if match[0] == "(" else -1
    if not depth:
      return match.end()
  return len(text)


def _walk(computations: Computations, name: str, runs: int) -> Iterator[Kernel]:
  """The kernels of a computation that a step runs so often."""
  instructions = computations[name]
  types = {instruction.name: instruction.type for instruction in instructions}
  for instruction in instructions:
    op = instruction.op
    if op in _FREE or _FINISHES.search(op):
      continue
    if op == "while":
      count = re.search(r"known_trip_count\W+n\W+(\d+)", instruction.attributes)
      (body,) = instruction.called("body")
      yield from _walk(computations, body, runs * (int(count[1]) if count else 1))
    elif op == "conditional":
      yield from _largest_branch(computations, instruction, runs)
    elif op == "call" or op == "async-start":
      for called in instruction.called("to_apply") or instruction.called("calls"):
        yield from _walk(computations, called, runs)
    else:
      yield _kernel(computations, instruction, types, runs)


def _largest_branch(
  computations: Computations, instruction: Instruction, runs: int
) -> Sequence[Kernel]:
  names = instruction.called("branch_computations")
  names = names or instruction.called("true_computation") + instruction.called("false_computation")
  branches = [list(_walk(computations, name, runs)) for name in names]
  return max(branches, key=lambda branch: sum(kernel.moved for kernel in branch))


def _kernel(
  computations: Computations, instruction: Instruction, types: Mapping[str, str], runs: int
) -> Kernel:
  body: Sequence[Instruction] = ()
  if instruction.op.startswith("fusion"):
    (called,) = instruction.called("calls")
    body = computations[called]
    read, written = _fusion_bytes(body)
  else:
    read, written = _plain_bytes(instruction, types)
  # Some fusions have no name; that of their last instruction then says where they come from.
  names = [x.quoted("op_name") for x in (*body, instruction)]
  path = _folded(next(filter(None, reversed(names)), ""))
  kind = instruction.quoted("custom_call_target") or instruction.quoted("kind")
  kind = kind or instruction.plain("kind") or instruction.op.removesuffix("-start")
  flops = _library_flops(instruction, types)
  within = {x.name: x.type for x in body}
  for x in (*body, instruction):
    if x.op == "dot":
      flops += _dot_flops(x, within or types)
  cause = _cause(instruction.op, path, flops)
  result = re.sub(r"\{[^}]*\}", "", instruction.type)  # without layouts
  return Kernel(cause, path, kind, result, runs, runs * read, runs * written, runs * flops)


def _folded(path: str) -> str:
  """A path of one name for all layers, without the functions that are compiled."""
  path = re.sub(r"\b(block|layer)_\d+", r"\1_N", path)
  return re.sub(r"\bjit\(\w+\)/", "", path)


def _cause(op: str, path: str, flops: float) -> str:
  if _COLLECTIVE.match(op):
    return NETWORK
  is_kernel = op == "custom-call" and not flops and "attention" in path
  if is_kernel or _SCORES.search(path):
    return ATTENTION
  if flops:
    return PRODUCTS
  return next((name for name, where in _CAUSES.items() if re.search(where, path)), OTHER)


def _plain_bytes(instruction: Instruction, types: Mapping[str, str]) -> tuple[float, float]:
  """Bytes that an instruction other than a fusion reads and writes."""
  read = sum(bytes_of(types[name]) for name in instruction.operands if name in types)
  written = bytes_of(instruction.type)
  if re.match(r"(all-gather|collective-permute|copy)-start", instruction.op):
    written -= read  # its type has its operands, too
  if instruction.op == "dynamic-update-slice":  # in place
    update = bytes_of(types[instruction.operands[1]])
    return update, update
  if "slice" in instruction.op or instruction.op == "gather":
    return written, written
  if _is_library(instruction):
    written = _bytes(*_SHAPE.findall(instruction.type)[0])  # without its workspace
  return read, written


def _fusion_bytes(body: Sequence[Instruction]) -> tuple[float, float]:
  """Bytes that a fusion reads and writes."""
  users: dict[str, list[Instruction]] = collections.defaultdict(list)
  table = {x.name: x for x in body}
  for x in body:
    for name in x.operands:
      users[name].append(x)

  def read(x: Instruction, depth: int = 0) -> float:
    """Bytes of an array that are read: those of its slices, where nothing else reads it."""
    total = 0.0
    for user in users[x.name]:
      is_first = user.operands[0] == x.name
      if user.op in ("slice", "dynamic-slice", "gather") and is_first:
        total += bytes_of(user.type)
      elif user.op == "dynamic-update-slice" and is_first:
        pass  # written in place
      elif user.op in _ELEMENTWISE and depth < _WITHIN and not user.is_root:
        total += read(user, depth + 1)
      else:
        return bytes_of(x.type)
    return min(total, bytes_of(x.type))

  def written(x: Instruction) -> float:
    if x.op == "tuple":
      return sum(written(table[name]) for name in x.operands)
    if x.op == "bitcast":
      return written(table[x.operands[0]])
    return bytes_of(table[x.operands[1]].type if x.op == "dynamic-update-slice" else x.type)

  (root,) = (x for x in body if x.is_root)
  return sum(read(x) for x in body if x.op == "parameter"), written(root)


def _is_library(instruction: Instruction) -> bool:
  """Whether it is a product by cuBLAS or another library."""
  return bool(re.search(r"gemm|matmul", instruction.quoted("custom_call_target")))


def _library_flops(instruction: Instruction, types: Mapping[str, str]) -> float:
  if not _is_library(instruction):
    return 0.0
  match = re.search(r'lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
  axes = re.findall(r"\d+", match[1]) if match else []
  return _product_flops(instruction, types, axes)


def _dot_flops(instruction: Instruction, types: Mapping[str, str]) -> float:
  match = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
  return _product_flops(instruction, types, match[1].split(",") if match else [])


def _product_flops(
  instruction: Instruction, types: Mapping[str, str], axes: Sequence[str]
) -> float:
  """2 x the elements of the result x those of each sum."""
  left = _sizes(_SHAPE.findall(types[instruction.operands[0]])[0][1])
  result = _sizes(_SHAPE.findall(instruction.type)[0][1])
  return 2.0 * _count(result) * _count(left[int(axis)] for axis in axes if axis)
