"""The adapter to lm-evaluation-harness: five local tasks, scored again by NumPy from logits."""

import collections
import dataclasses
import functools
import json
import math
import re

import jax
import numpy as np
import pytest
from tiny_runs import make_masked

import gpt_jax
from gpt_jax.apps.harness import harness as program
from gpt_jax.apps.harness import language_model as harness
from gpt_jax.batch import Rows
from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES, END_OF_TEXT
from gpt_jax.errors import InputError
from gpt_jax.inference.generate import continuations
from gpt_jax.inference.stream import Sampling
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig

CONTEXT = 32
CLAUSES = (
  "the cat sat on the mat",
  "the dog ran to the old red barn",
  "the sea",
  "a dog by the sea",
)
LONG = " and ".join(CLAUSES * 4)

CHOICE = """
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{options}}"
doc_to_target: "{{answer}}"
"""
TASKS = {
  "choose": CHOICE + "metric_list: [{metric: acc}]",
  "choose_normalized": CHOICE + "metric_list: [{metric: acc_norm}]",
  "cloze": """
output_type: loglikelihood
doc_to_text: "{{context}}"
doc_to_target: "{{options[0]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
""",
  "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
  "continue": """
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{written}}"
generation_kwargs: {until: [STOP], max_gen_toks: 40}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, make_run, tiny_tokenizer):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, CONTEXT, layers=2, width=16, heads=2)
  return load_model(make_run(tmp_path_factory.mktemp("harness") / "run", ModelConfig(trunk)))


def stop_letter(loaded):
  """The letter that the model writes most."""
  written = "".join(continuations(loaded, CLAUSES, Sampling(40, temperature=0)))
  for clause in CLAUSES:
    written = written.replace(clause, "", 1)
  letter, count = collections.Counter(filter(str.isalpha, written)).most_common(1)[0]
  assert letter.islower() and count > len(CLAUSES)
  return letter


@pytest.fixture(scope="module")
def documents(loaded):
  """Questions with two options each, their contexts of many lengths, and the model's own text."""
  rows = []
  stop = stop_letter(loaded)
  for number in range(20):
    context = " and ".join(CLAUSES[: number % 4 + 1])
    options = [f" and {CLAUSES[number % 3]}", f" {CLAUSES[-1]} by the old barn"]
    (whole,) = continuations(loaded, [context], Sampling(40, temperature=0))
    written = whole[len(context) :].split(stop)[0] if number % 2 else "nothing like it"
    row = {"context": context, "options": options[:: (-1) ** number], "answer": number % 2}
    rows.append(row | {"text": LONG[: 40 + 15 * number], "written": written})
  return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory, documents, loaded):
  folder = tmp_path_factory.mktemp("tasks")
  lines = "".join(json.dumps(row) + "\n" for row in documents)
  (folder / "rows.jsonl").write_text(lines)
  for name, text in TASKS.items():
    head = f"""task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/rows.jsonl}}}}
test_split: test
"""
    # In upper case, which a case-folded vocabulary never writes.
    text = text.replace("STOP", f'"{stop_letter(loaded).upper()}"')
    (folder / f"{name}.yaml").write_text(head + text)
  return folder


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, ids):
  places = np.arange(CONTEXT, dtype=np.int32)[None]
  hidden, table, *_ = model.apply({"params": params}, Rows(ids, places), method="states")
  return hidden @ table.T


def predictions(loaded, ids):
  """log P of every next token given the ids, float64 [n, V]."""
  padded = np.array([[*ids, *[0] * (CONTEXT - len(ids))]], np.int32)
  params = {"trunk": loaded.params["trunk"]}
  scores = np.asarray(logits_of(loaded.language_model(), params, padded), np.float64)
  scores = scores[0, : len(ids), : loaded.tokenizer.vocab_size]
  return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def score(loaded, context, continuation):
  """The sum of log P, and whether each token is the most likely; one token at a time."""
  before = loaded.tokenizer.encode(context).tolist()
  whole = loaded.tokenizer.encode(context + continuation).tolist()
  assert whole[: len(before)] == before  # no token spans the boundary
  total, greedy = 0.0, True
  for n in range(len(before), len(whole)):
    if n == 0:
      total, greedy = -math.log(loaded.tokenizer.vocab_size), False
      continue
    scores = predictions(loaded, whole[max(0, len(whole) - CONTEXT - 1) : n])[-1]
    total += scores[whole[n]]
    greedy &= int(scores.argmax()) == whole[n]
  return total, greedy


def score_text(loaded, text):
  """log P of a text in windows: of whole contexts, and a last one that is full too."""
  ids = loaded.tokenizer.encode(text).tolist()
  total, done = -math.log(loaded.tokenizer.vocab_size), 1
  while done < len(ids):
    end = min(len(ids), done + CONTEXT)
    start = max(0, end - 1 - CONTEXT)
    scores = predictions(loaded, ids[start : end - 1])
    total += sum(scores[n - start - 1, ids[n]] for n in range(done, end))
    done = end
  return total


@pytest.fixture
def offline(monkeypatch, tmp_path):
  """datasets keeps its cache in the test's folder."""
  datasets = pytest.importorskip("datasets")
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parity("lm-eval")
def test_five_local_tasks_score_as_one_text_at_a_time(
  loaded, documents, folder, offline, tmp_path, capsys
):
  out = tmp_path / "results.json"
  results = program.run(loaded.path, sorted(TASKS), str(folder), out=str(out))
  printed = capsys.readouterr().out
  names = "choose choose_normalized cloze cloze continue rolling rolling"
  assert [line.split()[0] for line in printed.splitlines()] == names.split()
  assert json.loads(out.read_text())["results"]["cloze"]["acc,none"] == results["cloze"]["acc,none"]

  totals = np.array(
    [[score(loaded, row["context"], option)[0] for option in row["options"]] for row in documents]
  )
  lengths = np.array([[len(option) for option in row["options"]] for row in documents])
  answers = np.array([row["answer"] for row in documents])
  right = (totals.argmax(1) == answers).mean()
  right_normalized = ((totals / lengths).argmax(1) == answers).mean()
  assert right != right_normalized  # else one could stand for the other
  assert results["choose"]["acc,none"] == pytest.approx(right)
  assert results["choose_normalized"]["acc_norm,none"] == pytest.approx(right_normalized)

  cloze = [score(loaded, row["context"], row["options"][0]) for row in documents]
  expected = math.exp(-np.mean([total for total, _ in cloze]))
  assert results["cloze"]["perplexity,none"] == pytest.approx(expected, rel=1e-4)
  assert results["cloze"]["acc,none"] == np.mean([greedy for _, greedy in cloze])

  texts = [row["text"] for row in documents]
  assert max(len(loaded.tokenizer.encode(text)) for text in texts) > 2 * CONTEXT
  total = sum(score_text(loaded, text) for text in texts)
  words, size = sum(len(re.split(r"\s+", text)) for text in texts), sum(map(len, texts))
  rolling = results["rolling"]
  assert rolling["word_perplexity,none"] == pytest.approx(math.exp(-total / words), rel=1e-4)
  assert rolling["bits_per_byte,none"] == pytest.approx(-total / size / math.log(2), rel=1e-4)

  assert results["continue"]["exact_match,none"] == 0.5


@pytest.mark.parity("lm-eval")
def test_the_harness_finds_the_model_by_its_name(loaded, folder, offline):
  import lm_eval
  from lm_eval.tasks import TaskManager

  harness.model_class()
  found = lm_eval.simple_evaluate(
    model="gpt_jax",
    model_args=f"checkpoint={loaded.path}",
    batch_size=3,
    tasks=["cloze"],
    task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    bootstrap_iters=0,
  )
  expected = program.run(loaded.path, ["cloze"], str(folder))
  perplexity = found["results"]["cloze"]["perplexity,none"]
  assert perplexity == pytest.approx(expected["cloze"]["perplexity,none"])


@pytest.mark.parametrize("settings", [(0.0, 0, 1.0), (0.9, 0, 1.0)])
def test_generation_does_not_depend_on_where_stop_strings_are_looked_for(loaded, settings):
  requests = harness.Requests(loaded, batch_size=4)
  prompts = [" and ".join(CLAUSES[:n]) for n in (1, 2, 3, 4, 1, 2)]
  written = requests.generate(prompts, [((), Sampling(75, *settings))] * 6, ["a task"] * 6)
  wholes = continuations(loaded, prompts, Sampling(75, *settings))
  assert [prompt + text for prompt, text in zip(prompts, written, strict=True)] == wholes
  stops = tuple(text[3:6] for text in written)
  cut = requests.generate(prompts, [(stops, Sampling(75, *settings))] * 6, [""] * 6)
  for text, whole in zip(cut, written, strict=True):
    assert text == whole[: min(whole.find(stop) for stop in stops if stop in whole)]


def test_a_continuation_without_context_has_a_uniform_first_token(loaded):
  requests = harness.Requests(loaded)
  ((total, greedy),) = requests.log_likelihoods([("", "the cat sat")], ["a task"])
  assert (total, greedy) == (pytest.approx(score(loaded, "", "the cat sat")[0], rel=1e-4), False)
  assert requests.text_log_likelihoods(["", "the cat sat"]) == [0, pytest.approx(total)]


def test_a_masked_model_scores_each_token_given_all_others(make_run, tiny_tokenizer, tmp_path):
  tokenizer = tiny_tokenizer.with_special("mask")
  model = gpt_jax.load(make_masked(make_run, tmp_path / "run", tokenizer, CONTEXT))
  requests = harness.Requests(model.loaded, 3)
  pairs = [(first, f" and {second}") for first in CLAUSES[2:] for second in CLAUSES]
  where = ["a document"] * len(pairs)
  found = requests.log_likelihoods(pairs, where)
  for (total, greedy), (context, added) in zip(found, pairs, strict=True):
    scored = model.pseudo_log_probs(context + added)
    skipped = len(tokenizer.encode(context))
    assert total == pytest.approx(scored.log_probs[skipped:].sum(), abs=1e-4) and not greedy
  (the,) = tokenizer.encode("the").tolist()  # a word of one token, now the likeliest everywhere
  masked = dict(model.loaded.params["masked"])
  masked["bias"] = np.where(np.arange(len(masked["bias"])) == the, 99, masked["bias"])
  certain = dataclasses.replace(model.loaded, params={**model.loaded.params, "masked": masked})
  [(_, greedy)] = harness.Requests(certain, 3).log_likelihoods([("cat", " the")], ["a text"])
  assert greedy
  short, empty, long = requests.text_log_likelihoods([CLAUSES[0], "", LONG])
  assert short == pytest.approx(model.pseudo_log_probs(CLAUSES[0]).log_probs.sum(), abs=1e-4)
  assert empty == 0 and long < short  # in windows
  with pytest.raises(InputError, match="a document: a masked language model does not continue"):
    requests.generate(["the"], [None], ["a document"])


def test_the_greedy_continuation_is_recognized(loaded):
  prompt = CLAUSES[1]
  (whole,) = continuations(loaded, [prompt], Sampling(6, temperature=0))
  added = whole[len(prompt) :]
  # Only where the text's tokens are those that were generated.
  while score(loaded, prompt, added)[1] is False:
    added = added[:-1]
  requests = harness.Requests(loaded)
  pairs = [(prompt, added), (prompt, " and the sea")]
  greedy = [most_likely for _, most_likely in requests.log_likelihoods(pairs, ["", ""])]
  assert greedy == [True, False]


def test_a_token_across_the_boundary_is_scored_and_spaces_belong_to_the_continuation(loaded):
  requests = harness.Requests(loaded)
  pairs = [("the cat ", "sat"), ("the cat", " sat"), ("the ca", "t"), ("the c", "at")]
  (spaced, _), (plain, _), (inside, _), (token, _) = requests.log_likelihoods(pairs, [""] * 4)
  assert spaced == plain
  pieces = [loaded.tokenizer.piece(i) for i in loaded.tokenizer.encode("the cat")]
  assert pieces == ["▁the", "▁c", "at"]  # "t" alone is no token of the whole
  assert inside == token


@pytest.mark.parity("released")
def test_released_gpt2_weights_read_the_mark_before_a_text(make_run, tmp_path):
  tokenizer = GPT2Tokenizer((*BYTES, END_OF_TEXT), ())
  spec = ModelConfig(TransformerConfig(257, CONTEXT, layers=1, width=16, heads=2, norm="pre"))
  meta = {"model": to_json(spec), "tokenizer_hash": tokenizer.hash}
  npz.save(str(tmp_path / "released"), make_run.params_of(spec, 1), meta, 1, tokenizer)
  loaded = load_model(str(tmp_path / "released"))
  ids = loaded.tokenizer.encode("A cat.").tolist()
  scores = predictions(loaded, [256, *ids[:-1]])
  expected = sum(scores[n, token] for n, token in enumerate(ids))
  (total,) = harness.Requests(loaded).text_log_likelihoods(["A cat."])
  assert total == pytest.approx(expected, rel=1e-4)


def test_bad_requests_name_their_document(loaded):
  requests = harness.Requests(loaded)
  with pytest.raises(InputError, match="cloze, document 3: the continuation ' ' adds no token"):
    requests.log_likelihoods([("the cat", " ")], ["cloze, document 3"])
  greedy = (), Sampling(5, temperature=0)
  with pytest.raises(InputError, match="continue, document 0: the prompt is empty"):
    requests.generate([" "], [greedy], ["continue, document 0"])


@pytest.mark.parity("lm-eval")
@pytest.mark.parametrize(
  "tasks, include_path, message",
  [
    ([], "tasks", "--tasks: name one or more"),
    (["cloze"], "nowhere", "--include_path=nowhere: no such folder"),
    (["broken"], "tasks", "--tasks=broken: cannot be loaded (FileNotFoundError"),
    (["beams"], "tasks", "beams, document 0: generation_kwargs.num_beams: not supported"),
  ],
)
def test_a_faulty_task_is_one_line(
  loaded, folder, offline, tmp_path, monkeypatch, tasks, include_path, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "tasks").mkdir()
  text = (folder / "continue.yaml").read_text()
  broken = text.replace("task: continue", "task: broken").replace("rows.jsonl", "lost.jsonl")
  (tmp_path / "tasks" / "broken.yaml").write_text(broken)
  beams = text.replace("task: continue", "task: beams").replace("until:", "num_beams: 4, until:")
  (tmp_path / "tasks" / "beams.yaml").write_text(beams)
  with pytest.raises(InputError) as error:
    program.run(loaded.path, tasks, include_path)
  assert message in str(error.value)
