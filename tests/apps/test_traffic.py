"""The traffic of compiled programs: by hand for a text, against the arithmetic of a step, and what
a GPU's step may move at most.
"""

import pytest

from gpt_jax.apps import traffic
from gpt_jax.apps.topologies import Chip

PROGRAM = """
HloModule jit_step

%part (p0: f32[8,100], p1: s32[]) -> f32[1,100] {
  %p0 = f32[8,100]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  ROOT %row = f32[1,100]{1,0} dynamic-slice(%p0, %p1, %p1), dynamic_slice_sizes={1,100}
}

%product (a: bf16[4,8], b: bf16[8,16]) -> bf16[4,16] {
  %a = bf16[4,8]{1,0} parameter(0)
  %b = bf16[8,16]{1,0} parameter(1)
  ROOT %dot = bf16[4,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (s: (s32[], f32[8,100])) -> (s32[], f32[8,100]) {
  %s = (s32[], f32[8,100]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8,100]{1,0} get-tuple-element(%s), index=1
  %f = f32[1,100]{1,0} fusion(%x, %i), kind=kLoop, calls=%part, metadata={op_name="jit(f)/jvp(loss)/x"}
  ROOT %t = (s32[], f32[8,100]{1,0}) tuple(%i, %x)
}

%small (p: f32[10]) -> f32[10] {
  ROOT %p = f32[10]{0} parameter(0)
}

%large (p: f32[10]) -> f32[10] {
  %p.1 = f32[10]{0} parameter(0)
  ROOT %c = f32[10]{0} copy(%p.1), metadata={op_name="cond/optimizer/add"}
}

ENTRY %main (a: bf16[4,8], b: bf16[8,16], s: (s32[], f32[8,100]), v: f32[10]) -> f32[10] {
  %a.1 = bf16[4,8]{1,0} parameter(0)
  %b.1 = bf16[8,16]{1,0} parameter(1)
  %s.1 = (s32[], f32[8,100]{1,0}) parameter(2)
  %v = f32[10]{0} parameter(3)
  %m = bf16[4,16]{1,0} fusion(%a.1, %b.1), kind=kCustom, calls=%product, metadata={op_name="m"}, backend_config={"kind":"__triton"}
  %w = (s32[], f32[8,100]{1,0}) while(%s.1), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"6"}}
  %k = (f32[10]{0}, f32[2,5]{1,0}) custom-call(%v), custom_call_target="mosaic", metadata={op_name="Model/block_3/attention/forward"}
  %r = f32[10]{0} all-reduce-start(%v), to_apply=%small, metadata={op_name="n"}
  %d = f32[10]{0} all-reduce-done(%r)
  ROOT %o = f32[10]{0} conditional(%v, %v, %v), branch_computations={%small, %large}
}
"""  # noqa: E501  # as XLA writes it


def test_each_kind_of_kernel_is_counted():
  kernels = traffic.kernels(PROGRAM)
  found = {x.cause: (x.path, x.kind, x.runs, x.read, x.written, x.flops) for x in kernels}
  assert len(kernels) == 5 and found == {
    # A slice reads its part alone; 6 times.
    "logits": ("jvp(loss)/x", "kLoop", 6, 6 * (400 + 4), 6 * 400, 0),
    "products": ("m", "__triton", 1, 64 + 256, 128, 2 * 4 * 8 * 16),
    "attention": ("Model/block_N/attention/forward", "mosaic", 1, 40, 80, 0),
    "network": ("n", "all-reduce", 1, 40, 40, 0),
    "optimizer": ("cond/optimizer/add", "copy", 1, 40, 40, 0),  # the larger branch
  }
  sums = traffic.by_cause([*kernels, *kernels])
  assert sums["logits"].moved == 12 * 804 and list(sums) == sorted(sums, key=traffic.CAUSES.index)


def test_the_time_of_each_part():
  chip = Chip(memory=1e9, bandwidth=1e3, interconnect=80, flops=1e4)
  times = traffic.seconds(traffic.kernels(PROGRAM), chip, attention=1900)
  rate = traffic.BANDWIDTH_SHARE * 1e3
  assert times == pytest.approx(
    {"products": 448 / rate, "attention": 1.0, "network": 1.0, "other traffic": (4824 + 80) / rate}
  )
