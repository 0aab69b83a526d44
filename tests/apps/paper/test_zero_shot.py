"""Zero-shot scores of a hand-made model and of whole texts without a cache; all tasks."""

import json
import math
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refused import refused
from tiny_runs import make_masked

import gpt_jax
from gpt_jax.apps.paper import pronouns, zero_shot
from gpt_jax.apps.paper.zero_shot import (
  TASKS,
  Answer,
  Question,
  best_threshold,
  make_answers,
  score,
)
from gpt_jax.batch import Rows
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig, language_model
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.tasks.metrics import matthews
from gpt_jax.tasks.task import find


class Bigrams:
  """A bigram model of three words, with the probabilities below."""

  config = SimpleNamespace(trunk=SimpleNamespace(context=8, vocab_size=3))
  follows = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.3, 0.6, 0.1]])

  def apply(self, params, *arguments, method):
    del params
    if method == "start":
      return jnp.zeros((arguments[0], 1))
    ids, state = arguments[0], arguments[-1]
    return jnp.log(self.follows)[ids], jnp.eye(3), state


def test_scores_of_a_bigram_model_are_those_computed_by_hand():
  questions = [
    Question([0, 1], [[2], [0]], [0, 0]),  # 0 1 | 2: P(2 | 1); 0 1 | 0
    Question([1], [[2, 1, 1], [0]], [0, 0]),  # options of unequal lengths
    Question([1], [[2, 1, 1], [0, 2]], [1, 1]),  # the first ids are fed but not scored
    Question([], [[0, 1, 2]], [0]),  # the first token of a text cannot be scored
    Question([2] * 7 + [1], [[2, 1, 1]], [0]),  # without room the context loses its first tokens
  ]
  scored = score(Bigrams(), {}, questions)
  expected = [
    [(math.log(0.7), 1), (math.log(0.1), 1)],
    [(math.log(0.7) + math.log(0.6) + math.log(0.2), 3), (math.log(0.1), 1)],
    [(math.log(0.6) + math.log(0.2), 2), (math.log(0.25), 1)],
    [(math.log(0.25) + math.log(0.7), 2)],
    [(math.log(0.7 * 0.6 * 0.2), 3)],
  ]
  for answers, wanted in zip(scored, expected, strict=True):
    np.testing.assert_allclose(answers, wanted, rtol=1e-6, atol=1e-7)
  assert scored[1][0].mean == pytest.approx(math.log(0.7 * 0.6 * 0.2) / 3)


TRUNKS = [
  TransformerConfig(vocab_size=30, context=32, layers=1, width=16, heads=2),
  LSTMConfig(vocab_size=30, context=32, width=16, units=24),
]


@pytest.mark.parametrize("trunk", TRUNKS, ids=["transformer", "lstm"])
def test_reading_a_context_once_gives_the_scores_of_whole_texts(trunk, make_run):
  model, rng = language_model(trunk), np.random.default_rng(0)
  params = make_run.params_of(ModelConfig(trunk), 0)
  questions = []
  for context in (0, 1, 2, 9, 17, 24):
    options = [rng.integers(30, size=size).tolist() for size in (1, 3, 8, 20)[: 2 + context % 3]]
    questions.append(Question(rng.integers(30, size=context).tolist(), options, [0] * len(options)))

  def forward(params, ids):
    return model.apply({"params": params}, Rows(ids, jnp.arange(32)[None]), method="states")

  read = jax.jit(forward)

  def whole(ids):
    hidden, table, *_ = read(params, np.array([[*ids, *[0] * (32 - len(ids))]], np.int32))
    scores = np.asarray(hidden @ table.T, np.float64)[0, :, :30]
    scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
    return [scores[n - 1, ids[n]] for n in range(1, len(ids))]

  scored = score(model, params, questions)
  for question, answers in zip(questions, scored, strict=True):
    longest = max(map(len, question.options))
    context = question.context[max(0, len(question.context) + longest - 32) :]
    for option, answer in zip(question.options, answers, strict=True):
      scored = whole([*context, *option])[-len(option) :] if context or len(option) > 1 else []
      assert answer.tokens == len(scored)
      np.testing.assert_allclose(answer.total, sum(scored), rtol=1e-4, atol=1e-4)


def test_the_best_threshold_is_the_best_of_all():
  rng = np.random.default_rng(0)
  for _ in range(4):
    truth, scores = rng.integers(2, size=40), np.round(rng.normal(size=40), 1)
    threshold = best_threshold(truth, scores)
    every = [matthews(truth, (scores > t).astype(int)) for t in np.arange(-3.05, 3, 0.1)]
    assert matthews(truth, (scores > threshold).astype(int)) == pytest.approx(max(every))


@pytest.fixture(scope="module")
def world(tmp_path_factory, make_run, tiny_tokenizer):
  """A data folder with a few examples of each task, and a run with random parameters."""
  folder = tmp_path_factory.mktemp("zero_shot")
  for place in ("glue/CoLA", "glue/SST-2", "race/dev/middle", "winograd"):
    (folder / place).mkdir(parents=True)
  sentences = ["the cat sat on the mat", "cat the on sat", "the dog ran to the sea"]
  sentences += ["sea red the to", "the barn", "mat on"]
  for split in ("train", "dev"):
    lines = [f"x\t{1 - n % 2}\t\t{text}\n" for n, text in enumerate(sentences * 2)]
    (folder / f"glue/CoLA/{split}.tsv").write_text("".join(lines))
    rows = [f"{text} \t{n % 2}\n" for n, text in enumerate(sentences)]
    (folder / f"glue/SST-2/{split}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
  passage = {"article": "the cat sat on the mat " * 9, "answers": ["A", "D"]}
  passage["questions"] = ["the dog _", "who ran?"]
  options = ["ran to the sea", "sat", "the mat", "the old red barn"]
  passage["options"] = [options, ["cat", "dog", "sea", "mat"]]
  (folder / "race/dev/middle/1.txt").write_text(json.dumps(passage))
  (folder / "winograd/test.c.txt").write_text(
    "The cat sat on the mat because it was old.\nit\nThe cat,the mat\nthe cat\n\n"
    "Italy ran to the sea and it sat.\nit\nItaly,the sea\nItaly\n"
  )
  (folder / "winograd/wsc273.txt").write_text(
    "[MASK]  ran to the sea. \n[MASK]\nThe dog ,The barn \nThe dog \n"
  )
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=64, layers=1, width=16, heads=2)
  workdir = make_run(folder / "run", ModelConfig(trunk), steps=(3, 7))
  return SimpleNamespace(data=str(folder), run=workdir)


def test_every_task_over_a_run(world, tmp_path, monkeypatch, capsys):
  told, path = "^race-middle: 2 of 2 rows are longer than the context of 64", tmp_path / "out.json"
  with pytest.warns(UserWarning, match=told):
    results = zero_shot.run(world.run, world.data, history=True, out=str(path))
  assert json.loads(path.read_text()) == [result._asdict() for result in results]
  assert [result.step for result in results] == [3] * 7 + [7] * 7
  counts = {result.task: result.examples for result in results}
  assert counts == {"cola": 12, "sst2": 6, "race-middle": 2, "dprd": 2, "wsc273": 1}
  assert sum("ORACLE" in result.rule for result in results) == 2
  printed = capsys.readouterr().out
  assert printed.count("\n") == 14 and "words of 1" not in printed  # both words are split
  assert "tokens in this vocabulary: means are compared" in printed
  asked = world.run, world.data, ["dprd"]
  with monkeypatch.context() as patch:
    patch.setattr(zero_shot, "load_model", lambda *_: pytest.fail())  # refused before any work
    refused("out=.*out.json already exists; .*overwrite=True", zero_shot.run, *asked, out=str(path))
  assert len(json.loads(path.read_text())) == 14
  newest = zero_shot.run(*asked, out=str(path), overwrite=True)
  assert newest == [result for result in results if (result.task, result.step) == ("dprd", 7)]
  assert json.loads(path.read_text()) == [result._asdict() for result in newest]


def test_missing_scikit_learn_is_reported_at_once(world, monkeypatch):
  monkeypatch.setitem(sys.modules, "sklearn", None)
  monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
  monkeypatch.setattr(zero_shot, "measure", None)
  refused("needs scikit-learn", zero_shot.run, world.run, world.data)


LONG = "the cat sat " * 40


def write_cola(folder, train, dev):
  (folder / "glue" / "CoLA").mkdir(parents=True)
  for split, sentences in (("train", train), ("dev", dev)):
    rows = [f"x\t{int(text.startswith('the'))}\t\t{text}\n" for text in sentences]
    (folder / "glue" / "CoLA" / f"{split}.tsv").write_text("".join(rows))


@pytest.mark.parametrize(
  "train, dev, message",
  [
    (["the cat sat"], ["the"], "cola: no dev question can be scored; .*dev.tsv:1: no token to"),
    (["the cat sat"], [LONG], r"no dev question .*dev.tsv:1: \d+ tokens .* context is 64"),
    ([LONG], ["the cat sat"], r"no train question .*train.tsv:1: \d+ tokens .* context is 64"),
  ],
)
def test_a_task_without_a_question_that_fits_is_refused(
  world, tmp_path, monkeypatch, train, dev, message
):
  write_cola(tmp_path, train, dev)
  monkeypatch.setattr(zero_shot, "measure", None)
  refused(message, zero_shot.run, world.run, str(tmp_path), ["cola"])
  refused("no task can be evaluated", zero_shot.run, world.run, str(tmp_path))


def test_questions_longer_than_the_context_are_left_out(world, tmp_path):
  sentences = ["the cat sat", "cat the on sat", "the dog ran to the sea", "the barn"]
  write_cola(tmp_path / "short", sentences, sentences)
  write_cola(tmp_path / "long", [*sentences, LONG], [sentences[0], LONG, *sentences[1:], LONG])
  expected = zero_shot.run(world.run, str(tmp_path / "short"), ["cola"])
  with pytest.warns(UserWarning, match="cola: 3 of 11 questions left out; .*train.tsv:5: "):
    results = zero_shot.run(world.run, str(tmp_path / "long"), ["cola"])
  assert results == expected
  assert [result.examples for result in results] == [4] * 3


def test_only_tokens_after_the_head_are_scored(world, tiny_tokenizer):
  questions = TASKS["dprd"].questions(world.data, tiny_tokenizer, 0)
  assert len(TASKS["dprd"].questions(world.data, tiny_tokenizer, 1)) == 1
  text = tiny_tokenizer.decode
  # The common prefix of the candidates is context, here including the article.
  heads = ["the cat sat on the mat because the", "italy ran to the sea and"]
  assert [text(question.context).lower() for question in questions] == heads
  scored = [[text(o[n:]) for o, n in zip(q.options, q.unscored, strict=True)] for q in questions]
  assert scored == [["was old."] * 2, ["sat."] * 2]
  likelier, less = Answer(-1.0, 2), Answer(-1.0, 1)
  equal, rounded = Answer(-2.0, 4), Answer(-2.000001, 4)
  for options, value in (
    ((likelier, less), 1.0),
    ((less, likelier), 0.0),
    ((likelier, equal), 0.0),
    ((likelier, rounded), 0.0),
    ((rounded, likelier), 0.0),
  ):
    ((_, *score, _),) = TASKS["dprd"].judge(questions, [options] * 2)
    assert score == ["accuracy", value]  # ties go to the last option
  # Options that begin alike are scored whole.
  first = TASKS["race-middle"].questions(world.data, tiny_tokenizer, 0)[0]
  scored = [text(o[n:]) for o, n in zip(first.options, first.unscored, strict=True)]
  assert scored == ["ran to the sea", "sat", "the mat", "the old red barn"]


def test_the_first_whole_word_that_matches_is_the_pronoun(world):
  first, second = pronouns.read(world.data, "dprd")
  assert (first.before, first.after) == ("The cat sat on the mat because ", " was old.")
  assert first.candidates == ("the cat", "the mat")  # lower case: it no longer begins a sentence
  assert (second.before, second.answer) == ("Italy ran to the sea and ", 0)
  (schema,) = pronouns.read(world.data, "wsc273")
  assert (schema.before, schema.after) == ("", " ran to the sea.")
  assert schema.candidates == ("The dog", "The barn")


def test_real_files(data_root):
  assert len(pronouns.read(str(data_root), "dprd")) == 564
  schemas = pronouns.read(str(data_root), "wsc273")
  assert len(schemas) == 273
  # The first candidate is always right, so ties must not go to it.
  assert {schema.answer for schema in schemas} == {0}


def test_winograd_schemas_in_the_published_format(data_root, tmp_path):
  sample = data_root / "format_samples" / "winograd_wsc" / "wsc273" / "WSCollection.xml"
  (tmp_path / "winograd").mkdir()
  (tmp_path / "winograd" / "WSCollection.xml").write_bytes(sample.read_bytes())
  schemas = pronouns.read(str(tmp_path), "wsc273")
  first, before = schemas[0], "The city councilmen refused the demonstrators a permit because "
  assert (first.before, first.after) == (before, " feared violence.")
  assert (first.candidates, first.answer) == (("the city councilmen", "the demonstrators"), 0)


@pytest.mark.parametrize(
  "text, message",
  [
    ("The cat sat.\nit\na cat,a dog\n", ":1: 3 lines; there should be sentence, pronoun"),
    ("The cat sat.\nit\na cat,a dog\na cat\n", ":1: the pronoun 'it' is not in the sentence"),
    ("\n\nIt sat.\nit\na cat,a dog\na mat\n", ":3: answer 'a mat': should be one of two cand"),
    ("It sat.\nit\na cat\na cat\n", ":1: answer 'a cat': should be one of two candidates"),
    ("\n", ": empty"),
  ],
)
def test_broken_sentences(tmp_path, text, message):
  (tmp_path / "winograd").mkdir()
  (tmp_path / "winograd" / "test.c.txt").write_text(text)
  refused("test.c.txt" + message, pronouns.read, str(tmp_path), "dprd")


def test_a_masked_model_is_judged_by_its_pseudo_log_likelihood(
  world, make_run, tiny_tokenizer, tmp_path
):
  tokenizer = tiny_tokenizer.with_special("mask")
  model = gpt_jax.load(make_masked(make_run, tmp_path / "run", tokenizer, 64))
  with pytest.warns(UserWarning, match="race-middle: 2 of 2 rows are longer than the context"):
    results = zero_shot.run(model.loaded.path, world.data)
  assert {result.task for result in results} == {"cola", "sst2", "race-middle", "dprd", "wsc273"}
  means, truth = [], []
  for row in find("cola").examples(world.data, "dev"):
    means.append(model.pseudo_log_probs(row.sequences[0][0]).log_probs.mean())
    truth.append(int(np.argmax(row.label)))
  means, truth = np.array(means), np.array(truth)
  oracle = next(result for result in results if "ORACLE" in result.rule)
  predicted = (means > best_threshold(truth, means)).astype(int)
  assert oracle.value == pytest.approx(matthews(truth, predicted))
  # An option is scored given the rest of its text.
  questions = TASKS["sst2"].questions(world.data, tokenizer, 0)
  for question, options in zip(questions, make_answers(model.loaded)(questions), strict=True):
    for option, skip, answer in zip(question.options, question.unscored, options, strict=True):
      text = tokenizer.decode([*question.context, *option])
      scored = model.pseudo_log_probs(text).log_probs[len(question.context) + skip :]
      assert answer.tokens == len(scored)
      assert answer.total == pytest.approx(scored.sum(), abs=1e-4)
