"""Question answering by spans: tokens in their text, SQuAD's files and metrics, a tiny model."""

import json
import random

import jax
import numpy as np
import pytest
from bert_trunk import bert_trunk
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused

import gpt_jax
from gpt_jax.batch import Batch, Labels, Rows, Tags
from gpt_jax.config import to_json
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.heads.tag import SpanHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import States
from gpt_jax.programs import evaluate, export, finetune, predict
from gpt_jax.tasks.answers.span import (
  Answer,
  SpanTruth,
  exact_match,
  find_tokens,
  locate_tokens,
  make_example,
  normalize,
  token_f1,
)
from gpt_jax.tasks.formats import BERTFormat, GPTFormat
from gpt_jax.tasks.packing import OrderedBatches, PackedBatches
from gpt_jax.tasks.task import BuiltinTask, find
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

TEXT = ["the Cat sat on the mat, and the dog's (old) barn-door: 1969-70 by the café."] * 3
TRAINED = {
  "sentencepiece": lambda: SentencePieceTokenizer.train(TEXT, 290),
  "wordpiece": lambda: WordPieceTokenizer.train(TEXT, 60),
  "bytes": lambda: ByteBPETokenizer.train(TEXT, 300),
}
SMALL_TOKENS = [  # of parts of a word between punctuation
  pytest.param(kind, marks=pytest.mark.parity("released")) for kind in ("wordpiece", "bytes")
]
WORDS = st.text(st.sampled_from("abcdeTHE019.,-'()é日İﬁ🙂"), min_size=1, max_size=9)


@pytest.fixture(scope="module")
def tokenizer(request):
  return TRAINED[request.param]()


# Tokens and their text ----------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["sentencepiece", *SMALL_TOKENS], indirect=True)
@settings(max_examples=60, deadline=None)
@given(words=st.lists(WORDS, min_size=1, max_size=6), data=st.data())
def test_tokens_are_where_their_characters_are(tokenizer, words, data):
  text = " ".join(words)
  ((ids, spans),) = locate_tokens([text], tokenizer)
  np.testing.assert_array_equal(ids, tokenizer.encode(text))
  assert spans.shape == (len(ids), 2)
  begins = np.cumsum([0, *(len(word) + 1 for word in words)])
  for begin, word in zip(begins, words, strict=False):
    own = spans[(spans[:, 0] >= begin) & (spans[:, 0] < begin + len(word))]
    assert (own[:, 0] < own[:, 1]).all()
    if len(own):  # the tokenizer keeps something of the word: its tokens cover it
      assert own[0, 0] == begin and own[-1, 1] == begin + len(word)
  # An answer of whole words is read back from the tokens that it was turned into.
  first = data.draw(st.integers(0, len(words) - 1))
  last = data.draw(st.integers(first, len(words) - 1))
  answer = Answer(" ".join(words[first : last + 1]), int(begins[first]))
  start, end = find_tokens(answer, spans)
  if end < len(spans):
    read = text[spans[start, 0] : spans[end, 1]]
    assert read == answer.text or len(ids) < len(words)


@pytest.mark.parity("released")
def test_an_unknown_character_is_not_all_that_follows():
  """Chinese has no spaces, and BERT's vocabularies lack quotation marks."""
  text = "\u4e70\u4e86\u4e00\u76cf\u706f\u9001"
  bert = WordPieceTokenizer(("[UNK]", "[CLS]", "[SEP]", "\u4e70", "\u706f", "\u9001", "old", "cat"))
  ((ids, spans),) = locate_tokens([text], bert)
  assert spans.tolist() == [[n, n + 1] for n in range(len(text))] and 0 in ids
  ((_, spans),) = locate_tokens(["\u201cold\u201d cat"], bert)
  assert [(b, e) for b, e in spans.tolist()] == [(0, 1), (1, 4), (4, 5), (6, 9)]


@pytest.mark.parametrize("tokenizer", SMALL_TOKENS, indirect=True)
def test_a_part_of_a_word_is_an_answer_of_its_own(tokenizer):
  text = "It sat in the (Old) barn, 1969-70."
  ((_, spans),) = locate_tokens([text], tokenizer)
  for part in ("Old", "1969", "70"):
    start, end = find_tokens(Answer(part, text.index(part)), spans)
    assert text[spans[start, 0] : spans[end, 1]] == part


def test_answers_are_found_where_files_are_off_by_a_character():
  label = (Answer("cat", 10), Answer("dog", 0))
  example = make_example("who?", "a cat, a cat and a dog", label, "x")
  assert [answer.start for answer in example.label] == [9, 19]
  message, cow = "^x: the answer 'cow' is no part of its context$", (Answer("cow", 0),)
  refused(message, make_example, "who?", "a cat", cow, "x")


# Metrics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "answers, text, exact, f1",
  [
    (["The Cat."], "a cat", 1, 1),
    (["the old cat"], "cat", 0, 2 / 3),
    (["cat", "the old red barn"], "old barn", 0, 0.8),
    (["cat cat dog"], "cat dog dog", 0, 2 / 3),
    (["1,969"], "1969", 1, 1),
    (["cat"], "dog", 0, 0),
    ([], "", 1, 1),
    ([], "cat", 0, 0),
    (["cat"], "", 0, 0),
    (["the", "cat"], "cat", 1, 1),
  ],
)
def test_squads_metrics(answers, text, exact, f1):
  assert exact_match([answers], [text]) == exact
  assert token_f1([answers], [text]) == pytest.approx(f1)


def test_squads_normalization():
  assert normalize("  The cat's  an AN-other, (a) thing!\n") == "cats another thing"
  assert normalize("theatre a1 Ántonia") == "theatre a1 ántonia"


# Examples and batches -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoded(tiny_tokenizer):
  examples = [
    make_example("who sat?", "the old cat sat", (Answer("old cat", 4),), "x:1"),
    make_example("who ran?", "the dog ran to the barn", (Answer("dog", 4),), "x:2"),
    make_example("who ran?", "the old cat sat", (), "x:3"),
  ]
  tokenizer = tiny_tokenizer.with_special("start", "delimiter", "extract", "cls", "sep")
  return {
    format: find("squad-2").encode(examples, tokenizer, 64, format)
    for format in (GPTFormat(), BERTFormat())
  }


@pytest.mark.parametrize("format", [GPTFormat(), BERTFormat()])
def test_scores_of_the_right_ends_give_the_answer(encoded, format):
  data = encoded[format]
  predictions = []
  for one in data.truth:
    scores = np.zeros((len(one.numbers), 2))
    first, last = one.target
    at = [np.argmax(one.numbers == i) for i in (first, last)] if first >= 0 else [one.anchor] * 2
    scores[at, [0, 1]] = 9
    predictions.append(scores)
  task = find("squad-2")
  results = [task.result(*pair)["prediction"] for pair in zip(predictions, data.truth, strict=True)]
  assert results == ["old cat", "dog", ""]
  assert task.measures(predictions, data.truth)["loss"] < 0.01
  assert task.score(predictions, data.truth) == {"f1": 1, "exact_match": 1}


def test_only_the_context_answers(encoded):
  for one in encoded[BERTFormat()].truth:
    scores = np.where(one.numbers[:, None] >= 0, np.zeros((1, 2)), 99)
    answer = find("squad").result(scores, one)["prediction"]
    assert answer and answer in one.context
    assert find("squad-2").result(scores, one)["prediction"] == ""


def test_an_answer_ends_after_its_start_and_within_30_tokens():
  words = " ".join("abcdefgh"[n % 8] for n in range(60))
  spans = np.array([(2 * n, 2 * n + 1) for n in range(60)])
  truth = SpanTruth(words, spans, np.arange(60), 0, (0, 0), ())
  scores = np.zeros((60, 2))
  scores[20, 0], scores[10, 1], scores[55, 1], scores[40, 1] = 9, 9, 9, 1
  assert find("squad").result(scores, truth)["prediction"] == words[40:81]


@pytest.mark.parametrize("groups", [1, 2])
def test_the_heads_loss_is_that_of_each_example_alone(encoded, groups):
  data = encoded[GPTFormat()]
  head, rng = SpanHead(), np.random.default_rng(0)
  batches = OrderedBatches(data, 4, groups)
  (batch,) = batches
  scores = rng.normal(size=(*batch.rows.inputs.shape, 2)).astype(np.float32)
  states = States(hidden=None, table=None)
  rows = len(scores) // groups
  total, weight = 0.0, 0.0
  for g in range(groups):
    part = jax.tree.map(lambda x, g=g: np.split(x, groups)[g], batch)
    mean = head.loss(scores[g * rows : (g + 1) * rows], states, part, 0)
    total, weight = total + float(mean.total), weight + float(mean.weight)
  expected = find("squad").loss(batches.unpack(0, scores), data.truth)
  assert weight == 3 and total / weight == pytest.approx(expected, rel=1e-5)


def test_positions_outside_the_context_neither_win_nor_have_a_gradient():
  ids = np.zeros((1, 6), np.int32)
  rows = Rows(ids, ids, np.array([[1, 1, 1, 1, 2, 0]]))
  tags = Tags(np.array([[0, 0, 1, 0, 0, 0]]), np.array([[0.0, 1, 1, 0, 1, 0]]))
  labels = Labels(np.array([[3]]), np.array([[0.0, 1.0]]), np.ones(1))
  batch = Batch(rows, labels=labels, tags=tags)
  states = States(hidden=None, table=None)
  gradient = jax.grad(lambda x: SpanHead().loss(x, states, batch, 0).total)(np.ones((1, 6, 2)))
  assert (np.abs(gradient).sum((0, 2)) > 0).tolist() == [False, True, True, True, False, False]


def test_answers_that_are_cut_off_are_counted_once(tiny_tokenizer):
  text = "the dog ran to the sea " * 9 + "and the cat sat"
  answers = (Answer("cat", text.index("cat")),)
  examples = [make_example("who sat?", text, answers, f"x:{n}") for n in (1, 2)]
  with pytest.warns(UserWarning, match="^squad: 2 of 2 answers are cut off, .* reads 32 tokens$"):
    data = find("squad").encode(examples, tiny_tokenizer, 32)
  assert data.labels.tolist() == [[-1, -1]] * 2 and (data.lengths == 32).all()
  assert "squad" in repr(find("squad")) and PackedBatches(data, 2, 0, 1).steps_per_epoch == 1


# Files --------------------------------------------------------------------------------------------


def squad_file(folder, name, passages):
  """passages: (context, [(question, answer or None), …])."""
  paragraphs = []
  for p, (context, questions) in enumerate(passages):
    qas = []
    for q, (question, answer) in enumerate(questions):
      answers = [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}]
      qas.append({"id": f"{p}-{q}", "question": question, "answers": answers})
    paragraphs.append({"context": context, "qas": qas})
  content = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
  (folder / name).write_text(json.dumps(content))


def test_the_official_files_are_read(tmp_path):
  squad_file(tmp_path, "dev-v1.1.json", [("a cat sat", [("who?", "cat"), ("what?", "sat")])])
  (tmp_path / "squad").mkdir()
  squad_file(tmp_path / "squad", "dev-v2.0.json", [("a cat sat", [("who ran?", None)])])
  first, second = find("squad").examples(str(tmp_path), "dev")
  assert first == ("who?", "a cat sat", (Answer("cat", 2),), first.location)
  assert second.location.endswith("dev-v1.1.json: article 0, paragraph 0, question 0-1")
  assert [example.label for example in find("squad-2").examples(str(tmp_path), "dev")] == [()]


ANSWER = {"text": "cat", "answer_start": 2}
QUESTION = {"id": "1", "question": "who?", "answers": [ANSWER]}


@pytest.mark.parametrize(
  "content, message",
  [
    ("{", r"dev-v1\.1\.json: cannot be read \("),
    ("[]", r"dev-v1\.1\.json: should be an object with a list 'data'"),
    ({"data": [{}]}, r"article 0: should be an object with a list 'paragraphs'"),
    ({"data": [{"paragraphs": [7]}]}, r"paragraph 0: should be an object with a list 'qas'"),
    ([QUESTION | {"answers": 3}], r"paragraph 0: should have a context, and questions with id"),
    ([{"id": "1"}], r"paragraph 0: should have a context"),
    ([QUESTION | {"question": 5}], r"paragraph 0: should have a context"),
    ([QUESTION | {"question": " "}], r"question 1: question is empty"),
    ([QUESTION | {"answers": []}], r"question 1: no answer; version 2\.0, the task squad-2"),
    ([QUESTION | {"answers": [ANSWER | {"text": "dog"}]}], r"question 1: the answer 'dog'"),
    ([QUESTION | {"answers": [ANSWER | {"answer_start": "2"}]}], r"paragraph 0: should have"),
  ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, content, message):
  if isinstance(content, list):
    content = {"data": [{"paragraphs": [{"context": "a cat sat", "qas": content}]}]}
  text = content if isinstance(content, str) else json.dumps(content)
  (tmp_path / "dev-v1.1.json").write_text(text)
  refused(message, find("squad").examples, str(tmp_path), "dev")


def test_missing_files_are_named(tmp_path):
  read = find("squad").examples
  refused(r"squad/train-v1\.1\.json: missing", read, str(tmp_path), "train")
  refused("its test set is not public", read, str(tmp_path), "test")


# Model --------------------------------------------------------------------------------------------


def train(folder, pretrained, version, none=0.0, **options):
  """The result of a run in which a tiny model learns to find the animal, if there is one."""
  rng = random.Random(0)
  for split, count in (("train", 240), ("dev", 48)):
    passages = []
    for _ in range(count):
      words = rng.choices("the sat on mat and ran to old barn red sea".split(), k=9)
      animal = rng.choice(("cat", "dog")) if rng.random() >= none else None
      if animal:
        words.insert(rng.randrange(9), animal)
      passages.append((" ".join(words), [(rng.choice(("who sat", "who ran")), animal)]))
    squad_file(folder, f"{split}-v{version}.json", passages)
  config = finetune.FinetuneConfig(
    batch_size=16,
    optim=OptimConfig(learning_rate=1e-2, schedule="linear", warmup_steps=4),
    train=TrainConfig(epochs=8, log_every=15, evaluate_every=15),
    **options,
  )
  (result,) = finetune.run(config, str(folder), pretrained, str(folder / "run"))
  return result


@pytest.fixture(scope="module")
def trained(make_run, tiny_tokenizer, tmp_path_factory):
  """The folders of the files and of the run of a GPT, and its result."""
  folder = tmp_path_factory.mktemp("squad")
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=64, layers=1, width=32, heads=2)
  pretrained = make_run(folder / "pretrained", ModelConfig(trunk))
  return folder, train(folder, pretrained, "1.1", task=BuiltinTask("squad"), lm_weight=0.2)


@pytest.mark.e2e
def test_it_learns_and_predicts_the_text_of_the_answer(trained, tmp_path):
  folder, result = trained
  best = str(folder / "run" / "best")
  lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
  losses = [json.loads(line)["dev_loss"] for line in lines if "dev_loss" in line]
  assert losses[-1] < losses[0] / 2
  assert result["dev"]["dev_exact_match"] > 0.7 and result["dev"]["dev_f1"] > 0.7
  measured = evaluate.run(best, str(folder), "dev")
  assert measured["examples"] == 48
  assert measured["exact_match"] == result["best"]["dev_exact_match"]
  attacked = evaluate.run(best, str(folder), "dev", attack="fgm", radius=[0.01])
  assert attacked["attack"][0]["loss"] >= measured["loss"]
  export.run(best, str(tmp_path / "npz"))
  assert evaluate.run(str(tmp_path / "npz"), str(folder), "dev") == measured
  rows = "question\tcontext\nwho sat\tthe red cat sat on the old mat\nwho ran\t\n"
  (tmp_path / "rows.tsv").write_text(rows)
  out = tmp_path / "answers.csv"
  with pytest.warns(UserWarning, match="1 of 2 rows has no prediction"):
    first, second = predict.run(best, str(tmp_path / "rows.tsv"), str(out))
  assert first == {"prediction": first["prediction"], "probabilities": {}}
  assert first["prediction"] in "the red cat sat on the old mat"
  assert second["prediction"] is None and "context is empty" in second["problem"]
  assert out.read_text().splitlines()[0] == "prediction,problem"
  split = predict.run(best, data=str(folder), split="dev")
  assert np.mean([row["prediction"] in ("cat", "dog") for row in split]) > 0.7


@pytest.mark.e2e
def test_what_reads_labels_of_a_text_refuses(trained, tmp_path):
  checkpoint = str(trained[0] / "run" / "best")
  classify, texts = gpt_jax.load(checkpoint).classify, [("who sat", "the cat sat")]
  refused("squad answers by a part of the text; use predict.run", classify, texts)
  refused("every token; npz can hold it", export.run, checkpoint, str(tmp_path / "hf"), "hf")
  function = str(tmp_path / "function")
  refused("format=stablehlo: .*every token", export.run, checkpoint, function, "stablehlo")
  data = {"data": str(trained[0]), "split": "dev"}
  refused("give one checkpoint", predict.run, [checkpoint] * 2, **data)


@pytest.mark.e2e
@pytest.mark.slow
def test_berts_trunk_refuses_and_is_exported(make_run, tiny_tokenizer, tmp_path):
  """Version 2.0, of which a third of the questions have no answer."""
  pytest.importorskip("safetensors")
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask", "pad")
  sizes = {"context": 64, "layers": 1, "width": 32, "heads": 2}
  trunk = bert_trunk(tokenizer.vocab_size, special_tokens=len(tokenizer.special), **sizes)
  spec = ModelConfig(trunk, (MaskedHead(),), "bidirectional")
  meta = {"tokenizer": tokenizer, "sequence_format": to_json(BERTFormat())}
  pretrained = make_run(tmp_path / "pretrained", spec, **meta)
  train(tmp_path, pretrained, "2.0", none=0.35, task=BuiltinTask("squad-2"), lm_weight=0.0)
  measured = evaluate.run(str(tmp_path / "run" / "best"), str(tmp_path))
  assert measured["exact_match"] > 0.7
  export.run(str(tmp_path / "run" / "best"), str(tmp_path / "hf"), "hf")
  assert evaluate.run(str(tmp_path / "hf"), str(tmp_path)) == measured
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert config["architectures"] == ["BertForQuestionAnswering"]
  rows = predict.run(str(tmp_path / "hf"), data=str(tmp_path), split="dev")
  answers = [row["prediction"] for row in rows]
  assert answers.count("") > 5 and answers.count("cat") > 5
