"""Folders of runs that were never trained: the files that a run writes, from curves and counts."""

import json
import zlib

import numpy as np

from gpt_jax.config import from_json, to_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.files import with_checksum
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.objectives.causal import Causal
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.pretrain_config import PretrainConfig
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

PAIR = ("barks", "meows")
TABLE = TableTask(columns=("text",), label="label", labels=PAIR, metric="accuracy")
RATE = 1e-3
_TRUNK = TransformerConfig(64, context=32, layers=1, width=16, heads=2)


def text_run(folder, loss, valid=(), *, steps=1000, warmup=100, objective=None, **options):
  """A pre-training; `options` are of `write_run`. The unigram entropy is 4.85 but for a plan with
  another.
  """
  config = PretrainConfig(
    _TRUNK,
    objective or Causal(),
    data=WindowsConfig(batch_size=128, length=16),
    optim=OptimConfig(learning_rate=RATE, warmup_steps=warmup),
    train=TrainConfig(steps=steps),
  )
  entropies = {"unigram_entropy": 4.85, "held_out_entropy": 4.85}
  plan = {"total_steps": steps, **entropies, **options.pop("plan", {})}
  curves = {"loss": loss, "valid_loss": valid, **options.pop("curves", {})}
  return write_run(folder, config, curves, plan, **options)


def task_run(
  folder,
  dev,
  loss=(),
  confusion=None,
  *,
  task=TABLE,
  steps=400,
  warmup=10,
  methods=(),
  config=(),
  sure=0.8,
  pretrained="sha256",
  examples=0,
  **options,
):
  """A fine-tuning whose evaluations are `dev`: its metrics without dev_, the first one primary.

  The confusion matrix becomes dev_report.json and dev_predictions.jsonl, in which each row has its
  predicted label with the probability `sure`.
  """
  config = FinetuneConfig(
    task=task,
    methods=tuple(from_json({"type": name}) for name in methods),
    trunk=_TRUNK,
    optim=OptimConfig(learning_rate=RATE, schedule="linear", warmup_steps=warmup),
    train=TrainConfig(epochs=5),
    **dict(config),
  )
  curves = {"loss": loss, **{f"dev_{name}": values for name, values in dev.items()}}
  data = {"pretrained": pretrained}
  if examples:
    data["dev"] = f"{examples:,} examples, checksum 0"
  write_run(folder, config, curves, {"total_steps": steps}, data, **options)
  if confusion:
    write_labels(folder, *_rows(task.labels, confusion, sure))
  if options.get("ended", True):
    (primary, *_), lengths = dev.values(), {len(values) for values in dev.values()}
    best = int(np.nanargmax(np.array(primary, float)))
    assert len(lengths) == 1
    metrics = {f"dev_{name}": values[best] for name, values in dev.items()}
    result = with_checksum({"best": {"step": best + 1, **metrics}, "dev": {}})
    (folder / "result.json").write_text(json.dumps(result))
  return folder


def write_run(folder, config, curves, plan, data=(), *, done=0, ended=True):
  """config.json, plan.json and metrics.jsonl of a run.

  Args:
    curves: values by metric, at as many evenly spaced steps, the last of them `done`.
    done: steps of the run; 0: all that are planned.
    ended: whether it came to its end.
  """
  folder.mkdir(exist_ok=True)
  saved = {"config": to_json(config), "data": dict(data)}
  (folder / "config.json").write_text(json.dumps(saved))
  (folder / "plan.json").write_text(json.dumps(plan))
  done = done or plan["total_steps"]
  entries = {}  # by step, and whether it is an evaluation
  for name, values in curves.items():
    is_evaluation = name.startswith(("valid_", "dev_"))
    for number, value in enumerate(values, 1):
      step = max(1, round(done * number / len(values)))
      entry = entries.setdefault((step, is_evaluation), {"step": step, "time": float(step)})
      entry[name] = value
      if not is_evaluation:
        warmup = config.optim.warmup_length(plan["total_steps"])
        entry["learning_rate"] = RATE * min(1.0, (step - 1) / max(1.0, warmup))
  lines = [json.dumps(entries[key]) for key in sorted(entries)]
  (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
  return folder


def write_labels(folder, labels, rows):
  """Writes dev_report.json and dev_predictions.jsonl for rows (text, label, probabilities)."""
  classes = np.array([labels.index(label) for _, label, _ in rows])
  predicted = np.array([int(np.argmax(p)) for _, _, p in rows])
  confusion = np.zeros((len(labels), len(labels)), int)
  np.add.at(confusion, (classes, predicted), 1)
  per_class = {}
  for k, label in enumerate(labels):
    right, support = confusion[k, k], int(confusion[k].sum())
    scores = {"precision": right / max(1, confusion[:, k].sum()), "recall": right / max(1, support)}
    f1 = 2 * right / max(1, support + confusion[:, k].sum())
    per_class[label] = {**scores, "f1": f1, "support": support}
  bins = [{"low": 0.6, "high": 0.8, "confidence": 0.71, "accuracy": 0.625, "count": 5}]
  errors = {"ece_before": 0.081, "ece_after": 0.034, "ece_chance": 0.0}
  calibration = {"temperature": 1.5, **errors, "bins": bins}
  content = {
    "labels": list(labels),
    "n": len(rows),
    "accuracy": float((classes == predicted).mean()),
    "macro_f1": float(np.mean([scores["f1"] for scores in per_class.values()])),
    "majority": float(np.bincount(classes).max() / len(classes)),
    "per_class": per_class,
    "confusion": confusion.tolist(),
    "calibration": calibration,
  }
  lines = []
  for n, (text, label, p) in enumerate(rows, 2):
    row = {"where": f"dev.tsv:{n}", "text": text, "label": label, "probabilities": list(p)}
    lines.append(json.dumps(row) + "\n")
  content["predictions_crc32"] = zlib.crc32("".join(lines).encode())
  (folder / "dev_report.json").write_text(json.dumps(with_checksum(content)))
  (folder / "dev_predictions.jsonl").write_text("".join(lines))


def _rows(labels, confusion, sure):
  """(labels, rows) of write_labels, from counts of true (rows) and predicted labels."""
  rows, others = [], (1 - sure) / (len(labels) - 1)
  for label, counts in zip(labels, confusion, strict=True):
    for predicted, count in enumerate(counts):
      probabilities = [sure if k == predicted else others for k in range(len(labels))]
      rows += [("some text", label, probabilities)] * count
  return labels, rows
