"""ONNX and StableHLO: the classifier and the language model, run without this package."""

import dataclasses
import functools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refused import refused

import gpt_jax
from gpt_jax.apps.interop.formats.function import TYPES, make_function
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.inference.agreement import Agreement
from gpt_jax.inference.calibration import scale
from gpt_jax.inference.linear_classifier import fit_linear, fit_tfidf, save_tfidf
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export
from gpt_jax.tasks.formats import TextToText
from gpt_jax.tasks.readers import Row
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.task import BuiltinTask

TEXTS = ["the cat sat on the old mat", "dog", "ran to the barn"]
STABLEHLO = """
import sys
import numpy as np
from jax import export

for folder in sys.argv[1:]:
  with open(folder + "/out/model.stablehlo", "rb") as file:
    call = export.deserialize(file.read()).call
  for i in range(2):
    with np.load(f"{folder}/inputs{i}.npz") as inputs:
      np.save(f"{folder}/logits{i}.npy", call(*inputs.values()))
assert not [name for name in sys.modules if name.startswith(("gpt_jax", "flax"))]
"""


def run_stablehlo(folders):
  """Writes the logits of the inputs in each folder, by one process with jax and numpy alone."""
  command = [sys.executable, "-I", "-c", STABLEHLO, *map(str, folders)]
  done = subprocess.run(command, capture_output=True, text=True, cwd=folders[0])
  assert done.returncode == 0, done.stderr


def run_onnx(folders):
  import onnxruntime as runtime

  for folder in folders:
    session = runtime.InferenceSession(str(folder / "out" / "model.onnx"))
    for i in range(2):
      with np.load(folder / f"inputs{i}.npz") as inputs:
        np.save(folder / f"logits{i}.npy", session.run(["logits"], dict(inputs))[0])


ENCODER = TransformerConfig(context=96, layers=2, width=16, heads=2, embedding_norm=True)
BERT = dataclasses.replace(
  ENCODER, token_types=2, pooler=True, embedding_width=8, activation="gelu"
)
SILU_ENCODER = dataclasses.replace(ENCODER, activation="silu")
RELU_BERT = dataclasses.replace(BERT, activation="relu")
# The trunk, its head, the format of its sequences, the task, what it reads besides ids.
ENCODERS = {
  "bert": (BERT, {"transform": "pooler"}, "bert_format", "story-company", {TYPES}),
  "roberta": (SILU_ENCODER, {"transform": "dense"}, "roberta_format", "story-company", set()),
  "mean": (BERT, {"pooling": "mean"}, "bert_format", "story-company", {TYPES}),
  "choices": (RELU_BERT, {"transform": "pooler"}, "bert_format", "story-next", {TYPES}),
  "GPT's sequences": (BERT, {}, "gpt_format", "story-company", set()),
}
SENTENCE = "the cat sat on the mat"


@pytest.fixture(
  scope="module", params=["stablehlo", pytest.param("onnx", marks=pytest.mark.parity("onnx"))]
)
def ran(request, tempered, make_run, tiny_tokenizer, tmp_path_factory):
  """Every kind of model, exported and run on two inputs without this package.

  By kind: description, logits (of both inputs), expected (what this package predicts).
  """
  format, folder, made = request.param, tmp_path_factory.mktemp("functions"), {}

  def add(kind, checkpoint, inputs_of):
    place = folder / str(len(made))
    export.run(checkpoint, str(place / "out"), format)
    description = json.loads((place / "out" / "model.json").read_text())
    inputs, expected = inputs_of(description)
    for i, arrays in enumerate(inputs):
      np.savez(place / f"inputs{i}.npz", **arrays)
    made[kind] = SimpleNamespace(folder=place, description=description, expected=expected)

  add("classifier", tempered, functools.partial(classifier_inputs, tempered))
  add("language", *language_model(make_run, tiny_tokenizer, folder))
  for kind in ENCODERS:
    add(kind, *encoder(kind, make_run, tiny_tokenizer, folder / f"run {kind}"))
  {"stablehlo": run_stablehlo, "onnx": run_onnx}[format]([x.folder for x in made.values()])
  for value in made.values():
    value.logits = [np.load(value.folder / f"logits{i}.npy") for i in range(2)]
  return made


def classifier_inputs(checkpoint, description):
  special, tokenizer = description["special_tokens"], load_model(checkpoint).tokenizer
  rows = [[special["start"], *ids, special["extract"]] for ids in tokenizer.encode_many(TEXTS)]
  batch = np.zeros((len(rows), 40), np.int32)  # padding after the sequences
  for row, ids in zip(batch, rows, strict=True):
    row[: len(ids)] = ids
  alone = np.array(rows[1:2], np.int32)
  return ({"input_ids": batch}, {"input_ids": alone}), gpt_jax.load(checkpoint).classify(TEXTS)


def test_a_classifier(ran):
  found = ran["classifier"]
  assert found.description["labels"] == ["barks", "meows"]
  assert found.description["temperature"] == 1.7
  together, single = found.logits
  np.testing.assert_allclose(single[0], together[1], atol=1e-4, rtol=0)
  check_probabilities(together, found)


def softmax(logits):
  return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def check_probabilities(logits, found):
  for row, expected in zip(softmax(logits), found.expected, strict=True):
    of_labels = dict(zip(found.description["labels"], row.tolist(), strict=True))
    assert of_labels == pytest.approx(expected, abs=1e-4)


def language_model(make_run, tokenizer, folder):
  """A model in bfloat16, its inputs, and the log-probabilities of the same model in float32."""
  trunk = TransformerConfig(
    tokenizer.vocab_size, context=16, layers=1, width=16, heads=2, norm="pre", dtype="bfloat16"
  )
  full = dataclasses.replace(trunk, dtype="float32")
  full = gpt_jax.load(make_run(folder / "float32", ModelConfig(full)))
  ids = tokenizer.encode(SENTENCE)[None]
  inputs = {"input_ids": ids}, {"input_ids": np.tile(ids, (3, 1))[:, :4]}
  checkpoint = make_run(folder / "run", ModelConfig(trunk))
  return checkpoint, lambda _: (inputs, full.log_probs(SENTENCE).log_probs[1:])


def test_a_language_model(ran, tiny_tokenizer):
  ids = tiny_tokenizer.encode(SENTENCE)
  logits, others = ran["language"].logits
  assert logits.shape == (1, len(ids), tiny_tokenizer.vocab_size)
  log_probs = np.log(softmax(logits))
  found = np.take_along_axis(log_probs[0, :-1], ids[1:, None], -1)[:, 0]
  np.testing.assert_allclose(found, ran["language"].expected, atol=1e-4, rtol=0)
  np.testing.assert_allclose(others[2], logits[0, :4], atol=1e-4, rtol=0)


def encoder(kind, make_run, tiny_tokenizer, folder):
  """A bidirectional classifier, its inputs with padding and without, and its predictions."""
  trunk, head, format, task_name, _ = ENCODERS[kind]
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask", "pad")
  task = BuiltinTask(task_name).build("")
  sizes = {"vocab_size": tokenizer.vocab_size, "special_tokens": tokenizer.special.count}
  heads = (ClassifyHead(task.num_classes, **{"pooling": task.pooling, **head}),)
  spec = ModelConfig(dataclasses.replace(trunk, **sizes), heads, "bidirectional")
  checkpoint = make_run(folder, spec, tokenizer=tokenizer)
  meta = load_model(checkpoint).meta
  meta |= {"task": to_json(BuiltinTask(task_name)), "sequence_format": {"type": format}}
  params = jax.tree.map(lambda x: 3 * x, make_run.params_of(spec, 0))  # farther from one another
  with Checkpoints(checkpoint, metric="valid_loss", mode="min") as checkpoints:
    checkpoints.save(8, {"params": params}, meta)

  def inputs_of(description):
    names = [entry["name"] for entry in description["inputs"]]
    examples = task.examples("", "dev")[:5]
    columns = [example.sequences[0] for example in examples]
    if task.pooling == "per_choice":
      columns = [(x.sequences[0][0], *(option for _, option in x.sequences)) for x in examples]
    encoded = load_model(checkpoint).encode(task, examples)
    shape = (5, encoded.fields.shape[1], 96)
    ids, mask, types = (np.zeros(shape, np.int32) for _ in range(3))
    ids[:] = 7  # padding of any id
    for n, c in np.ndindex(shape[:2]):
      sequence, of_type = encoded.sequence(n, c), encoded.sequence_types(n, c)
      ids[n, c, : len(sequence)], mask[n, c, : len(sequence)] = sequence, 1
      types[n, c, : len(sequence)] = 0 if of_type is None else of_type
    arrays = dict(zip(("input_ids", "attention_mask", TYPES), (ids, mask, types), strict=True))
    arrays = {name: arrays[name][:, 0] if shape[1] == 1 else arrays[name] for name in names}
    shortest = mask.sum(axis=-1).max()
    cut = {name: x[..., :shortest] for name, x in arrays.items()}
    return (arrays, cut), gpt_jax.load(checkpoint).classify(columns)

  return checkpoint, inputs_of


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_bidirectional_classifier(kind, ran):
  """Its probabilities are those of predict, also of texts that are padded."""
  found = ran[kind]
  names = [entry["name"] for entry in found.description["inputs"]]
  assert names[:2] == ["input_ids", "attention_mask"] and {*names[2:]} == ENCODERS[kind][-1]
  for logits in found.logits:
    check_probabilities(logits, found)
  answers = [list(answer.values()) for answer in found.expected]
  assert np.ptp(answers, axis=0).max() > 0.01  # that differ between the examples


@pytest.mark.parity("onnx")
def test_a_tfidf_classifier_reads_texts(tmp_path):
  """Its probabilities are those of scikit-learn's features, whatever the texts are."""
  import onnxruntime

  letters = list("abcdeABCDE  \t\n\u00a0\u3000.,!_-'12é É ß ẞ İ ıІжЖ日本𝔘🙂\x1c\x85²½ǅ\0")
  rng = np.random.default_rng(0)
  texts = ["".join(rng.choice(letters, rng.integers(1, 40))) + "a" for _ in range(300)]
  tfidf = fit_tfidf([f"{one}\n{two}" for one, two in zip(texts[:200], texts[1:], strict=False)])
  labels, columns = ("a", "b", "c"), ("subject", "body")
  linear = fit_linear(tfidf(texts[:200]), np.arange(200) % 3, 3, 10.0)
  table = TableTask(columns=columns, label="queue", labels=labels, transform="entailment")
  pairs = list(zip(texts[150:], texts[::-1], strict=False))
  task, dev = table.build(""), []
  for number, pair in enumerate(pairs):
    dev.append(task.example(Row(pair, labels[number % 3], f"dev.csv:{number}")))
  save_tfidf(str(tmp_path / "tfidf"), tfidf, linear, table, dev, "")
  model = gpt_jax.load(str(tmp_path / "tfidf"))
  assert model.temperature != 1
  export.run(str(tmp_path / "tfidf"), str(tmp_path / "out"), "onnx")
  description = json.loads((tmp_path / "out" / "model.json").read_text())
  assert [entry["column"] for entry in description["inputs"]] == ["subject", "body"]
  session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
  pairs += [("", ""), (" ", "\n"), ("ab", "")]
  for some in (pairs, pairs[-3:], pairs[-3:-2]):  # also without any word
    inputs = {
      f"text_{n}": np.array(side, object) for n, side in enumerate(zip(*some, strict=True), 1)
    }
    logits = session.run(["logits"], inputs)[0]
    raw = linear(tfidf([f"{one}\n{two}" for one, two in some]))
    np.testing.assert_allclose(softmax(logits), scale(raw, model.temperature), atol=1e-6)


@pytest.mark.parity("onnx")
def test_weights_of_8_bits_are_written_if_they_answer_the_same(
  finetuned, tmp_path, capsys, monkeypatch
):
  import onnx
  import onnxruntime

  from gpt_jax.apps.interop.formats import onnx_int8

  checkpoint, out = f"{finetuned.workdir}/seed_0/best", tmp_path / "out"
  export.run(checkpoint, str(out), "onnx_int8", data=finetuned.data_dir)
  assert "the same label for 100.00% of 30 examples (88." in capsys.readouterr().out
  description = json.loads((out / "model.json").read_text())
  (inputs, _), expected = classifier_inputs(checkpoint, description)
  session = onnxruntime.InferenceSession(str(out / "model.onnx"))
  logits = session.run(None, inputs)[0]
  found = softmax(logits)[:, 0]
  assert 0 < np.abs(found - [answer["barks"] for answer in expected]).max() < 0.02
  graph = onnx.load(str(out / "model.onnx")).graph
  operations = [node.op_type for node in graph.node]
  # Of the block q, k and v together, out, and both of the MLP; and W_y.
  assert (operations.count("MatMulInteger"), "Gemm" in operations) == (5, False)
  # Each row of a table has its own scale, so that its largest number is the largest of 8 bits.
  arrays = {array.name: onnx.numpy_helper.to_array(array) for array in graph.initializer}
  looked_up = [arrays.get(node.input[0]) for node in graph.node if node.op_type == "Gather"]
  tables = [x for x in looked_up if x is not None and x.dtype == np.int8]
  assert len(tables) == 2  # of tokens and of positions
  for table in tables:
    assert {*np.abs(table.astype(int)).max(axis=1)} <= {0, 127}

  header, first, *rest = Path(finetuned.data_dir, "dev.tsv").read_text().splitlines()
  (tmp_path / "data").mkdir()
  long = "\n".join([header, "the cat " * 40 + first, *rest])
  (tmp_path / "data" / "dev.tsv").write_text(long)
  row = np.arange(200)
  for same, after, message in [
    (row % 2 == 0, row < 80, "^keep=0.99: int8 keeps only 50.00% of float32's labels on 200 ex"),
    # One label of 200 is lost, but it was one of 80 that were right.
    (row != 79, row < 79, "^keep=0.99: int8 keeps only 98.75% of float32's accuracy on 200 ex"),
  ]:
    agreement = Agreement((row < 80, after), same)
    monkeypatch.setattr(onnx_int8, "compare", lambda *_, agreement=agreement: agreement)
    with pytest.raises(InputError, match=message):
      export.run(checkpoint, str(tmp_path / "new"), "onnx_int8", data=str(tmp_path / "data"))
  printed = capsys.readouterr()
  assert "98.75% of the accuracy is left; it changes by -0.50 to +0.47" in printed.out
  assert "warning: 1 of 30 rows is longer than the context of 64" in printed.err
  assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]


def test_what_is_no_program(make_run, tiny_tokenizer, tmp_path):
  trunk = dataclasses.replace(ENCODER, vocab_size=tiny_tokenizer.vocab_size)
  masked = make_run(tmp_path / "masked", ModelConfig(trunk, (), "bidirectional"))
  message = "^format=stablehlo: holds classifiers .*, not this encoder; .*fine-tune"
  refused(message, export.run, masked, str(tmp_path / "out"), "stablehlo")
  assert not (tmp_path / "out").exists()
  t5 = ModelConfig(T5Config(300, context=8, layers=1, width=8, heads=2, head_width=4, units=8))
  with pytest.raises(InputError, match="not this encoder-decoder; use npz or hf"):
    make_function("onnx", t5, {}, tiny_tokenizer, None, TextToText())


def test_a_program_does_not_load_back(finetuned, tmp_path):
  export.run(finetuned.pretrained, str(tmp_path / "out"), "stablehlo")
  refused("runs without gpt_jax and cannot be read back", load_model, str(tmp_path / "out"))
  refused("is there already", export.run, finetuned.pretrained, str(tmp_path / "out"), "stablehlo")


@pytest.mark.parity("onnx")
def test_jax_is_the_same_after_an_export(finetuned, tmp_path):
  """jax2onnx replaces functions of JAX for good."""
  modules = {"jax.numpy": vars(jnp), "jax.lax": vars(jax.lax), "jax.nn": vars(jax.nn)}
  before = {name: dict(functions) for name, functions in modules.items()}
  export.run(finetuned.pretrained, str(tmp_path / "out"), "onnx")
  for name, functions in before.items():
    for function, value in functions.items():
      assert modules[name][function] is value, f"{name}.{function}"
