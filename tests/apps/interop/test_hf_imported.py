"""Models that others have trained: their folders give their labels, and their embeddings."""

import csv
import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
from bert_trunk import bert_trunk
from refused import refused
from their_models import draw_theirs, vocabulary_of

import gpt_jax
from gpt_jax.apps.interop.formats import hf
from gpt_jax.apps.interop.formats.hf.vectors import read_embedding
from gpt_jax.apps.interop.imported import ImportedTask
from gpt_jax.apps.serve.app import _read_rows
from gpt_jax.apps.serve.fields import Fields, Refusal
from gpt_jax.batch import Batch, Labels, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.saved import Embedding
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs import evaluate, export, finetune, import_weights
from gpt_jax.tasks.readers import Row
from gpt_jax.training.loop import TrainConfig

safetensors = pytest.importorskip("safetensors.numpy")

TEXTS = ["the cat sat on the old mat", "dog", "the dog ran to the sea", "the barn, by the sea"]
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))
NAMES = {"2": "maybe", "0": "yes", "1": "No"}  # not in the order of the outputs
TRUNK = bert_trunk(context=48, layers=1, width=32, heads=2)


def change(folder, **settings):
  path = folder / "config.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.fixture(scope="module")
def saved(make_run, tiny_tokenizer, tmp_path_factory):
  """A BERT with three labels as others save it, but for the vocabulary."""
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask", "pad")
  sizes = {"vocab_size": tokenizer.vocab_size, "special_tokens": tokenizer.special.count}
  trunk = dataclasses.replace(TRUNK, **sizes)
  spec = ModelConfig(trunk, (ClassifyHead(3, transform="pooler"),), "bidirectional")
  folder = tmp_path_factory.mktemp("theirs") / "bert"
  meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
  hf.save(str(folder), make_run.params_of(spec, 3), meta, 3, tokenizer)
  (folder / "sha256.json").unlink()
  change(folder, gpt_jax=None, id2label=NAMES, label2id=None)
  return folder


@pytest.fixture
def copy(saved, tmp_path):
  return shutil.copytree(saved, tmp_path / "bert")


def probabilities(loaded, *texts):
  """Of a text or a pair by itself, as [CLS] a [SEP] b [SEP]: float32 [K]."""
  special, ids, types = loaded.tokenizer.special, [loaded.tokenizer.special["cls"]], [0]
  for number, text in enumerate(texts):
    part = [*loaded.tokenizer.encode(text), special["sep"]]
    ids, types = [*ids, *part], [*types, *[number] * len(part)]
  rows = np.zeros((4, 1, loaded.spec.trunk.context), np.int32)
  rows[:, 0, : len(ids)] = ids, range(len(ids)), [1] * len(ids), types
  batch = Batch(Rows(*rows), labels=Labels(np.zeros((1, 1), np.int32), None, None))
  (scores,) = jax.jit(loaded.model.apply)({"params": loaded.params}, batch).heads
  powers = np.exp(np.asarray(scores[0], np.float64))
  return powers / powers.sum()


def test_a_text_or_a_pair_has_the_names_of_the_outputs(saved):
  model = gpt_jax.load(str(saved))
  assert (model.labels, model.columns) == (("yes", "No", "maybe"), ("text",))
  assert "<fine-tuned on text-classification, " in repr(model)
  for rows in (TEXTS, PAIRS, [(TEXTS[0], ""), ("", TEXTS[1])], [PAIRS[0], TEXTS[0], *PAIRS]):
    for row, answer in zip(rows, model.classify(rows), strict=True):
      expected = probabilities(model.loaded, *([row] if isinstance(row, str) else row))
      assert list(answer) == ["yes", "No", "maybe"]
      assert list(answer.values()) == pytest.approx(expected, abs=1e-5)
  with pytest.raises(InputError, match="3 columns; text-classification reads 2: text, text_pair"):
    model.classify([("a", "b", "c")])


def write(path, header, rows):
  with open(path, "w", newline="") as file:
    writer = csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t")
    writer.writerows([header] * bool(header) + rows)


@pytest.mark.parametrize(
  "name, header, rows",
  [
    ("rows.csv", ["text"], [[a] for a in TEXTS]),
    ("rows.csv", ["id", "text_pair", "text"], [["7", b, a] for a, b in PAIRS]),
    ("rows.txt", [], [[*pair] for pair in PAIRS]),
  ],
)
def test_predict(saved, tmp_path, launch, name, header, rows):
  """A file of texts, or of pairs."""
  write(tmp_path / name, header, rows)
  out = tmp_path / "out.jsonl"
  files = f"--input={tmp_path / name}", f"--out={out}"
  code, _, error = launch("predict", f"--checkpoint={saved}", *files)
  assert code == 0, error
  found = [json.loads(line) for line in out.read_text().splitlines()]
  expected = gpt_jax.load(str(saved)).classify(TEXTS if header == ["text"] else PAIRS)
  for row, answer in zip(found, expected, strict=True):
    assert row["probabilities"] == pytest.approx(answer, abs=1e-5)
    assert row["prediction"] == max(answer, key=answer.get)


def test_evaluate(saved, tmp_path, launch):
  answers = gpt_jax.load(str(saved)).classify(PAIRS)
  labels = [max(answer, key=answer.get) for answer in answers[:3]] + ["maybe"]
  rows = [[label, *pair] for label, pair in zip(labels, PAIRS, strict=True)]
  write(tmp_path / "dev.csv", ["label", "text", "text_pair"], rows)
  code, printed, error = launch("evaluate", f"--checkpoint={saved}", f"--data={tmp_path}")
  assert code == 0, error
  losses = [-np.log(answer[label]) for answer, label in zip(answers, labels, strict=True)]
  assert f"loss          {np.mean(losses):.4f}" in printed
  assert "\nmaybe" in printed
  code, _, error = launch("evaluate", f"--checkpoint={saved}", f"--data={saved}")
  assert code == 2 and "dev.tsv: missing; the rows of an imported model are in dev.tsv" in error


def test_a_task_with_labels_in_another_order_and_case(saved, tmp_path):
  """Of MNLI: entailment, neutral, contradiction, and no other."""
  folder = shutil.copytree(saved, tmp_path / "bert")
  (tmp_path / "glue" / "MNLI").mkdir(parents=True)
  golds = ["neutral", "entailment", "contradiction", "neutral"]
  rows = [[*pair, label] for label, pair in zip(golds, PAIRS, strict=True)]
  write(tmp_path / "glue/MNLI/dev_matched.tsv", ["sentence1", "sentence2", "gold_label"], rows)
  with pytest.raises(InputError, match="its labels are .*; those of text-classification are yes,"):
    evaluate.run(str(folder), str(tmp_path), task="mnli")
  change(folder, id2label={"0": "CONTRADICTION", "1": "Neutral", "2": "ENTAILMENT"})
  answers = gpt_jax.load(str(folder)).classify(PAIRS)
  lower = [{name.lower(): value for name, value in answer.items()} for answer in answers]
  measures = evaluate.run(str(folder), str(tmp_path), task="mnli")
  losses = [-np.log(answer[label]) for answer, label in zip(lower, golds, strict=True)]
  assert measures["loss"] == pytest.approx(np.mean(losses), abs=1e-4)
  right = [max(a, key=a.get) == label for a, label in zip(lower, golds, strict=True)]
  assert measures["accuracy"] == np.mean(right)


def test_the_server_reads_texts_and_pairs(saved):
  def rows_of(rows):
    fields = Fields(json.dumps({"texts": rows}).encode())
    return _read_rows(fields, load_model(str(saved)).task)

  rows = [TEXTS[0], [*PAIRS[0]], [TEXTS[0], ""]]
  assert rows_of(rows) == rows
  with pytest.raises(Refusal, match="3 columns; a text of this task"):
    rows_of([["a", "b", "c"]])


@pytest.mark.parametrize("names", [None, [], [5], "BertModel", {"a": 1}])
def test_a_class_without_a_name(copy, names):
  """Only a name says what the head reads."""
  change(copy, architectures=names)
  with pytest.warns(UserWarning, match="classifier.bias is left out: of the model only the trunk"):
    assert load_model(str(copy)).spec.head is None


@pytest.mark.parametrize("shape", [(), (10**9, 0)])
def test_a_head_without_rows(copy, shape):
  arrays = safetensors.load_file(copy / "model.safetensors")
  arrays["classifier.weight"] = np.zeros(shape, np.float32)
  safetensors.save_file(arrays, copy / "model.safetensors", {"format": "pt"})
  refused("/config.json: ClassifyHead.num_classes = 0: must be", load_model, str(copy))


@pytest.mark.parametrize(
  "names", [{0: "yes", 1: "no"}, {1: "a", 2: "b", 3: "c"}, {0: "a", 1: "a", 2: "b"}]
)
def test_labels_that_do_not_name_the_outputs(copy, names):
  change(copy, id2label=names)
  refused("/config.json: id2label is {.*: should ", load_model, str(copy))


def test_default_names(copy):
  change(copy, id2label=None)
  assert gpt_jax.load(str(copy)).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_question_answering_is_left_out_by_name(copy, launch):
  """transformers' class has the trunk and its own head."""
  arrays = safetensors.load_file(copy / "model.safetensors")
  arrays["qa_outputs.weight"] = arrays.pop("classifier.weight")[:2]
  arrays["qa_outputs.bias"] = arrays.pop("classifier.bias")[:2]
  safetensors.save_file(arrays, copy / "model.safetensors", {"format": "pt"})
  change(copy, architectures=["BertForQuestionAnswering"])
  with pytest.warns(UserWarning, match="qa_outputs.bias is left out: of BertForQuestionAnswering"):
    code, _, error = launch("predict", f"--checkpoint={copy}", "--input=-", input="the cat\n")
  assert code == 2 and error.count("\n") == 1
  assert f"{copy}: an encoder without a head; fine-tune it first" in error


def test_it_becomes_a_run_folder_and_is_exported_again(saved, tmp_path):
  import_weights.run("hf", str(saved), str(tmp_path / "run"))
  export.run(str(tmp_path / "run"), str(tmp_path / "out"), "hf")
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  assert config["id2label"] == dict(sorted(NAMES.items()))
  expected = gpt_jax.load(str(saved)).classify(PAIRS)
  for name in ("run", "out"):
    assert gpt_jax.load(str(tmp_path / name)).classify(PAIRS) == expected


@pytest.mark.e2e
def test_it_is_fine_tuned_further(saved, finetuned, tmp_path):
  """Its trunk and its pooler, with a new head."""
  config = dataclasses.replace(
    finetuned.config, lm_weight=0.0, train=TrainConfig(steps=1, keep_checkpoints=1)
  )
  finetune.run(config, finetuned.data_dir, str(saved), str(tmp_path / "run"))
  tuned = gpt_jax.load(str(tmp_path / "run"))
  assert tuned.labels == ("barks", "meows") and tuned.loaded.spec.head.transform == "pooler"
  theirs = load_model(str(saved)).params["trunk"]["pooler"]["kernel"]
  np.testing.assert_allclose(tuned.loaded.params["trunk"]["pooler"]["kernel"], theirs, atol=0.02)


def random_model(kind, suffix, tokenizer, **settings):
  """One of their classes, drawn by torch, every parameter perturbed."""
  if "GPT" in kind:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 48}
  else:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 128, "max_position_embeddings": 48}
    sizes["pad_token_id"] = tokenizer.special.pad
  if kind == "Roberta":
    sizes |= {"max_position_embeddings": 50, "type_vocab_size": 1}
  if kind == "Albert":
    sizes["embedding_size"] = 16
  return draw_theirs(kind + suffix, vocab_size=tokenizer.vocab_size, **sizes, **settings)


def write_theirs(folder, model, tokenizer):
  """A folder with the vocabulary as it was released."""
  model.save_pretrained(folder)
  for name, content in tokenizer.files.items():
    (folder / name).write_bytes(content)


def their_outputs(model, tokenizer, row):
  """Of a text or a pair by itself; of an encoder, as transformers' own tokenizer writes it."""
  import torch
  import transformers

  kind = type(model).__name__.removesuffix("Model").partition("For")[0]
  if "GPT" in kind:
    ids = np.concatenate([tokenizer.encode(text) for text in row])[None]
    inputs = {"input_ids": torch.from_numpy(ids).long()}
  else:
    kind = "Bert" if kind == "Albert" else kind
    theirs = getattr(transformers, f"{kind}Tokenizer").from_pretrained(model.name_or_path)
    inputs = theirs(*row, return_tensors="pt")
  with torch.no_grad():
    return model(**inputs)


def their_logits(model, tokenizer, row):
  return their_outputs(model, tokenizer, row).logits[0].double()


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Albert", "GPT2", "OpenAIGPT"])
@pytest.mark.parametrize("problem", ["one label", "several labels", "a number"])
def test_the_probabilities_are_theirs(tmp_path, kind, problem):
  tokenizer = vocabulary_of(kind)
  settings = {
    "one label": {"num_labels": 3, "id2label": {2: "maybe", 0: "yes", 1: "no"}},
    "several labels": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "a number": {"num_labels": 1},
  }[problem]
  if kind == "Bert":
    settings["classifier_dropout"] = 0.3
  if "GPT" in kind:  # of a letter that ends texts, and of one that does not
    settings["pad_token_id"] = tokenizer.encode("t" if problem == "one label" else "z").item()
  model = random_model(kind, "ForSequenceClassification", tokenizer, **settings)
  write_theirs(tmp_path, model, tokenizer)
  model.name_or_path = str(tmp_path)
  ours = gpt_jax.load(str(tmp_path))
  for rows in (TEXTS, PAIRS):
    for row, answer in zip(rows, ours.classify(rows), strict=True):
      logits = their_logits(model, tokenizer, [row] if isinstance(row, str) else row)
      if problem == "a number":
        assert answer == pytest.approx(logits.item(), abs=1e-5)
        continue
      expected = logits.softmax(-1) if problem == "one label" else logits.sigmoid()
      assert [*answer.values()] == pytest.approx(expected.tolist(), abs=1e-5)
  if problem == "one label":
    assert ours.labels == ("yes", "no", "maybe")
  assert ours.loaded.spec.head.dropout == (0.3 if kind == "Bert" else 0.1)


@pytest.mark.parity
@pytest.mark.parametrize(
  "kind, space", [("Bert", 0), ("Roberta", 0), ("Roberta", 1), ("Albert", 0)]
)
def test_every_word_has_their_tag(tmp_path, launch, kind, space):
  """The tag of its first token, as transformers gives it for the whole text; space: whether their
  tokenizer puts one before a text.
  """
  tokenizer = vocabulary_of(kind)
  names = {0: "O", 2: "B-PER", 1: "I-PER"}
  model = random_model(kind, "ForTokenClassification", tokenizer, num_labels=3, id2label=names)
  write_theirs(tmp_path / "model", model, tokenizer)
  if space:
    settings = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
  model.name_or_path = str(tmp_path / "model")
  texts = [*TEXTS, "reads, the <dog> [ran] (by) seabarn"]
  loaded = load_model(str(tmp_path / "model"))
  examples = [loaded.task.example(Row((text,), None, "text")) for text in texts]
  encoded = loaded.encode(loaded.task, examples)
  answers = []
  for text, found, truth in zip(texts, loaded.predictor()(encoded, 8), encoded.truth, strict=True):
    logits = their_logits(model, tokenizer, [text]).numpy()
    powers = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, powers, atol=1e-5)
    tags = powers[truth >= 0].argmax(-1)
    assert len(tags) == len(text.split())
    answers.append(" ".join(names[tag] for tag in tags))
  rows = list(map(list, zip(texts, answers, strict=True)))
  write(tmp_path / "dev.csv", ["text", "label"], rows)
  checkpoint = f"--checkpoint={tmp_path / 'model'}"
  code, printed, error = launch("evaluate", checkpoint, f"--data={tmp_path}")
  assert code == 0 and "accuracy      1.0000" in printed, error
  code, printed, error = launch("predict", checkpoint, f"--input={tmp_path / 'dev.csv'}")
  assert code == 0 and printed.splitlines()[1:] == answers, error


def add_modules(folder, *further, mode="mean_tokens", **encoder):
  """The files of sentence-transformers; encoder: what sentence_bert_config.json says."""
  modules = []
  for number, kind in enumerate(("Transformer", "Pooling", *further)):
    path = f"{number}_{kind}" if number else ""
    modules.append({"idx": number, "path": path, "type": f"sentence_transformers.models.{kind}"})
  (folder / "modules.json").write_text(json.dumps(modules))
  (folder / "sentence_bert_config.json").write_text(json.dumps(encoder))
  names = ("cls_token", "mean_tokens", "max_tokens", "weightedmean_tokens", "lasttoken")
  (folder / "1_Pooling").mkdir(exist_ok=True)
  pooling = {f"pooling_mode_{name}": name == mode for name in names}
  (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Albert"])
def test_embeddings_are_theirs(tmp_path, kind):
  """The mean over all tokens, [CLS] and [SEP] among them, or what the folder's modules ask for."""
  tokenizer = vocabulary_of(kind)
  model = random_model(kind, "Model", tokenizer)
  write_theirs(tmp_path, model, tokenizer)
  model.name_or_path = str(tmp_path)
  states = [their_outputs(model, tokenizer, [text]).last_hidden_state[0].numpy() for text in TEXTS]

  def same(expected):
    model = gpt_jax.load(str(tmp_path))
    assert repr(model).startswith("<encoder, ")
    found = model.embed(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)

  same([hidden.mean(0) for hidden in states])
  add_modules(tmp_path, mode="cls_token")
  same([hidden[0] for hidden in states])
  add_modules(tmp_path, mode="lasttoken")
  same([hidden[-1] for hidden in states])
  add_modules(tmp_path, "Normalize", mode="max_tokens")
  largest = np.array([hidden.max(0) for hidden in states])
  same(largest / np.linalg.norm(largest, axis=1, keepdims=True))


def test_the_embedding_goes_with_the_model(copy, tmp_path):
  """Into a run's folder; and what is too long for the published model is cut as there."""
  plain = gpt_jax.load(str(copy)).embed(TEXTS)
  add_modules(copy, "Normalize", max_seq_length=9, do_lower_case=False)
  import_weights.run("hf", str(copy), str(tmp_path / "run"))
  model = gpt_jax.load(str(tmp_path / "run"))
  assert model.loaded.embedding == gpt_jax.load(str(copy)).loaded.embedding
  refused("text 1: .* tokens, and the model's context is 9", model.embed, TEXTS)
  short = model.embed(TEXTS[1])
  np.testing.assert_allclose(short, plain[1] / np.linalg.norm(plain[1]), atol=1e-5)
  ids = model.loaded.tokenizer.encode(TEXTS[0])
  beginning = model.loaded.tokenizer.decode(ids[:7])
  np.testing.assert_allclose(model.embed(TEXTS[0], truncate=True), model.embed(beginning))


@pytest.mark.parametrize("longest", [9, 10**30])
def test_the_longest_text_of_version_6(copy, longest):
  """It is in the tokenizer's file; 10^30 stands for no limit."""
  add_modules(copy)
  (copy / "tokenizer_config.json").write_text(json.dumps({"model_max_length": longest}))
  model = gpt_jax.load(str(copy))
  ids = model.loaded.tokenizer.encode(TEXTS[0])
  beginning = model.loaded.tokenizer.decode(ids[:7] if longest == 9 else ids)
  np.testing.assert_allclose(model.embed(TEXTS[0], truncate=True), model.embed(beginning))


@pytest.mark.parametrize(
  "further, settings, message",
  [
    (["Dense"], {}, "modules.json has 'Transformer, Pooling, Dense': only 'Transformer, Po"),
    ([], {"mode": "weightedmean_tokens"}, "pooling_mode is 'weightedmean_tokens': only one of"),
    ([], {"mode": ""}, "pooling_mode is 'none': only one of mean, max, cls, lasttoken"),
    ([], {"module_output_name": "logits"}, "module_output_name is 'logits': only 'token_embeddin"),
  ],
)
def test_modules_that_are_not_supported(copy, further, settings, message):
  """The model classifies all the same."""
  add_modules(copy, *further, **settings)
  model = gpt_jax.load(str(copy))
  refused(f"^{copy}: {message}", model.embed, TEXTS)
  assert model.classify(TEXTS[0])


@pytest.mark.parity
@pytest.mark.parametrize("lstrip", [True, False, None])
def test_spaces_before_a_mask_are_those_of_the_folder(tmp_path, lstrip):
  """As its tokenizer.json says (None: as today's class has it, without one)."""
  import torch
  import transformers

  tokenizer = vocabulary_of("Roberta")
  model = random_model("Roberta", "ForMaskedLM", tokenizer)
  write_theirs(tmp_path, model, tokenizer)
  (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
  mask = transformers.AddedToken("<mask>", lstrip=bool(lstrip), special=True)
  of_folder = functools.partial(transformers.RobertaTokenizer.from_pretrained, tmp_path)
  if lstrip is not None:
    of_folder(mask_token=mask).save_pretrained(tmp_path)
  theirs, ours = of_folder(), gpt_jax.load(str(tmp_path))
  texts = "a cat <mask> on", "a cat\n<mask> on ", "the\t <mask>, <mask> dog </s> sat", "<mask>"
  for text in texts:
    inputs = theirs(text, return_tensors="pt")
    with torch.no_grad():
      probabilities = model(**inputs).logits[0].softmax(-1)
    expected = probabilities[inputs.input_ids[0] == theirs.mask_token_id].max(-1)
    for filled, best in zip(ours.fill_mask(text, 1), expected.values.tolist(), strict=True):
      assert filled[0].probability == pytest.approx(best, abs=1e-5), text


@pytest.mark.parity("released")
@pytest.mark.parametrize("name", ["roberta", "albert", "xlm-roberta"])
def test_older_names_of_the_settings(copy, name):
  """The older versions of sentence-transformers had one for each class."""
  add_modules(copy)
  settings = {"max_seq_length": 9, "do_lower_case": True}  # this vocabulary has lower case only
  (copy / "sentence_bert_config.json").unlink()
  (copy / f"sentence_{name}_config.json").write_text(json.dumps(settings))
  tokenizer = load_model(str(copy)).tokenizer
  assert read_embedding(str(copy), tokenizer) == Embedding("mean", longest=9)
  cased = read_embedding(str(copy), vocabulary_of("Roberta"))
  assert cased.unsupported == "do_lower_case is True, which is not supported"


@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "Transformer"])
def test_the_older_layout_has_the_model_in_a_folder(copy, tmp_path, kind):
  """Its pooling is read beside it, wherever the load begins."""
  root = tmp_path / "whole"
  model = root / f"0_{kind}"
  shutil.copytree(copy, model)
  add_modules(root, "Normalize", mode="cls_token")
  modules = json.loads((root / "modules.json").read_text())
  modules[0] |= {"path": f"0_{kind}", "type": f"sentence_transformers.models.{kind}"}
  (root / "modules.json").write_text(json.dumps(modules))
  (root / "config_sentence_transformers.json").write_text('{"similarity_fn_name": null}')
  for path in (root, model, model / "model.safetensors"):
    loaded = load_model(str(path))
    assert loaded.embedding == Embedding("cls", True, TRUNK.context)
  (root / "config_sentence_transformers.json").write_text('{"truncate_dim": 8}')
  assert load_model(str(root)).embedding.unsupported.startswith("truncate_dim is 8: only none")


def test_numbers_of_others_are_not_rounded(saved):
  """Nobody knows their scale; of ours it is the training set's."""
  task = ImportedTask("regression").build("")
  for number in (0.0780051, 0.0780099, 1.5e-6, -3.25e8):
    assert np.float32(task.answer(np.float32([number]))) == np.float32(number)
  assert not task._is_degenerate(np.float32([[1e-6], [2e-6]]))
  assert dataclasses.replace(task, knows_scale=True).answer(np.float32([0.0780051])) == 0.07801


def test_damaged_modules(copy):
  add_modules(copy, max_seq_length="9")
  refused("/sentence_bert_config.json: max_seq_length: .*longest", load_model, str(copy))
  (copy / "modules.json").write_text("{}")
  refused(f"^{copy}/modules.json: not a file of sentence-transformers", load_model, str(copy))
