"""The paper in miniature: prepare, pre-train, fine-tune with two baselines, generate; in minutes.

On the embedded story world (data/storyworld.py) it compares what a few hundred labels teach a
pre-trained model and one trained from scratch.
"""

import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.report import plot
from gpt_jax.apps.report.record import find_runs
from gpt_jax.apps.report.report import reported, write_report
from gpt_jax.apps.study import Study, percent, table
from gpt_jax.data.pieces import read_pieces
from gpt_jax.data.sources.source import find_all
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError, require
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.processes import log
from gpt_jax.programs import finetune, generate, prepare, pretrain
from gpt_jax.programs.finetune_evaluations import read_result
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.pretrain_samples import read_samples, with_samples
from gpt_jax.tasks.story import ONE_LABEL
from gpt_jax.tasks.task import BuiltinTask, Task
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

STEPS, TEXT_STEPS, SHORT_STEPS = 800, 1700, 100
EPOCHS, SHORT_EPOCHS = 5, 1
SEEDS, SHORT_SEEDS = 3, 1
PROMPTS = ("One morning Anna went to the", "Tom was at the harbour.", "At dawn Lucy came to the")
TEXT_PROMPTS = ("It was", "He said", "The old")
NEVER = 10**9  # steps; the last step is evaluated and saved anyway


def run(workdir: str, text: str = "", short: bool = False) -> None:
  """Runs all steps, skipping finished ones; writes results.md, results.json and loss.png.

  Logs an accuracy as soon as it is known, and the results so far after each step.

  Args:
    workdir: the folder for everything.
    text: your own text, as for prepare, to pre-train on and sample from; there are no tasks then.
    short: a few steps and one seed, to see that everything runs. The results are meaningless.
  """
  study = Study(workdir, "data", on_disk=True)
  began = time.monotonic()
  data, pretrained = study.path("data"), study.path("pretrained")
  size = vocabulary_size(text) if text else 1500
  prepare.run(PrepareConfig(source=text or "embedded", vocab_size=size), data)
  config = pretrain_config(SHORT_STEPS if short else TEXT_STEPS if text else STEPS, bool(text))
  metrics = pretrain.run(
    config, data, pretrained, make_recipe=with_samples(), **reported(pretrained)
  )
  entropy = TokenFile(data, "train").unigram_entropy
  results: dict[str, Any] = {"short": short, "unigram_entropy": entropy, **metrics, "tasks": {}}

  def save(stories: Sequence[str] = ()) -> str:
    results["seconds"] = round(time.monotonic() - began, 1)
    report = describe(results, stories)
    study.save(results, report)
    return report

  # What it wrote along the run, from noise to sense.
  log(save([f"step {n:,}: {prompt}{more}" for n, prompt, more in read_samples(pretrained)[::2]]))
  for task in () if text else ONE_LABEL:
    results["tasks"][task.name] = compare(task, pretrained, workdir, short)
    log(save())
  stories = generate.run(
    pretrained, TEXT_PROMPTS if text else PROMPTS, max_tokens=48, temperature=0.8, top_p=0.95
  )
  try:  # last, since the first picture of a machine takes seconds
    plot.run([pretrained], study.path("loss.png"), overwrite=True)
  except InputError as error:
    print(f"no loss.png: {error}", file=sys.stderr)
  print(save(stories))
  print(f"wrote results.md, results.json and loss.png to {workdir}", file=sys.stderr)


def vocabulary_size(text: str) -> int:
  """A size with room for all characters of the text that even a short text supports."""
  characters: set[str] = set()
  sources = find_all(text)
  for source in sources:
    for piece in read_pieces(source.name):
      characters.update(piece.text.casefold())
  by_length = min(4000, sum(source.size for source in sources) // 100)
  return max(260 + 2 * len(characters), by_length)  # 256 single bytes


def pretrain_config(steps: int, own_text: bool = False) -> PretrainConfig:
  """Sizes and learning rate tuned for two CPU cores."""
  # The world's text is hardly read twice, so that dropout would only slow the model down.
  dropout, rate, warmup = (0.1, 1e-3, 150) if own_text else (0.0, 2e-3, 100)
  names = ("embedding_dropout", "residual_dropout", "attention_dropout")
  rates: dict[str, Any] = dict.fromkeys(names, dropout)
  return PretrainConfig(
    trunk=TransformerConfig(context=64, layers=3, width=128, heads=4, **rates),
    data=WindowsConfig(batch_size=16, length=64),
    optim=OptimConfig(learning_rate=rate, warmup_steps=min(warmup, steps // 4)),
    train=TrainConfig(steps=steps, log_every=50, evaluate_every=max(1, steps // 4)),
    evaluation_batches=10,
  )


def finetune_config(task: Task, from_scratch: bool, epochs: int) -> finetune.FinetuneConfig:
  return finetune.FinetuneConfig(
    task=BuiltinTask(task.name),
    transfer_layers=-1 if from_scratch else None,
    batch_size=16,
    optim=OptimConfig(learning_rate=1e-3, schedule="linear", warmup_steps=0, warmup_share=0.1),
    train=TrainConfig(epochs=epochs, log_every=40, evaluate_every=NEVER, keep_checkpoints=1),
  )


def compare(
  task: Task, pretrained: str, workdir: str, short: bool
) -> dict[str, float | list[float]]:
  """Accuracies on dev examples, which share no phrase with the training examples."""

  def log_accuracies(folder: str) -> None:
    finished = filter(None, map(read_result, find_runs([folder])))
    values = [f"{result['dev']['dev_accuracy']:.1%}" for result in finished]
    if values:  # none where the first run was stopped
      log(f"{task.name}, {os.path.basename(folder)}: {', '.join(values)} of the dev set are right")

  accuracies: dict[str, float | list[float]] = {"chance": 1 / task.num_classes}
  # The pre-trained model first: its accuracy is what the user waits for. One seed from scratch is
  # enough to see that it stays at chance.
  seeds = SHORT_SEEDS if short else SEEDS
  for name, from_scratch, count in (("pretrained", False, seeds), ("from_scratch", True, 1)):
    folder = os.path.join(workdir, "tasks", task.name, name)
    config = finetune_config(task, from_scratch, SHORT_EPOCHS if short else EPOCHS)
    reporting = {**reported(folder), "on_end": [log_accuracies]}
    runs = finetune.run(config, "", pretrained, folder, seeds=count, **reporting)
    write_report(folder)  # once, not after each seed
    accuracies[name] = [run["dev"]["dev_accuracy"] for run in runs]
  accuracies["bag_of_words"] = bag_of_words(task)
  return accuracies


def bag_of_words(task: Task) -> float:
  """Dev accuracy of logistic regression on words and bigrams of each text field, and on how many
  words the first and the last field share.
  """
  require("sklearn", "the baseline", "scikit-learn", "metrics")
  from scipy import sparse
  from sklearn.exceptions import ConvergenceWarning
  from sklearn.feature_extraction.text import CountVectorizer
  from sklearn.linear_model import LogisticRegression

  multiple_choice = task.pooling == "per_choice"
  train_texts, train_labels = _texts_and_labels(task, "train")
  dev_texts, dev_labels = _texts_and_labels(task, "dev")
  counters = [
    CountVectorizer(ngram_range=(1, 2)).fit(column) for column in zip(*train_texts, strict=True)
  ]

  def features(texts):
    columns = zip(*texts, strict=True)
    counts = [counter.transform(column) for counter, column in zip(counters, columns, strict=True)]
    shared = [[len(set(fields[0].split()) & set(fields[-1].split()))] for fields in texts]
    return sparse.hstack([*counts, sparse.csr_matrix(shared)]).tocsr()

  targets = train_labels
  if multiple_choice:  # is this option the right one?
    targets = np.eye(task.num_classes, dtype=int)[train_labels].reshape(-1)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    model = LogisticRegression(max_iter=2000).fit(features(train_texts), targets)
  if multiple_choice:
    scores = model.decision_function(features(dev_texts))
    predicted = scores.reshape(-1, task.num_classes).argmax(-1)
  else:
    predicted = model.predict(features(dev_texts))
  return float((predicted == dev_labels).mean())


def _texts_and_labels(task: Task, split: str) -> tuple[list[tuple[str, ...]], np.ndarray]:
  """The fields of each example's first sequence (multiple choice: of all options), labels [N]."""
  examples = task.examples("", split)
  texts: list[tuple[str, ...]] = []
  for example in examples:
    texts += example.sequences if task.pooling == "per_choice" else example.sequences[:1]
  return texts, np.argmax(np.array([example.label for example in examples]), -1)


def describe(results: dict, stories: Sequence[str]) -> str:
  lines = []
  if results["short"]:
    short = f"Short run: {SHORT_STEPS} steps, {SHORT_SEEDS} seed. The numbers mean nothing."
    lines = [f"**{short}**", ""]
  lines.append(
    f"Held-out text: perplexity {results['valid_perplexity']:.2f}, "
    f"{results['valid_bits_per_byte']:.3f} bits per byte, loss {results['valid_loss']:.3f} nats "
    f"(unigram entropy {results['unigram_entropy']:.3f})."
  )
  if results["tasks"]:
    rows = []
    for name, row in results["tasks"].items():
      cells = [percent([row["chance"]]), percent([row["bag_of_words"]])]
      rows.append([name, *cells, percent(row["from_scratch"]), percent(row["pretrained"])])
    columns = ("accuracy, %", "chance", "bag of words", "from scratch, one seed", "pre-trained")
    lines += ["", *table(columns, rows)]
  quoted = [f"> {story}\n" for story in stories]
  lines += ["", *quoted, f"{results['seconds']:.0f} seconds in total.", ""]
  return "\n".join(lines)
