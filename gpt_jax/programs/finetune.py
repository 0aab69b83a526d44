"""The program that fine-tunes: a pre-trained trunk, a labeled task, a new head W_y (section
3.2).
"""

import dataclasses
import json
import os
import sys
from typing import Any

import jax

from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.run_folder import checksum, claim
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import option, register, to_json, validate
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import write_json
from gpt_jax.inference.evaluate import make_predictor, task_measures
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.paper.seeds import Spread, spread
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import check_batch, local_part, to_device
from gpt_jax.tasks.encoding import Encoded, evenly
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import BuiltinTask, Task
from gpt_jax.training import loop as train
from gpt_jax.training.loop import TrainConfig, due
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.reporter import Reporter
from gpt_jax.training.step import compile_init, init_state, make_step, restore_or_init
from gpt_jax.training.transfer import transfer

FIRST_EVALUATION = (
  1000  # update of the first epoch, which has others at its doublings (released train.py:430-445)
)


@register("finetune")
@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
  """A fine-tuning run; the defaults are the paper's (section 4.1)."""

  task: Any = option(BuiltinTask(), "which task: Named, or TableTask for files of your own")
  lm_weight: float = option(
    0.5, "lambda, the weight of the auxiliary language-modelling loss (eq. 5)", low=0.0
  )
  head_dropout: float = option(0.1, "dropout on what the head reads", low=0.0, high=0.99)
  transfer_layers: int | None = option(
    None,
    "what is taken from the checkpoint: none = all, -1 nothing, 0 the embeddings, k also the first k blocks",
    low=-1,
  )
  batch_size: int = option(32, "examples in a batch", low=1)
  train_examples: int = option(
    0, "train on only so many examples, evenly from the whole set; 0: on all", low=0
  )
  dev_examples: int = option(
    0, "evaluate on only so many examples, evenly from the whole set; 0: on all", low=0
  )
  trunk: Any = option(
    TransformerConfig(), "the trunk with --pretrained=none; a checkpoint brings its own"
  )
  optim: OptimConfig = option(
    OptimConfig(learning_rate=6.25e-5, schedule="linear", warmup_steps=0, warmup_share=0.002),
    "update rule and schedule",
  )
  mesh: MeshConfig = option(MeshConfig(), "how devices are used")
  train: TrainConfig = option(TrainConfig(epochs=3, log_every=50), "length and rhythm of the run")

  def __post_init__(self):
    validate(self)


def run(
  config: FinetuneConfig,
  data_dir: str,
  source: str,
  workdir: str,
  *,
  seeds: int = 1,
  tokenizer: str = "",
) -> list[dict[str, Any]]:
  """Trains one model, or one for each of several seeds, and evaluates on the dev set as OpenAI's
  code does.

  That is after 1000, 2000, 4000, … updates of the first epoch and at the end of each
  (train.py:430-445); the checkpoint with the best primary metric stays as `<workdir>/best`. With
  several seeds `summary.json` says what they found.

  Args:
    config: see configs/finetune.py.
    data_dir: where the task's official files are, or "tfds:DIR".
    source: a pre-trained checkpoint (see load_model), or "none".
    workdir: the run's folder; with several seeds each has a folder `seed_<n>` in it.
    seeds: how many runs, from config.train.seed on. Those that are done already are not repeated.
    tokenizer: the folder of a vocabulary, where source is "none".

  Returns:
    For every seed, what its `result.json` says: the last evaluation and, on process 0, the best
    one.
  """
  if not isinstance(config, FinetuneConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; fine-tuning takes that of configs/finetune.py:TASK"
    )
  start = _start(config, source, tokenizer)
  named = config.task.with_labels(data_dir)
  config = dataclasses.replace(config, task=named, trunk=start.trunk)
  task = named.build(data_dir)
  if task.paper and jax.process_index() == 0:
    print(f"{task.name}: the paper has {task.paper}", file=sys.stderr)
  data = {}
  for split in ("train", "dev"):
    examples = evenly(
      task.examples(data_dir, split),
      config.train_examples if split == "train" else config.dev_examples,
    )
    data[split] = task.encode(examples, start.tokenizer, start.trunk.context)
    if jax.process_index() == 0:
      print(f"{task.name} {split}: {_indented(data[split].report(task.labels))}", file=sys.stderr)
  task.score(
    data["dev"].labels, data["dev"].labels
  )  # what measuring needs is there, before any training
  program = _program(config, task, data["train"], start)
  if seeds == 1:
    return [_run_seed(config, task, data, start, program, workdir)]
  results = []
  for seed in range(config.train.seed, config.train.seed + seeds):
    of_seed = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
    results.append(
      _run_seed(of_seed, task, data, start, program, os.path.join(workdir, f"seed_{seed}"))
    )
  if jax.process_index() == 0:
    found = summary(results)
    write_json(os.path.join(workdir, "summary.json"), found)
    print(format_summary(found), file=sys.stderr)
  return results


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
  """The spread over seeds of every measure on the dev set, after the last update ("dev") and of the
  best evaluation.

  `degenerate` names the seeds whose model, at its best, gives every example the same prediction.
  """
  stages = {}
  for stage in ("dev", "best"):
    names = [name for name in results[0][stage] if name not in ("step", "dev_degenerate")]
    stages[stage] = {
      name: spread([result[stage][name] for result in results])._asdict() for name in names
    }
  degenerate = [result["seed"] for result in results if "dev_degenerate" in result["best"]]
  return {
    "task": results[0]["task"],
    "seeds": [result["seed"] for result in results],
    "degenerate": degenerate,
    **stages,
  }


def format_summary(summary: dict[str, Any]) -> str:
  lines = [f"{summary['task']}: {len(summary['seeds'])} seeds"]
  for stage, title in (
    ("dev", "after the last update"),
    ("best", "at each seed's best evaluation"),
  ):
    lines.append(f"  {title}")
    lines += [f"    {name}: {Spread(**values)}" for name, values in summary[stage].items()]
  if summary["degenerate"]:
    which = ", ".join(map(str, summary["degenerate"]))
    lines.append(f"  degenerate, one prediction for every example: seed {which}")
  return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class _Start:
  """What a run begins with: the trunk and its vocabulary, and the trunk's parameters unless they
  are to be drawn.
  """

  trunk: Any
  attention: str
  tokenizer: Tokenizer
  params: Any
  name: str


def _start(config: FinetuneConfig, source: str, tokenizer: str) -> _Start:
  if source == "none":
    if not tokenizer:
      raise InputError(
        "--pretrained=none needs --tokenizer=DIR, the folder of a vocabulary (DIR/tokenizer of prepare)"
      )
    vocabulary = load_tokenizer(tokenizer)
    if config.trunk.vocab_size not in (0, vocabulary.vocab_size):
      raise InputError(
        f"trunk.vocab_size={config.trunk.vocab_size}: {tokenizer} has {vocabulary.vocab_size}; leave it out"
      )
    trunk = dataclasses.replace(config.trunk, vocab_size=vocabulary.vocab_size)
    return _Start(trunk, "causal", vocabulary, None, "none")
  if tokenizer:
    raise InputError(
      "--tokenizer is for --pretrained=none; a checkpoint brings its own: leave it out"
    )
  loaded = load_model(source)
  if config.trunk not in (FinetuneConfig.trunk, loaded.spec.trunk):
    raise InputError(
      "config.trunk is for --pretrained=none; a checkpoint brings its own: leave these settings out"
    )
  trunk, blocks = loaded.params["trunk"], getattr(loaded.spec.trunk, "layers", 1)
  if (config.transfer_layers or 0) > blocks:
    raise InputError(
      f"transfer_layers={config.transfer_layers}: the checkpoint has {blocks} blocks; none takes all"
    )
  return _Start(loaded.spec.trunk, loaded.spec.attention, loaded.tokenizer, trunk, loaded.identity)


@dataclasses.dataclass(frozen=True)
class _Program:
  """What the runs of all seeds share, so that it is traced and compiled once."""

  mesh: Any
  spec: ModelConfig
  total_steps: int
  make_state: Any
  shardings: Any
  transferred: Any  # (a fresh trunk's parameters, the checkpoint's) -> those to begin with
  step: Any
  predict: Any


def _program(config: FinetuneConfig, task: Task, train_set: Encoded, start: _Start) -> _Program:
  mesh = make_mesh(config.mesh)
  check_batch(config.batch_size, mesh, config.train.microbatches, "batch_size")
  total_steps = config.train.total_steps(len(train_set) // config.batch_size)
  heads = make_heads([{**task.head, "dropout": config.head_dropout}])
  if config.lm_weight:
    heads = (LanguageHead(config.lm_weight), *heads)
  spec = ModelConfig(start.trunk, heads, start.attention)
  model = spec.build()
  optimizer, schedule = make_optimizer(config.optim, total_steps)
  example = _batches(config, train_set, mesh)(0)
  make_state = init_state(lambda key: model.init(key, example)["params"], optimizer)
  make_state, shardings = compile_init(
    make_state, mesh, start.trunk.TENSOR_PARALLEL, config.mesh.fsdp
  )
  transferred = jax.jit(
    lambda fresh, loaded: transfer(fresh, loaded, config.transfer_layers, start.trunk.vocab_size),
    out_shardings=shardings.params["trunk"],
  )
  step = make_step(
    model_loss(model),
    optimizer,
    schedule,
    mesh,
    shardings,
    microbatches=config.train.microbatches,
    backend=config.mesh.backend,
  )
  return _Program(
    mesh, spec, total_steps, make_state, shardings, transferred, step, make_predictor(model, mesh)
  )


def _batches(config: FinetuneConfig, train_set: Encoded, mesh: Any) -> PackedBatches:
  parts, devices, pmap = (
    config.train.microbatches,
    mesh.shape["data"],
    config.mesh.backend == "pmap",
  )
  total_steps = config.train.total_steps(len(train_set) // config.batch_size)
  # Under pmap a device has only its own rows to find its extract tokens in; under jit it is
  # microbatches that do.
  return PackedBatches(
    train_set,
    config.batch_size,
    config.train.seed,
    config.train.epochs or -(-total_steps // max(1, len(train_set) // config.batch_size)),
    groups=parts * devices if pmap else parts,
    row_multiple=1 if pmap else devices,
  )


def _run_seed(
  config: FinetuneConfig,
  task: Task,
  data: dict[str, Encoded],
  start: _Start,
  program: _Program,
  workdir: str,
) -> dict[str, Any]:
  mesh, parts, seed = program.mesh, config.train.microbatches, config.train.seed
  batches = _batches(config, data["train"], mesh)
  identity = {"pretrained": start.name}
  for split, encoded in data.items():
    arrays = [encoded.texts, encoded.fields, encoded.kept, encoded.labels]
    identity[split] = f"{len(encoded)} examples, checksum {checksum(arrays)}"
  claim(workdir, config, start.tokenizer, identity)
  finished = os.path.join(workdir, "result.json")
  if os.path.exists(finished):
    if jax.process_index() == 0:
      print(f"{finished}: done already", file=sys.stderr)
    with open(finished, encoding="utf-8") as file:
      return json.load(file)

  def evaluate(params) -> dict[str, float]:
    found = task_measures(
      task, program.predict(params, data["dev"], config.batch_size), data["dev"].labels
    )
    return {f"dev_{name}": value for name, value in found.items()}

  def batch_at(step: int):
    mine = local_part(batches(step), mesh, parts)
    return to_device(mine, mesh, parts, config.mesh.backend)

  def evaluate_at(step: int) -> bool:
    if config.train.evaluate_every:
      return due(step, config.train.evaluate_every)
    epoch = batches.steps_per_epoch
    return due(step, epoch) or (
      step < epoch and train.is_power_of_two_multiple(step, FIRST_EVALUATION)
    )

  primary = f"dev_{task.primary_metric}"
  meta = {
    "model": to_json(program.spec),
    "config": to_json(config),
    "task": to_json(config.task),
    "tokenizer_hash": start.tokenizer.hash,
  }
  # A sweep has many runs, and each checkpoint also the optimizer's state: 1.4 GB at GPT-1's size.
  with Checkpoints(workdir, metric=primary, mode="max", newest=1) as checkpoints:
    state, first = restore_or_init(program.make_state, program.shardings, seed, checkpoints)
    if first == 0 and start.params is not None:
      trunk = program.transferred(state.params["trunk"], start.params)
      state = state._replace(params={**state.params, "trunk": trunk})
    flops = start.trunk.flops_per_token(batches.shape[1])
    with Reporter(workdir, program.total_steps, first, flops_per_token=flops) as reporter:
      _, evaluation = train.fit(
        state,
        lambda state, batch: program.step(state, batch, seed),
        batch_at,
        program.total_steps,
        reporter=reporter,
        tokens_per_step=batches.shape[0] * batches.shape[1],
        save=lambda step, state, metrics: checkpoints.save(step, state, meta, metrics),
        evaluate=evaluate,
        log_every=config.train.log_every,
        evaluate_at=evaluate_at,
        save_at=lambda step: evaluate_at(step) or due(step, config.train.checkpoint_every),
      )
  result = {"task": task.name, "seed": seed, "steps": program.total_steps, "dev": evaluation}
  if jax.process_index() == 0:  # it alone has metrics.jsonl
    result["best"] = _best_evaluation(workdir, primary)
    write_json(finished, result)
  return result


def _best_evaluation(workdir: str, primary: str) -> dict[str, float]:
  """The evaluation with the highest primary metric, the first of equals, as OpenAI's code
  selects (train.py:283).
  """
  with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as file:
    evaluations = [entry for entry in map(json.loads, file) if entry.get(primary) is not None]
  best = max(evaluations, key=lambda entry: entry[primary])
  return {name: value for name, value in best.items() if name != "time"}


def _indented(text: str) -> str:
  return text.replace("\n", "\n  ")
