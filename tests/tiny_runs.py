"""Small runs of the programs: their configs, texts and tables, recipes, and what a run left."""

import dataclasses
import json
import os
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax.checkpoints.restore import restore_params
from gpt_jax.config import to_json
from gpt_jax.data.token_file import TokenWriter
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import finetune
from gpt_jax.programs.config_files import override_all
from gpt_jax.programs.finetune_task import load_task
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.programs.start import load_start
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.recipe import make_trainer
from gpt_jax.training.run_log import read_lines

PRETRAIN = PretrainConfig(
  trunk=TransformerConfig(context=16, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=16, length=16),
  optim=OptimConfig(learning_rate=5e-2, warmup_steps=10),
  train=TrainConfig(steps=12, log_every=6),
)
NO_DROPOUT = {"residual_dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}


TEXTS = [
  "the cat sat on the mat",
  "dog",
  "the dog ran to the old red barn by the sea and sat on the cat",
]
DICTIONARY = dict(zip("cat dog mat barn sea".split(), "sea barn cat mat dog".split(), strict=True))


def changed(config, **changes):
  """The config with other fields; of a group a dict names them, as in train={"steps": 3}."""
  for name, value in changes.items():
    if isinstance(value, dict):
      changes[name] = dataclasses.replace(getattr(config, name), **value)
  return dataclasses.replace(config, **changes)


def write_config(path, config, changes=()):
  """The flag for a config, changed as by override_all, which is written to a new file."""
  tree = path.with_suffix(".json")
  tree.write_text(json.dumps(to_json(override_all(config, changes))))
  path.write_text(
    "import json\nfrom gpt_jax.config import from_json\n\n\ndef get_config():\n"
    f"  return from_json(json.load(open({str(tree)!r})))\n"
  )
  return f"--config={path}"


def write_text(folder, split, tokenizer, texts, hash=None):
  """A split of a prepared folder, of which each text is a document."""
  writer = TokenWriter(str(folder), split, tokenizer.vocab_size)
  for text in texts:
    writer.add(tokenizer.encode(text), len(text), len(text.split()))
  writer.close(tokenizer_hash=hash or tokenizer.hash)


def write_table(folder, rows, splits=("train", "dev"), header="text\tlabel"):
  """The same rows, tuples of cells, as every split; returns the folder."""
  for split in splits:
    lines = [header, *map("\t".join, rows)]
    (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
  return str(folder)


def write_translations(folder, rng):
  """Pairs of train.en and train.de, and of val, word for word by DICTIONARY."""
  for split, count in (("train", 128), ("val", 24)):
    texts = [rng.choices(list(DICTIONARY), k=4) for _ in range(count)]
    (folder / f"{split}.en").write_text("".join(f"{' '.join(words)}\n" for words in texts))
    translations = [" ".join(DICTIONARY[word] for word in words) for words in texts]
    (folder / f"{split}.de").write_text("".join(f"{text}\n" for text in translations))


def make_masked(make_run, folder, tokenizer, context, **meta):
  """The folder of a masked language model with random parameters."""
  sizes = {"layers": 1, "width": 16, "heads": 2, "special_tokens": tokenizer.special.count}
  trunk = TransformerConfig(tokenizer.vocab_size, context, **sizes)
  spec = ModelConfig(trunk, (MaskedHead(),), "bidirectional")
  return make_run(folder, spec, tokenizer=tokenizer, **meta)


def entries(workdir):
  """The lines of metrics.jsonl."""
  return [json.loads(line) for line in read_lines(os.path.join(workdir, "metrics.jsonl"))]


def params_of(workdir):
  return restore_params(str(workdir))[0]


def assert_equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def same(a, b):
  return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


class Loaded(NamedTuple):
  """What a fine-tuning run has before it trains."""

  start: Any
  config: Any
  task: Any
  data: Any
  recipe: Any


def load_run(config, checkpoint, data_dir, tokenizer="") -> Loaded:
  """What finetune.run has before it trains, but for its evaluation."""
  start = load_start(config, checkpoint, tokenizer)
  config, task, data = load_task(config, data_dir, start)
  return Loaded(
    start, config, task, data, finetune.finetune_recipe(config, task, data["train"], start)
  )


def states(recipe, count):
  """The first state of a run, and the state and the metrics after each of its first updates.

  An update reuses the memory of the state before it.
  """
  trainer, batches = make_trainer(recipe), recipe.batches(recipe.config.train)
  state = recipe.start(trainer.init(0), trainer)
  yield state, {}
  for step in range(count):
    state, metrics = trainer.step(state, trainer.to_device(batches.at(step)), 0)
    yield state, metrics
