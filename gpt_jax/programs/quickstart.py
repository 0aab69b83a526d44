"""The program that shows all of it in minutes: a vocabulary, pre-training, fine-tuning against two
baselines, stories.

On the embedded world (data/storyworld.py) it asks the paper's question in miniature: what do a few
hundred labels teach a model that has read, and one that has not?
"""

import os
import statistics
import sys
import time
import warnings

import numpy as np

from gpt_jax.data.pieces import read_pieces
from gpt_jax.data.sources.source import find_all
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.files import write_json
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import finetune, generate, prepare, pretrain
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.story import TASKS
from gpt_jax.tasks.task import BuiltinTask, Task
from gpt_jax.training import reporter as reporting
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

STEPS, SHORT_STEPS = 1700, 100
EPOCHS, SHORT_EPOCHS = 5, 1
SEEDS, SHORT_SEEDS = 3, 1
PROMPTS = ("One morning Anna went to the", "Tom was at the harbour.", "At dawn Lucy came to the")
TEXT_PROMPTS = ("It was", "He said", "The old")
NEVER = 10**9  # steps: the last step is evaluated and saved anyway


def run(workdir: str, text: str = "", short: bool = False) -> None:
  """Runs everything below `workdir`, skipping what is done there, and writes results.md,
  results.json and loss.png.

  Args:
    workdir: the folder.
    text: files of the user's own, as for prepare; pre-trains on them and samples, and there are no
      tasks.
    short: hardly any training and one seed; the results say so, and are worth nothing.
  """
  began = time.monotonic()
  data, pretrained = os.path.join(workdir, "data"), os.path.join(workdir, "pretrained")
  prepare.run(
    PrepareConfig(source=text or "embedded", vocab_size=vocabulary(text) if text else 1500), data
  )
  measured = pretrain.run(pretrain_config(SHORT_STEPS if short else STEPS), data, pretrained)
  entropy = TokenFile(data, "train").unigram_entropy
  plot(pretrained, entropy, os.path.join(workdir, "loss.png"))
  results = {"short": short, "unigram_entropy": entropy, **measured, "tasks": {}}
  for task in () if text else TASKS:
    results["tasks"][task.name] = compare(task, pretrained, workdir, short)
  stories = generate.run(
    pretrained, TEXT_PROMPTS if text else PROMPTS, max_tokens=48, temperature=0.8, top_p=0.95
  )
  results["seconds"] = round(time.monotonic() - began, 1)
  report = describe(results, stories)
  write_json(os.path.join(workdir, "results.json"), results)
  with open(os.path.join(workdir, "results.md"), "w", encoding="utf-8") as file:
    file.write(report)
  print(report)
  print(f"written: results.md, results.json and loss.png in {workdir}", file=sys.stderr)


def vocabulary(text: str) -> int:
  """A size that holds the text's characters and that even a short text supports; nobody should
  have to think of it.
  """
  sources = find_all(text)
  characters = {
    c for source in sources for piece in read_pieces(source.name) for c in piece.text.casefold()
  }
  return max(
    260 + 2 * len(characters), min(4000, sum(source.size for source in sources) // 100)
  )  # 256 single bytes


def pretrain_config(steps: int) -> PretrainConfig:
  """Sizes and rates chosen by measurement on two cores."""
  return PretrainConfig(
    trunk=TransformerConfig(context=64, layers=3, width=128, heads=4),
    data=WindowsConfig(batch_size=16, length=64),
    optim=OptimConfig(learning_rate=1e-3, warmup_steps=min(150, steps // 4)),
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
  """Accuracies on examples whose phrases no labeled training example has."""
  found = {"chance": 1 / task.num_classes, "bag_of_words": bag_of_words(task)}
  for name, from_scratch in (("from_scratch", True), ("pretrained", False)):
    folder = os.path.join(workdir, "tasks", task.name, name)
    config = finetune_config(task, from_scratch, SHORT_EPOCHS if short else EPOCHS)
    runs = finetune.run(config, "", pretrained, folder, seeds=SHORT_SEEDS if short else SEEDS)
    found[name] = [run["dev"]["dev_accuracy"] for run in runs]
  return found


def bag_of_words(task: Task) -> float:
  """Accuracy of logistic regression over words and word pairs of each text, and over what the
  texts share.
  """
  try:
    from scipy import sparse
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
  except ImportError as error:
    raise InputError("the baseline needs scikit-learn: pip install 'gpt_jax[metrics]'") from error
  sets = {split: task.examples("", split) for split in ("train", "dev")}
  labels = {
    split: np.argmax([example.label for example in examples], -1)
    for split, examples in sets.items()
  }
  choose = task.pooling == "per_choice"
  texts = {  # a row a sequence where sequences are chosen among, else a row an example
    split: [
      fields
      for example in examples
      for fields in (example.sequences if choose else example.sequences[:1])
    ]
    for split, examples in sets.items()
  }
  counters = [
    CountVectorizer(ngram_range=(1, 2)).fit(column) for column in zip(*texts["train"], strict=True)
  ]

  def features(split: str):
    columns = zip(*texts[split], strict=True)
    shared = [[len(set(fields[0].split()) & set(fields[-1].split()))] for fields in texts[split]]
    counted = [counter.transform(column) for counter, column in zip(counters, columns, strict=True)]
    return sparse.hstack([*counted, sparse.csr_matrix(shared)]).tocsr()

  def targets(split: str):
    return (
      np.eye(task.num_classes, dtype=int)[labels[split]].reshape(-1) if choose else labels[split]
    )

  with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    model = LogisticRegression(max_iter=2000).fit(features("train"), targets("train"))
  if choose:
    predicted = model.decision_function(features("dev")).reshape(-1, task.num_classes).argmax(-1)
  else:
    predicted = model.predict(features("dev"))
  return float((predicted == labels["dev"]).mean())


def plot(pretrained: str, unigram_entropy: float, path: str) -> None:
  """The loss of training and of held-out text by step, with the entropy that knows only
  frequencies.
  """
  try:
    import matplotlib
  except ImportError:
    print("no loss.png: it needs matplotlib, pip install 'gpt_jax[plots]'", file=sys.stderr)
    return
  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
  for name, label, style in (("loss", "training", "-"), ("valid_loss", "held-out text", "o-")):
    axes.plot(*reporting.curve(pretrained, name), style, label=label)
  axes.axhline(unigram_entropy, linestyle=":", color="gray", label="unigram entropy")
  axes.set(xlabel="step", ylabel="nats per token", title="Pre-training")
  axes.legend()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)


def describe(results: dict, stories: list[str]) -> str:
  """The report, in Markdown."""
  lines = []
  if results["short"]:
    lines += [
      f"**Short run: {SHORT_STEPS} steps and {SHORT_SEEDS} seed. These numbers say nothing.**",
      "",
    ]
  lines.append(
    f"Held-out text: perplexity {results['valid_perplexity']:.2f}, {results['valid_bits_per_byte']:.3f} bits per byte, "
    f"loss {results['valid_loss']:.3f} nats (unigram entropy {results['unigram_entropy']:.3f})."
  )
  if results["tasks"]:
    lines += [
      "",
      "| accuracy, % | chance | bag of words | from scratch | pre-trained |",
      "|---|---|---|---|---|",
    ]
    for name, row in results["tasks"].items():
      cells = [_percent([row["chance"]]), _percent([row["bag_of_words"]])]
      cells += [_percent(row["from_scratch"]), _percent(row["pretrained"])]
      lines.append(f"| {name} | {' | '.join(cells)} |")
  lines += [
    "",
    *(f"> {story}\n" for story in stories),
    f"{results['seconds']:.0f} seconds in all.",
    "",
  ]
  return "\n".join(lines)


def _percent(values: list[float]) -> str:
  spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
  return f"{100 * statistics.mean(values):.1f}{spread}"
