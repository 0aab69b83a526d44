"""OpenAI's release of GPT-1: read as by its code, written back byte for byte, damage refused."""

import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from refused import refused

from gpt_jax.checkpoints.formats import openai
from gpt_jax.config import from_json, to_json
from gpt_jax.data.tokenizers.base import load_released
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES, FILES
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig, parameter_shapes
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import causal_batch
from gpt_jax.ops.cross_entropy import logits

pytestmark = pytest.mark.usefixtures("spacy_there")
CONTEXT, BLOCKS, HEADS = 16, 2, 12  # of the fixture `release`


@pytest.fixture
def copy(release, tmp_path):
  return Path(shutil.copytree(release.folder, tmp_path / "model"))


def numpy_gpt1(vector, shapes, ids):
  """OpenAI's train.py:22-178 in NumPy, with its names, from the vector: logits [T, V]."""
  parts = np.split(vector, np.cumsum(list(map(math.prod, shapes)))[:-1])
  arrays = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
  wpe, we = next(arrays), next(arrays)

  def norm(x, g, b):
    u = x.mean(-1, keepdims=True)
    s = ((x - u) ** 2).mean(-1, keepdims=True)
    return (x - u) / np.sqrt(s + 1e-5) * g + b

  def split_heads(x):
    return x.reshape(len(x), HEADS, -1).transpose(1, 0, 2)

  h = we[ids] + wpe[: len(ids)]
  for _ in range(BLOCKS):
    w_attn, b_attn, w_proj, b_proj, g_1, b_1, *rest = itertools.islice(arrays, 12)
    w_fc, b_fc, w_out, b_out, g_2, b_2 = rest
    q, k, v = map(split_heads, np.split(h @ w_attn[0] + b_attn, 3, axis=1))
    w = q @ k.transpose(0, 2, 1) / math.sqrt(v.shape[-1])
    b = np.tril(np.ones(w.shape[1:]))
    w = w * b + -1e9 * (1 - b)
    w = np.exp(w - w.max(-1, keepdims=True))
    a = (w / w.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(h.shape)
    n = norm(h + a @ w_proj[0] + b_proj, g_1, b_1)
    x = n @ w_fc[0] + b_fc
    x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    h = norm(n + x @ w_out[0] + b_out, g_2, b_2)
  return h @ we.T


def test_the_model_is_openais(release):
  params, meta, step, tokenizer = openai.load(str(release.folder))
  spec = from_json(meta["model"])
  assert (spec.head, step, meta["tokenizer_hash"]) == (None, 0, tokenizer.hash)
  arrays = flatten_dict(params, sep="/")
  assert {name: x.shape for name, x in arrays.items()} == parameter_shapes(spec)
  assert {x.dtype for x in arrays.values()} == {np.dtype("float32")}
  sizes = spec.trunk.vocab_size, spec.trunk.context, spec.trunk.layers
  assert sizes == (tokenizer.vocab_size, CONTEXT, BLOCKS)
  np.testing.assert_array_equal(params["trunk"]["tokens"][spec.trunk.vocab_size :], 0)
  rng = np.random.default_rng(1)
  rows = rng.integers(tokenizer.vocab_size, size=(1, CONTEXT + 1)).astype(np.int32)
  batch = causal_batch(rows)
  hidden, table, *_ = jax.jit(spec.build().apply)({"params": params}, batch).states
  ours = np.asarray(logits(hidden, table, spec.trunk.vocab_size))[0, :, : tokenizer.vocab_size]
  expected = numpy_gpt1(release.vector.astype(np.float64), release.shapes, batch.rows.inputs[0])
  assert expected.std() > 0.2
  np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
  "cuts", [None, [5, 6, 7, 1000, 1001, 3000, 5000, 9000, 9010]], ids=["even", "uneven"]
)
def test_written_back_byte_for_byte(tmp_path, write_release, openai_tokenizer, cuts):
  shapes = write_release.shapes(openai_tokenizer.vocab_size)
  write_release(tmp_path / "model", openai_tokenizer, shapes, cuts)
  openai.save(str(tmp_path / "again"), *openai.load(str(tmp_path / "model")))
  assert contents(tmp_path / "again") == contents(tmp_path / "model")


def test_the_headers_of_2018(copy, tmp_path):
  """NumPy filled them up to a multiple of 16 bytes then, and of 64 now."""
  for path in copy.glob("*.npy"):
    content = path.read_bytes()
    header, numbers = content[10:128].rstrip(), content[128:]
    path.write_bytes(content[:8] + (70).to_bytes(2, "little") + header.ljust(69) + b"\n" + numbers)
  openai.save(str(tmp_path / "again"), *openai.load(str(copy)))
  assert contents(tmp_path / "again") == contents(copy)


def test_a_model_that_was_not_imported(release, tmp_path):
  """Its pieces are cut as the release's are."""
  params, meta, step, tokenizer = openai.load(str(release.folder))
  del meta["openai_pieces"]
  openai.save(str(tmp_path / "again"), params, meta, step, tokenizer)
  assert contents(tmp_path / "again") == contents(release.folder)


def test_the_released_vocabulary(data_root, tmp_path, write_release):
  """All of its ids, in a narrow model, and both of its files byte for byte."""
  source = data_root / "gpt1_release"
  shapes = write_release.shapes(40_478, 512, 12, 1)
  write_release(tmp_path / "model", load_released(str(source)), shapes)
  for name in FILES[0]:
    shutil.copy(source / name, tmp_path / "model" / name)
  params, meta, step, tokenizer = openai.load(str(tmp_path / "model"))
  assert params["trunk"]["tokens"].shape == (40_576, 12)
  openai.save(str(tmp_path / "again"), params, meta, step, tokenizer)
  assert contents(tmp_path / "again") == contents(tmp_path / "model")


def test_the_released_shapes(data_root, tmp_path, write_release, openai_tokenizer):
  """They are those of the paper's model; 40,478 rows do not fit this vocabulary."""
  shapes = json.loads((data_root / "gpt1_release" / "params_shapes.json").read_text())
  assert shapes == write_release.shapes(40_478, 512, 768, 12)
  write_release(tmp_path, openai_tokenizer, write_release.shapes(openai_tokenizer.vocab_size))
  (tmp_path / "params_shapes.json").write_text(json.dumps(shapes))
  refused(r"40,478 rows of tokens, and the vocabulary has 60", openai.load, str(tmp_path))


class Bomb:
  def __reduce__(self):
    return pytest.fail, ("a pickle was loaded",)


def rewrite(change, name="params_3.npy"):
  def apply(folder):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))

  return apply


def resave(change):
  def apply(folder):
    path = folder / "params_3.npy"
    np.save(path, change(np.load(path)), allow_pickle=True)

  return apply


def reshape(change):
  return rewrite(lambda text: json.dumps(change(json.loads(text))).encode(), openai.SHAPES)


def remove(name):
  return lambda folder: (folder / name).unlink()


PIECE = "params_3.npy: not a piece of a release"
VECTOR = "params_3.npy: .*one vector of float32"
SHAPES = "params_shapes.json: not the shapes of a release"
DAMAGE = [
  (remove("params_7.npy"), "params_7.npy: missing; a release has params_0.npy"),
  (rewrite(lambda x: x[:40]), PIECE),
  (rewrite(lambda x: x.replace(b",), }", b",    ", 1)), PIECE),
  (rewrite(lambda x: x.replace(b": (", b":(-", 1)), PIECE),
  (rewrite(lambda x: x[:-100]), PIECE),
  (rewrite(lambda x: x + b"\0" * 4), "params_3.npy: .*longer than it says"),
  (rewrite(lambda _: b"\x80\x04N."), f"{PIECE} .*magic"),
  (resave(lambda _: np.array([Bomb()], dtype=object)), "params_3.npy: not .*Python objects"),
  (resave(lambda x: x.astype(np.float64)), VECTOR),
  (resave(lambda x: x[:, None]), VECTOR),
  (resave(lambda x: x[:-1]), r"params_0.npy to params_9.npy hold [\d,]+ numbers, and params"),
  (remove(openai.SHAPES), SHAPES),
  (rewrite(lambda x: x[:-1], openai.SHAPES), SHAPES),
  (reshape(lambda _: [[16, 24], 5]), SHAPES),
  (reshape(lambda x: [[-16, 24], *x[1:]]), f"{SHAPES} .*no number above 0"),
  (reshape(lambda x: x[:2]), "params_shapes.json: 2 shapes: should be 2, and 12 a block"),
  (reshape(lambda x: x[:-1]), "params_shapes.json: 25 shapes: should be 2, and 12 a block"),
  (reshape(lambda x: [x[0], [59, 24], *x[2:]]), "59 rows of tokens, and the vocabulary has 60"),
  (reshape(lambda x: [[1, 24], *x[1:]]), "context = 1: must be an integer from 2 to 1,000,000"),
  (reshape(lambda x: [[16, 12], *x[1:]]), r"array 1 has the shape \[60, 24\]: should be \[60, 1"),
  (reshape(lambda x: [[16, 10], [60, 10], *x[2:]]), "a width of 10: should be a multiple of 12"),
  (reshape(lambda x: [*x[:2], [1, 24, 71], *x[3:]]), r"array 2 .*71\]: should be \[1, 24, 72"),
  (remove("encoder_bpe_40000.json"), r"encoder_bpe_40000.json: cannot be read \(No such file"),
  (remove("vocab_40000.bpe"), r"vocab_40000.bpe: cannot be read \(No such file"),
  (rewrite(lambda x: x[:-5], "vocab_40000.bpe"), "vocab_40000.bpe:"),
]


@pytest.mark.parametrize("change, message", DAMAGE)
def test_damage_is_named(copy, change, message):
  change(copy)
  error = refused(message, openai.load, str(copy))
  assert str(copy) in error


def test_gpt2s_vocabulary_is_not_gpt1s(copy):
  for name in FILES[0]:
    (copy / name).unlink()
  for name, content in GPT2Tokenizer((*BYTES, "<|endoftext|>"), ()).files.items():
    (copy / name).write_bytes(content)
  message = "a vocabulary of openai-gpt2; should be GPT-1's, encoder_bpe_40000.json"
  refused(message, openai.load, str(copy))


TRUNK = TransformerConfig(60, context=16, layers=1, width=24, heads=12)


@pytest.mark.parametrize(
  "spec, message",
  [
    (ModelConfig(LSTMConfig(60, context=16, width=8, units=8)), "this is a LSTMConfig"),
    (ModelConfig(TRUNK, attention="bidirectional"), "this is a bidirectional model"),
    (ModelConfig(TRUNK, (ClassifyHead(),)), "it is fine-tuned, and the files have no place for"),
    (ModelConfig(dataclasses.replace(TRUNK, norm="pre")), "it is pre-norm"),
    (ModelConfig(dataclasses.replace(TRUNK, heads=4)), "it has 4 heads and not 12"),
    (ModelConfig(dataclasses.replace(TRUNK, activation="relu")), "it has activation=relu and not"),
    (None, "its vocabulary is of the kind sentencepiece-bpe"),
  ],
)
def test_a_model_that_the_files_cannot_hold(
  tmp_path, make_run, tiny_tokenizer, openai_tokenizer, spec, message
):
  tokenizer = openai_tokenizer if spec else tiny_tokenizer
  spec = spec or ModelConfig(dataclasses.replace(TRUNK, vocab_size=tiny_tokenizer.vocab_size))
  parts = make_run.params_of(spec, 1), {"model": to_json(spec)}, 1, tokenizer
  refused(message, openai.save, str(tmp_path / "out"), *parts)
  assert not any(tmp_path.iterdir())


def test_nothing_half_written(copy, tmp_path, release):
  parts = openai.load(str(release.folder))
  for place in (copy, copy / "params_0.npy"):
    before = contents(copy)
    refused("is there already; choose another place", openai.save, str(place), *parts)
    assert contents(copy) == before
  # The last array: an error when all else is written.
  del parts[0]["trunk"]["block_1"]["mlp_norm"]["bias"]
  with pytest.raises(KeyError):
    openai.save(str(tmp_path / "out"), *parts)
  assert [path.name for path in tmp_path.iterdir()] == ["model"]


def contents(folder):
  return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
