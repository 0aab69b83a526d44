#!/usr/bin/env bash
# What a GPU does, in 8 minutes: the most wanted first, and what is done is not done again:
#
#   bash launch/gpu/measure.sh OUT
#
# OUT: folder for the results; keep it, and the same command goes on where it ended. With ONLY="peers bits"
# only these pieces run, after the first; with SECONDS_LEFT=180 it ends after three minutes. The Python of .venv is
# used, or else that of PATH, with the extra `cuda` (pieces `peers` and `generation`: also `peers`; `tests`: `test`).
# launch/gpu/gpt1.py trains GPT-1 itself.
set -uo pipefail
usage="$(sed '1d;/^[^#]/,$d' "${BASH_SOURCE[0]}" | cut -c3-)"
case ${1:-} in
  -h | --help) echo "$usage"; exit ;;
esac
if [ $# != 1 ] || [[ "$1" = -* ]]; then  # it has no flags
  echo "$usage" >&2
  exit 2
fi
mkdir -p "$1"
out="$(realpath "$1")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export JAX_COMPILATION_CACHE_DIR="$out/compilation_cache"
export XLA_PYTHON_CLIENT_PREALLOCATE=false  # PyTorch takes turns with JAX
gpt1=(--config=configs/gpt1.py --config.trunk.dtype=bfloat16)
end=$((SECONDS + ${SECONDS_LEFT:-480}))

# piece NAME COMMAND…: runs it until the end of the time, into $out/NAME.log; $out/NAME.done says that it ended well.
piece() {
  local name=$1 code=0 began=$SECONDS
  shift
  [ -e "$out/$name.done" ] && return
  [ -z "${ONLY:-}" ] || [[ " arithmetic $ONLY " == *" $name "* ]] || return
  [ $((end - SECONDS)) -lt 20 ] && echo "$name: no time is left; the same command goes on" && return
  echo "$name: $*" | head -1
  timeout --signal=TERM --kill-after=10 $((end - SECONDS)) "$@" >> "$out/$name.log" 2>&1 || code=$?
  if [ $code = 0 ]; then touch "$out/$name.done"; else echo "$name: exit code $code, see $out/$name.log"; fi
  echo "$name: $((SECONDS - began)) s"
}

benchmark() {  # benchmark NAME FLAGS…
  local name=$1
  shift
  piece "$name" "$python" launch/benchmark.py --out="$out/$name.json" --overwrite "$@"
}

# jax#40633: some versions compute wrong values on some GPUs.
piece arithmetic "$python" -c '
import jax, jax.numpy as jnp, numpy as np
assert jax.default_backend() == "gpu", f"no GPU: {jax.devices()}"
assert (jnp.ones(4) + 1 == 2).all(), jnp.ones(4) + 1
a, b = np.random.default_rng(0).standard_normal((2, 512, 512), np.float32)
error = np.abs(jnp.matmul(a, b, precision="highest") - a @ b).max()
assert error < 1e-3, error
print(jax.devices(), jax.__version__, "adds and multiplies")'
[ -e "$out/arithmetic.done" ] || { cat "$out/arithmetic.log" >&2; exit 1; }

benchmark step-64 "${gpt1[@]}" --only=step --batch_size=64
benchmark peers "${gpt1[@]}" --only=step --peers --batch_size=64

# Values and gradients of each attention kernel beside plain attention in float32: at most 3 times the error of plain's bfloat16.
for backend in mosaic fused; do
  piece "kernels-$backend" "$python" -c '
import jax, jax.numpy as jnp, sys
from gpt_jax.ops.attention import AttentionMask, Dropout, attention
from gpt_jax.ops.dropout import step_key
rows, length, heads = map(int, sys.argv[2:])
qkv = jax.random.normal(jax.random.key(0), (rows, length, 3, heads, 64))
weights = jax.random.normal(jax.random.key(1), (rows, length, heads, 64))
segments = jnp.arange(length)[None] // jnp.arange(60, 60 + 10 * rows, 10)[:, None]
def gradients(backend, mask, dtype):
  dropout = Dropout(0.1, step_key(0, 0))
  def output(x): return attention(x, mask, dropout=dropout, backend=backend)
  def with_gradient(x): return output(x), *jnp.moveaxis(jax.vjp(output, x)[1](weights.astype(dtype))[0], 2, 0)
  return jax.jit(with_gradient)(qkv.astype(dtype))
for mask in (AttentionMask("causal"), AttentionMask("causal", segments), AttentionMask("bidirectional"),
             AttentionMask("prefix", segments, segments % 2 == 0)):
  with jax.default_matmul_precision("highest"): exact = gradients("plain", mask, jnp.float32)
  low = [gradients(x, mask, jnp.bfloat16) for x in ("plain", sys.argv[1])]
  for name, *values in zip("output d_q d_k d_v".split(), exact, *low):
    plain, fused = (float(jnp.abs(x.astype(jnp.float32) - values[0]).mean()) for x in values[1:])
    print(mask.kind, name, f"{plain:.2e} {fused:.2e}")
    assert fused < 3 * plain' "$backend" 8 512 12
done
benchmark attention "${gpt1[@]}" --only=attention --batch_size=64
# The recorded numbers of a CPU, which float32 must give on a GPU as well, and the dropout masks.
export GPT_JAX_TEST_PLATFORM=cuda JAX_DEFAULT_MATMUL_PRECISION=highest
piece tests "$python" -m pytest -q tests/test_golden.py tests/ops/test_dropout.py tests/ops/test_product.py -p no:cacheprovider
unset GPT_JAX_TEST_PLATFORM JAX_DEFAULT_MATMUL_PRECISION
benchmark step-256 "${gpt1[@]}" --only=step --batch_size=256
for backend in plain fused; do  # the steps above have what `auto` takes
  benchmark "step-$backend" "${gpt1[@]}" --config.trunk.attention_backend=$backend --only=step --batch_size=64
done
benchmark step-8 "${gpt1[@]}" --only=step --batch_size=8
XLA_FLAGS=--xla_gpu_deterministic_ops=true benchmark bits "${gpt1[@]}" --only=step --batch_size=64
benchmark generation --config=configs/gpt2.py:small --config.trunk.dtype=bfloat16 --only=generation --peers
ls "$out"
