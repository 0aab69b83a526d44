"""transformers folders without transformers: every variety is read back equal, or refused.

test_transformers.py compares with transformers itself.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refused import refused
from their_models import vocabulary_of

import gpt_jax
from gpt_jax.apps.interop.formats import hf
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.tasks.task import BuiltinTask

safetensors = pytest.importorskip("safetensors.numpy")
pytestmark = pytest.mark.usefixtures("spacy_there")

GPT2 = vocabulary_of("GPT2")
HEADS = {
  "no head": ((LanguageHead(),), None),
  "classes": ((ClassifyHead(3),), "mnli"),
  "both orders": ((LanguageHead(0.5), ClassifyHead(2)), "mrpc"),
  "choices": ((ClassifyHead(4, "per_choice"),), "race"),
}


def parts_of(make_run, tokenizer, norm="post", head="no head", activation="gelu_tanh"):
  """What `save` is given, after the folder."""
  sizes = {"context": 16, "layers": 3, "width": 24, "heads": 4, "residual_dropout": 0.25}
  parts = {"norm": norm, "activation": activation}
  trunk = TransformerConfig(tokenizer.vocab_size, **sizes, **parts, dtype="bfloat16")
  heads, task = HEADS[head]
  spec = ModelConfig(trunk, heads)
  meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
  if task:
    meta["task"] = to_json(BuiltinTask(task))
  return make_run.params_of(spec, 1), meta, 5, tokenizer


def without_unused(params, tokenizer, rows=0):
  """What no format keeps, the rows after the last token, set to zero."""
  table = params["trunk"]["tokens"].copy()
  table[tokenizer.vocab_size + rows :] = 0
  return {**params, "trunk": {**params["trunk"], "tokens": table}}


@pytest.fixture(scope="module", params=["post", "pre"])
def saved(request, tmp_path_factory, make_run, openai_tokenizer):
  """(folder, what was saved) of a language model of either family."""
  folder = tmp_path_factory.mktemp("hf") / "model"
  parts = parts_of(make_run, openai_tokenizer if request.param == "post" else GPT2, request.param)
  hf.save(str(folder), *parts)
  return folder, parts


@pytest.fixture
def copy(saved, tmp_path):
  """Without the checksums, which other software does not write."""
  ignored = shutil.ignore_patterns("sha256.json")
  return Path(shutil.copytree(saved[0], tmp_path / "model", ignore=ignored))


def test_a_folder_changed_on_purpose_says_what_to_do(saved, tmp_path):
  folder = Path(shutil.copytree(saved[0], tmp_path / "model"))
  configure(folder, resid_pdrop=0.5)
  match = "config.json: damaged.*changed the folder on purpose, remove its sha256.json"
  refused(match, hf.load, str(folder))


def same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("head", HEADS)
def test_loads_back_equal(saved, tmp_path, make_run, head):
  before = parts_of(make_run, saved[1][3], from_json(saved[1][1]["model"]).trunk.norm, head)
  hf.save(str(tmp_path / "out"), *before)
  assert hf.detect(str(tmp_path / "out"))
  params, *rest = hf.load(str(tmp_path / "out"))
  assert rest == [*before[1:]]
  same(params, without_unused(before[0], before[3], 0 if head == "no head" else 3))


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_an_activation_there_and_back(saved, tmp_path, make_run, activation):
  before = parts_of(
    make_run, saved[1][3], from_json(saved[1][1]["model"]).trunk.norm, activation=activation
  )
  hf.save(str(tmp_path / "out"), *before)
  assert hf.load(str(tmp_path / "out"))[1:] == before[1:]
  foreign(tmp_path / "out")
  (tmp_path / "out" / "sha256.json").unlink()
  settings = json.loads((tmp_path / "out" / "config.json").read_text())
  assert settings.get("afn", settings.get("activation_function")) == activation
  assert load_model(str(tmp_path / "out")).spec.trunk.activation == activation


def test_the_file_names_its_folder(saved):
  loaded = load_model(str(saved[0] / "model.safetensors"))
  same(loaded.params, hf.load(str(saved[0]))[0])
  assert loaded.tokenizer == saved[1][3]


def change(path, edit, metadata=None):
  """The arrays of a file, edited and written again."""
  arrays = safetensors.load_file(path)
  safetensors.save_file(
    {name: np.ascontiguousarray(x) for name, x in edit(arrays).items()}, path, metadata
  )


def configure(folder, **changes):
  """config.json as somebody else's: without our entry, and with these; None removes one."""
  path = folder / "config.json"
  config = {**json.loads(path.read_text()), "gpt_jax": None, **changes}
  path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def foreign(folder, **changes):
  """As transformers itself would have written it."""
  configure(folder, **changes)
  shutil.rmtree(folder / "tokenizer")


def renamed(arrays):
  return {name.removeprefix("transformer."): x for name, x in arrays.items()}


def buffers(arrays):
  """Of older versions."""
  masks = {f"transformer.h.{i}.attn.bias": np.ones((1, 1, 16, 16), np.uint8) for i in range(3)}
  masks["transformer.h.0.attn.masked_bias"] = np.float32([-1e4])
  return {**arrays, **masks, "position_ids": np.arange(16)}


def table_name(arrays):
  return next(name for name in arrays if name.endswith(("tokens_embed.weight", "wte.weight")))


VARIETIES = {
  "as it is": lambda arrays: arrays,
  "without a prefix": renamed,
  "with buffers": buffers,
  "with the tied head": lambda arrays: {**arrays, "lm_head.weight": arrays[table_name(arrays)]},
  "the tied head alone": lambda arrays: {
    "lm_head.weight" if name == table_name(arrays) else name: x for name, x in arrays.items()
  },
}


@pytest.mark.parametrize("variety", VARIETIES)
def test_as_others_write_it(saved, copy, variety):
  foreign(copy, n_ctx=None, eos_token_id=None)  # which older files lack, as notes of their own
  change(copy / "model.safetensors", VARIETIES[variety])
  params, meta, step, tokenizer = hf.load(str(copy))
  before, _, _, vocabulary = saved[1]
  same(params, without_unused(before, vocabulary))
  spec = from_json(meta["model"])
  assert (spec.head, step) == (None, 0)
  assert (spec.trunk.residual_dropout, spec.trunk.dtype) == (0.25, "float32")
  assert (tokenizer.hash, meta["tokenizer_hash"]) == (vocabulary.hash, vocabulary.hash)


@pytest.mark.parity("released")
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_texts_end_where_the_folder_says(copy, file):
  foreign(copy, eos_token_id=3)
  loaded = load_model(str(copy))
  assert loaded.ends == (3,)
  ends = {"eos_token_id": list(range(loaded.tokenizer.vocab_size))}
  foreign_settings = json.loads((copy / file).read_text()) if file == "config.json" else {}
  (copy / file).write_text(json.dumps({**foreign_settings, **ends}))
  model = gpt_jax.load(str(copy))
  prompt = loaded.tokenizer.decode(loaded.tokenizer.encode("the cat"))
  assert model.generate("the cat", 3) == prompt  # any token is an end
  assert model.generate("the cat", 3, ignore_eos=True) != prompt


def test_a_setting_of_generation_that_is_not_read(copy):
  foreign(copy)
  (copy / "generation_config.json").write_text('{"repetition_penalty": 1.3, "do_sample": true}')
  with pytest.warns(UserWarning, match="config.json: not known, and not read: repetition_penalty$"):
    load_model(str(copy))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_becomes_float32(copy, saved, dtype):
  foreign(copy)
  arrays = safetensors.load_file(copy / "model.safetensors")
  half = {name: np.asarray(jnp.asarray(x, dtype)) for name, x in arrays.items()}
  safetensors.save_file(half, copy / "model.safetensors")
  params = hf.load(str(copy))[0]
  expected = jax.tree.map(lambda x: np.asarray(jnp.asarray(x, dtype), np.float32), saved[1][0])
  same(params, without_unused(expected, saved[1][3]))


def test_a_vocabulary_in_one_file(copy, saved):
  """transformers 5 saves tokenizer.json alone."""
  foreign(copy)
  pieces = json.loads((copy / "vocab.json").read_text())
  merges = (copy / "merges.txt").read_text().split("\n")[1:-1]
  for name in ("vocab.json", "merges.txt"):
    (copy / name).unlink()
  together = copy / "tokenizer.json"
  for apart in (str, str.split):
    model = {"vocab": pieces, "merges": list(map(apart, merges))}
    together.write_text(json.dumps({"model": model}))
    assert hf.load(str(copy))[3].hash == saved[1][3].hash
  for broken in ("{}", "[]", "{", '{"model": {"vocab": {"a": 0}, "merges": []}}'):
    together.write_text(broken)
    error = refused("tokenizer.json: not GPT-1's or GPT-2's vocabulary", hf.load, str(copy))
    assert "/tmp" not in error.replace(str(copy), "")


def test_a_strangers_head_is_left_out(copy, saved):
  foreign(copy)
  edits(lambda arrays: {**arrays, "score.weight": np.zeros((2, 24), np.float32)})(copy)
  with pytest.warns(UserWarning, match="score.weight is left out"):
    params = hf.load(str(copy))[0]
  same(params, without_unused(saved[1][0], saved[1][3]))


def test_a_head_trained_on_elsewhere(tmp_path, make_run, openai_tokenizer):
  """transformers keeps our entry of config.json and drops the notes: what it saved then holds."""
  parts = parts_of(make_run, openai_tokenizer, head="classes")
  hf.save(str(tmp_path / "out"), *parts)
  (tmp_path / "out" / "sha256.json").unlink()
  change(tmp_path / "out" / "model.safetensors", lambda arrays: arrays, {"format": "pt"})
  head = hf.load(str(tmp_path / "out"))[0]["head"]
  np.testing.assert_array_equal(head["kernel"], parts[0]["head"]["kernel"])
  np.testing.assert_array_equal(head["bias"], 0)


def sets(**changes):
  return lambda folder: configure(folder, **changes)


def edits(edit, metadata=None):
  return lambda folder: change(folder / "model.safetensors", edit, metadata)


def writes(name, content):
  return lambda folder: (folder / name).write_bytes(content)


def without(name):
  return lambda arrays: {key: x for key, x in arrays.items() if not key.endswith(name)}


def removes(name):
  return lambda folder: (folder / name).unlink()


WEIGHTS, FC = "model.safetensors", "transformer.h.1.mlp.c_fc"
DAMAGE = [
  (removes("config.json"), "config.json: missing; it says which architecture"),
  (writes("config.json", b"{"), "config.json: cannot be read"),
  (sets(model_type="mamba"), "'mamba': should be one of albert, bert, roberta, xlm-roberta, "),
  (sets(model_type=["gpt2"]), r"model_type \['gpt2'\]: should be one of albert, "),
  (sets(n_embd=None), "config.json: n_embd is None: should be a number"),
  (sets(afn="mish", activation_function="mish"), "is 'mish': only 'gelu' or .* or 'swish' is sup"),
  (sets(layer_norm_epsilon=1e-6), "layer_norm_epsilon is 1e-06: only 1e-05 is supported"),
  (sets(n_ctx=8), "config.json: n_ctx is 8: only 16 is supported"),
  (sets(n_inner=99), "n_inner is 99: only None or 96 is supported"),
  (sets(tie_word_embeddings=False), "tie_word_embeddings is False"),
  (sets(n_head=5), "config.json: trunk.heads=5: must divide trunk.width=24"),
  (sets(vocab_size=99), "config.json: vocab_size is 99, and the vocabulary has "),
  (sets(n_positions=32, n_ctx=32), r"has the shape \[16, 24\]: should be \[32, 24\]"),
  (sets(gpt_jax={"model": {"type": "classify"}}), "no model with a TransformerConfig"),
  (edits(without("h.2.ln_1.bias")), "model.safetensors: holds no h.2.ln_1.bias"),
  (edits(without(("tokens_embed.weight", "wte.weight"))), "holds no (tokens_embed|wte).weight"),
  (edits(lambda x: {**x, "h.0.moe": np.zeros(3)}), "holds h.0.moe, which no "),
  (edits(lambda x: {**x, f"{FC}.bias": np.zeros(5)}), r"h.1.mlp.c_fc.bias has the shape \[5\]: sh"),
  (edits(lambda x: {**x, f"{FC}.weight": x[f"{FC}.weight"].T}), r"\[96, 24\]: should be \[24, 96"),
  (edits(lambda x: {**x, f"{FC}.bias": np.zeros(96, np.int32)}), "c_fc.bias is I32: should be F32"),
  (edits(lambda x: {**x, "lm_head.weight": x[table_name(x)] + 1}), "of which it should be a copy"),
  (removes(WEIGHTS), "no model.safetensors or pytorch_model.bin"),
  (
    lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9]),
    "model.safetensors: not a safetensors file .*not fully covered",
  ),
  (edits(dict, {"gpt_jax": '{"head/bias": [1]}'}), "the note gpt_jax in it is damaged"),
  (edits(dict, {"gpt_jax": "[" * 100_000}), r"gpt_jax in it is damaged \(nested too deeply\)"),
  (writes("tokenizer/tokenizer.json", b"{"), "tokenizer/tokenizer.json: not JSON"),
]


@pytest.mark.parametrize("spoil, message", DAMAGE)
def test_damage_is_named(copy, spoil, message):
  spoil(copy)
  error = refused(message, hf.load, str(copy))
  assert str(copy) in error


def test_no_vocabulary(copy):
  foreign(copy)
  for name in ("vocab.json", "merges.txt", "tokenizer.json"):
    (copy / name).unlink()
  refused("no vocabulary here; vocab.json and merges.txt belong beside", hf.load, str(copy))


def test_weights_in_several_files(copy, saved):
  arrays = safetensors.load_file(copy / "model.safetensors")
  (copy / "model.safetensors").unlink()
  index, shards = copy / "model.safetensors.index.json", ("a.safetensors", "b.safetensors")
  for number, shard in enumerate(shards):
    safetensors.save_file(dict(sorted(arrays.items())[number::2]), copy / shard)
  names = {name: shards[n % 2] for n, name in enumerate(sorted(arrays))}
  index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
  of_torch = index.with_name("pytorch_model.bin.index.json")
  for here, there in ((index, of_torch), (of_torch, index)):
    for path in (copy, here):
      assert hf.detect(str(path))
      same(hf.load(str(path))[0], without_unused(saved[1][0], saved[1][3]))
    here.rename(there)
  for broken in ("{", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": "../b.safetensors"}}'):
    index.write_text(broken)
    refused("^[^\n]*index.json: should map arrays to the files beside", hf.load, str(copy))
  index.write_text(json.dumps({"weight_map": names}))
  (copy / shards[1]).unlink()
  refused("^[^\n]*index.json: .*'b.safetensors' is not there", hf.load, str(copy))


@pytest.mark.parametrize("further", [1, 47, 1000])
def test_rows_beyond_the_vocabulary_are_left_out(copy, saved, further):
  """Published tables are filled up to a multiple of 64 or more."""
  foreign(copy, vocab_size=saved[1][3].vocab_size + further)

  def padded(arrays):
    name = table_name(arrays)
    return {**arrays, name: np.pad(arrays[name], ((0, further), (0, 0)), constant_values=7)}

  change(copy / "model.safetensors", padded)
  same(hf.load(str(copy))[0], without_unused(saved[1][0], saved[1][3]))
  # Not where so many rows are another model's vocabulary.
  configure(copy, vocab_size=saved[1][3].vocab_size + 2000)
  refused("config.json: vocab_size is [^\n]*, and the vocabulary has", hf.load, str(copy))


def test_settings_without_a_reader(copy, saved):
  """What could change results is refused; what nobody knows is told."""
  foreign(copy, quantization_config={"bits": 4})
  refused("config.json: quantization_config is .*: only none is supp", hf.load, str(copy))
  configure(copy, quantization_config=None, rotary_dim=8, off=False)
  with pytest.warns(UserWarning, match="config.json: not known, and not read: rotary_dim$"):
    same(hf.load(str(copy))[0], without_unused(saved[1][0], saved[1][3]))


TINY = TransformerConfig(60, context=16, layers=1, width=24, heads=4)
LSTM = LSTMConfig(60, context=16, width=8, units=8)


@pytest.mark.parametrize(
  "trunk, attention, reason",
  [
    (LSTM, "causal", "holds causal Transformers only, this is a LSTMConfig"),
    (dataclasses.replace(TINY, activation="gelu"), "causal", "openai-gpt has no activation=gelu"),
    (dataclasses.replace(TINY, norm_epsilon=1e-6), "causal", "with parts that GPT has not"),
    (TINY, "bidirectional", "which normalize the sum"),
    (TINY, "prefix", "transformers has no model of prefix attention"),
    # As wide as the trunk, a hidden layer would go unnoticed.
    ((TINY, (ClassifyHead(3, units=24),)), "causal", "heads have no hidden layer"),
  ],
)
def test_what_no_folder_holds(tmp_path, openai_tokenizer, trunk, attention, reason):
  trunk, heads = trunk if isinstance(trunk, tuple) else (trunk, ())
  meta = {"model": to_json(ModelConfig(trunk, heads, attention))}
  with pytest.raises(InputError, match=f"format=hf: .*{reason}.*; npz can hold it"):
    hf.save(str(tmp_path / "out"), {}, meta, 1, openai_tokenizer)
  assert not any(tmp_path.iterdir())


def test_a_bias_that_the_kernel_cannot_make(tmp_path, make_run, openai_tokenizer):
  params, *rest = parts_of(make_run, openai_tokenizer, head="classes")
  head = {"kernel": np.zeros_like(params["head"]["kernel"]), "bias": params["head"]["bias"]}
  with pytest.raises(InputError, match="cannot hold this head's bias"):
    hf.save(str(tmp_path / "out"), {**params, "head": head}, *rest)


def test_nothing_half_written(copy, saved, tmp_path):
  for place in (copy, copy / "README.md"):
    before = {path: path.is_file() and path.read_bytes() for path in copy.rglob("*")}
    refused("is there already; choose another place", hf.save, str(place), *saved[1])
    assert {path: path.is_file() and path.read_bytes() for path in copy.rglob("*")} == before
  with pytest.raises(AttributeError):  # when the weights are written
    hf.save(str(tmp_path / "out"), *saved[1][:3], None)
  assert [path.name for path in tmp_path.iterdir()] == ["model"]
