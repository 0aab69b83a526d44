"""Fine-tuning: a pre-trained trunk, a labeled task and a new head W_y (section 3.2)."""

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from gpt_jax.checkpoints.run_folder import (
  checksum,
  claim,
  resume_microbatches,
  with_microbatches,
)
from gpt_jax.checkpoints.store import Checkpoints, best_evaluation
from gpt_jax.config import from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.files import read_json, verified, with_checksum, write_json
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import (
  ModelConfig,
  make_heads,
  parameter_shapes,
  without_trunk_dropout,
)
from gpt_jax.paper.seeds import format_summary, summarize
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.parallel.placement import check_batch, check_whole_batch
from gpt_jax.parallel.processes import is_main_process
from gpt_jax.programs.finetuning.config import FinetuneConfig, check_type, is_probe
from gpt_jax.programs.finetuning.evaluations import evaluation_due, make_evaluations
from gpt_jax.programs.finetuning.start import Start, load_start, transfer_trunk, transform_of
from gpt_jax.programs.report import report_at_end
from gpt_jax.tasks.encoding import Encoded, count_repeated, evenly, without_labels
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.task import LabeledTask, Task
from gpt_jax.tasks.text_batches import EncoderDecoderBatches, PrefixBatches
from gpt_jax.tasks.text_to_text import EncodedText, TextTask, TextToText, as_text
from gpt_jax.training import hooks
from gpt_jax.training.adversarial import VirtualAdversarial, adversarial_loss
from gpt_jax.training.class_weights import balanced, parse_weights
from gpt_jax.training.early_stopping import (
  StoppedEarly,
  evaluations,
  is_exhausted,
  pause,
  stop_early,
)
from gpt_jax.training.fitting import plan_training
from gpt_jax.training.forecast import Forecast
from gpt_jax.training.layerwise import trained_layers
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.majority import warn_of_majority
from gpt_jax.training.optimizer import make_optimizer
from gpt_jax.training.profile import Span, parse_span, traced
from gpt_jax.training.recipe import with_recipe
from gpt_jax.training.reporter import Reporter, log
from gpt_jax.training.trackers import Trackers, parse_trackers
from gpt_jax.training.trainer import Trainer

NEVER = hooks.every(0)


def run(
  config: FinetuneConfig,
  data_dir: str,
  pretrained: str,
  workdir: str,
  *,
  seeds: int = 1,
  folds: int = 1,
  tokenizer: str = "",
  profile: str = "",
  tracker: str | Trackers = "auto",
  pauses: Callable[[int], bool] | None = None,
) -> list[dict[str, Any]]:
  """Fine-tunes one model per seed or fold, and evaluates on the dev set as OpenAI's code does.

  The checkpoint with the best primary metric is `<workdir>/best`. With several seeds or folds,
  `summary.json` has the spread of every metric.

  Args:
    config: see configs/finetune.py.
    data_dir: folder of the task's official files, or "tfds:DIR".
    pretrained: a checkpoint (see load_model), or "none".
    workdir: folder of the run, or of `seed_<n>` or `fold_<n>`, those of several.
    seeds: number of runs, from config.train.seed on; finished ones are skipped.
    folds: for a table, runs that each hold out another part of the training file as dev set.
    tokenizer: folder of a vocabulary; only if pretrained is "none".
    profile: START:STOP, the steps of each run of which a trace is written; "": none.
    tracker: see parse_trackers.
    pauses: step -> whether the run ends after it for now, evaluated and saved but without its
      `result.json`; the same call goes on with it. For one process, without folds; None: never.

  Returns:
    The `result.json` of each seed or fold: the last evaluation and, on process 0, the best one.
  """
  check_type(config)
  trackers = parse_trackers(tracker, workdir)
  if folds > 1:
    options = tokenizer, profile, trackers
    return cross_validate(config, data_dir, pretrained, workdir, folds, seeds, *options)

  # 1. Checkpoint and vocabulary.
  start = load_start(config, pretrained, tokenizer)

  # 2. Task and examples.
  config, task, data = load_task(config, data_dir, start)
  span = parse_span(profile, total_steps(config, data["train"]))

  # 3. Model and trainer, compiled once for all seeds, with the same microbatches.
  mesh = make_mesh(config.mesh)
  folders = seed_folders(workdir, config.train.seed, seeds)
  config, chooses = resume_microbatches(config, folders.values())
  spec = model_config(config, task, start)
  trainer = make_trainer(config, spec, data["train"], mesh)
  measure, report = make_evaluations(config, spec, task, data["dev"], mesh, data_dir, start)
  plan = functools.cache(lambda: plan_run(config, spec, data["train"], trainer, chooses))
  identity = data_identity(data, start)
  if chooses:
    claim(folders[config.train.seed], config, start.tokenizer, identity)  # before it compiles
    trainer, _ = plan()
    config = with_microbatches(config, trainer.microbatches)

  # 4. One run per seed.
  results = []
  for seed, folder in folders.items():
    seeded = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
    claim(folder, seeded, start.tokenizer, identity)
    run_one = functools.partial(run_seed, seeded, task, data, start, trainer, measure, report)
    with report_at_end(workdir):
      results.append(run_one(plan, folder, trackers, span, pauses or NEVER))
  return write_summary(results, workdir) if seeds > 1 else results


def seed_folders(workdir: str, first: int, seeds: int) -> dict[int, str]:
  """The folder of each seed's run."""
  if seeds == 1:
    return {first: workdir}
  return {seed: os.path.join(workdir, f"seed_{seed}") for seed in range(first, first + seeds)}


def load_task(
  config: FinetuneConfig, data_dir: str, start: "Start"
) -> tuple[FinetuneConfig, Any, dict[str, Encoded]]:
  """The task, its examples by split, and the config with all that follows from both.

  Raises:
    InputError: files, rows or options that do not suit.
  """
  task_config = complete_task(config.task, data_dir)
  config = dataclasses.replace(config, task=task_config, trunk=start.trunk)
  task = build_task(task_config, data_dir, start)
  check_options(config, task)
  check_auxiliary_loss(config, task, start)
  data = load_examples(config, task, data_dir, start)
  check_metrics(task)
  return complete(config, task, data["train"]), task, data


def complete_task(task: Any, data_dir: str) -> Any:
  """The task's config with the labels of its files; logs columns that it had not named."""
  completed = task.with_labels(data_dir)
  if isinstance(completed, TableTask) and completed.columns != task.columns:
    log(f"text columns: {', '.join(completed.columns)}; label column: {completed.label}")
  return completed


def build_task(task_config: Any, data_dir: str, start: "Start") -> Any:
  """The LabeledTask, or for a text-to-text checkpoint its TextTask."""
  task = task_config.build(data_dir)
  return as_text(task) if isinstance(start.format, TextToText) else task


def cross_validate(
  config: FinetuneConfig,
  data_dir: str,
  pretrained: str,
  workdir: str,
  folds: int,
  seeds: int,
  tokenizer: str,
  profile: str,
  trackers: Trackers,
) -> list[dict[str, Any]]:
  """One run for each part of a table's training file that is held out; see run.

  Raises:
    InputError: a task that is no table, or several seeds as well.
  """
  if not isinstance(config.task, TableTask):
    raise InputError(f"--folds={folds}: only tables have folds; this task has a dev set of its own")
  if seeds > 1:
    raise InputError(f"--folds={folds} and --seeds={seeds}: set one of them")
  results = []
  folders = [os.path.join(workdir, f"fold_{fold}") for fold in range(folds)]
  for fold, folder in enumerate(folders):
    log(f"fold {fold + 1} of {folds}")
    resumed, is_open = resume_microbatches(config, folders)  # as the first fold has chosen
    task = dataclasses.replace(config.task, folds=folds, fold=fold)
    (result,) = run(
      dataclasses.replace(config if is_open else resumed, task=task),
      data_dir,
      pretrained,
      folder,
      tokenizer=tokenizer,
      profile=profile,
      tracker=trackers,
    )
    results.append({**result, "fold": fold})
  write_summary(results, workdir)
  return results


def load_examples(
  config: FinetuneConfig, task: LabeledTask, data_dir: str, start: Start
) -> dict[str, Encoded]:
  """The train and dev set as token ids; logs a summary of each and the paper's result."""
  if task.paper:
    log(f"{task.name}: the paper has {task.paper}")
  all_examples = {split: task.examples(data_dir, split) for split in ("train", "dev")}
  log_repeated_rows(task, data_dir, all_examples)
  data = {}
  for split, count in (("train", config.train_examples), ("dev", config.dev_examples)):
    examples = evenly(all_examples[split], count)
    use_rest = config.unlabeled and split == "train"
    rest = without_labels(all_examples[split], examples) if use_rest else []
    encoded = start.encode(task, [*examples, *rest])
    data[split] = dataclasses.replace(encoded, unlabeled=len(rest))
    balance = task.describe_labels(data[split].labels)
    report = data[split].report(balance).replace("\n", "\n  ")
    log(f"{task.name} {split}: {report}")
  return data


def log_repeated_rows(task: LabeledTask, data_dir: str, examples: dict[str, list[Any]]) -> None:
  """Logs how many dev and test rows have the texts of a training row; they flatter results."""
  with contextlib.suppress(InputError):  # not every task has a test set
    examples = examples | {"test": task.examples(data_dir, "test")}
  for split in ("dev", "test"):
    rows = examples.get(split, [])
    if repeated := count_repeated(rows, examples["train"]):
      log(
        f"warning: {task.name}: {repeated:,} of {len(rows):,} {split} rows have the texts of a "
        "training row"
      )


def complete(config: FinetuneConfig, task: LabeledTask, train_set: Encoded) -> FinetuneConfig:
  """The config with what it leaves open: learning rate, warm-up, epochs, balanced class weights.

  Logs what it sets.
  """
  parameters = config.trunk.parameter_count()
  optim, train, lines = with_recipe(
    config.optim, config.train, parameters, len(train_set) // config.batch_size
  )
  weights = config.class_weights
  if weights == ("balanced",):
    weights = balanced(train_set.labels, task.labels)
    lines.append(f"class weights {', '.join(weights)}")
  steps = train.total_steps(len(train_set) // config.batch_size)
  if warning := optim.about_long_warmup(steps):
    lines.append(warning)
  for line in lines:
    log(line)
  return dataclasses.replace(config, optim=optim, train=train, class_weights=weights)


def head_of(config: FinetuneConfig, task: LabeledTask, start: Start) -> dict[str, Any]:
  """The task's head as a JSON config, with the settings of this run."""
  head = {**task.head, "dropout": config.head_dropout}
  if hasattr(from_json(head), "transform"):  # a head on one representation of a text
    head["transform"] = transform_of(start)
  if not config.class_weights and not config.label_smoothing:
    return head
  weights = list(parse_weights(config.class_weights, task.labels))
  return {**head, "class_weights": weights, "label_smoothing": config.label_smoothing}


def check_auxiliary_loss(config: FinetuneConfig, task: LabeledTask, start: Start) -> None:
  """Raises InputError for an auxiliary loss of a checkpoint that is not causal."""
  has_loss = config.lm_weight and not isinstance(task, TextTask) and not is_probe(config)
  if has_loss and start.attention != "causal":
    raise InputError(
      f"lm_weight={config.lm_weight}: the checkpoint has {start.attention} attention, so a "
      "language model on it would see the tokens it predicts; set lm_weight=0"
    )


def check_options(config: FinetuneConfig, task: LabeledTask) -> None:
  """Raises InputError for options that the task's head does not have, and for unlabeled examples
  that nothing would learn from.
  """
  if isinstance(task, TextTask) and is_probe(config):
    raise InputError(
      "train_layers=0: a text-to-text model has no head besides its trunk; train some layers"
    )
  if isinstance(task, TextTask) and config.adversarial is not None:
    raise InputError(
      "adversarial: attacks the loss of a head for labels, and a text-to-text model has none; "
      "leave it out"
    )
  for name in ("class_weights", "label_smoothing"):
    head = task.head
    if getattr(config, name) and (head["type"] != "classify" or head["pooling"] == "per_choice"):
      raise InputError(
        f"{name}: for tasks that give each example one class, not for {task.name} ({task.kind}); "
        "leave it out"
      )
  semi_supervised = isinstance(config.adversarial, VirtualAdversarial) and config.train_examples
  if config.unlabeled and not semi_supervised:
    raise InputError(
      "unlabeled: needs train_examples above 0 and adversarial=virtual_adversarial, which alone "
      "trains on examples without labels (configs/adversarial.py)"
    )


def check_metrics(task: LabeledTask) -> None:
  """Computes each metric once. Raises InputError early if a package that it needs is missing."""
  values = np.arange(2)
  if isinstance(task, Task):
    values = task.value(np.eye(max(2, task.num_classes)))
  for metric in task.metrics.values():
    metric(values, values)


def model_config(config: FinetuneConfig, task: LabeledTask, start: Start) -> ModelConfig:
  """The checkpoint's trunk with a new head for the task, and one for the auxiliary loss.

  A text-to-text model answers with its language head; there is no other loss.
  """
  if isinstance(task, TextTask):
    return ModelConfig(start.trunk, make_heads([task.head]), start.attention)
  heads = make_heads([head_of(config, task, start)])
  if is_probe(config):  # the auxiliary loss has no parameters to train
    return ModelConfig(start.trunk, heads, start.attention)
  if config.lm_weight:
    heads = (LanguageHead(config.lm_weight), *heads)
  return ModelConfig(start.trunk, heads, start.attention)


def make_trainer(
  config: FinetuneConfig, spec: ModelConfig, train_set: Encoded, mesh: Mesh
) -> Trainer:
  """The trainer of a fine-tuning run, for every seed.

  Raises:
    InputError: the batch does not divide over devices and microbatches, or is split although a
      loss needs all of it.
  """
  check_batch(config.batch_size, mesh, config.train.parts, "batch_size")
  if spec.needs_whole_batch:
    check_whole_batch(config.batch_size, config.train.parts, config.mesh.backend, "batch_size")
  trained = without_trunk_dropout(spec) if is_probe(config) else spec
  model = trained.build(config.train.remat)
  batches = make_batches(config, train_set, mesh)
  frozen, layerwise = trained_layers(
    parameter_shapes(spec),
    spec.trunk,
    config.train_layers,
    config.layer_decay,
    batches.steps_per_epoch if config.unfreeze else None,
  )
  return Trainer.build(
    model,
    adversarial_loss(model_loss(model), config.adversarial),
    batches(0),
    make_optimizer(config.optim, total_steps(config, train_set), frozen, layerwise),
    mesh,
    rules=spec.trunk.TENSOR_PARALLEL,
    fsdp=config.mesh.fsdp,
    backend=config.mesh.backend,
    microbatches=config.train.parts,
    scales_loss=spec.trunk.dtype == "float16",
  )


def plan_run(
  config: FinetuneConfig,
  spec: ModelConfig,
  train_set: Encoded,
  trainer: Trainer,
  chooses: bool = False,
) -> tuple[Trainer, Forecast]:
  """See fitting.plan_training; `trainer` is the config's."""
  batches = make_batches(config, train_set, trainer.mesh)
  rows, length = batches.shape

  def build(train: TrainConfig) -> tuple[Trainer, Any]:
    changed = dataclasses.replace(config, train=train)
    example = make_batches(changed, train_set, trainer.mesh)(0)
    return make_trainer(changed, spec, train_set, trainer.mesh), example

  return plan_training(
    config.train,
    trainer,
    batches(0),
    rows * length * flops_per_token(config, spec.trunk, length),
    build,
    config.batch_size,
    "a smaller --config.batch_size",
    chooses,
    whole=spec.needs_whole_batch,
  )


def flops_per_token(config: FinetuneConfig, trunk: Any, length: int) -> float:
  """Of a training step, with the passes of an adversarial method."""
  work = 1.0 if config.adversarial is None else config.adversarial.work
  return work * trunk.flops_per_token(length)


def make_batches(
  config: FinetuneConfig, train_set: Encoded, mesh: Mesh
) -> PackedBatches | PrefixBatches | EncoderDecoderBatches:
  """The batches of a run, in the order of its seed; packed, but for those of an encoder-decoder."""
  devices, microbatches = mesh.shape["data"], config.train.parts
  steps_per_epoch = max(1, len(train_set) // config.batch_size)
  epochs = config.train.epochs or -(-total_steps(config, train_set) // steps_per_epoch)
  seed = config.train.seed
  if config.trunk.reads_source:
    assert isinstance(train_set, EncodedText)
    return EncoderDecoderBatches(train_set, config.batch_size, seed, epochs)
  # An extract token must be in the same group of rows as its example: a microbatch under jit; under
  # pmap also a device.
  pmap = config.mesh.backend == "pmap"
  make: Any = PrefixBatches if isinstance(train_set, EncodedText) else PackedBatches
  return make(
    train_set,
    config.batch_size,
    seed,
    epochs,
    groups=microbatches * devices if pmap else microbatches,
    row_multiple=1 if pmap else devices,
  )


def total_steps(config: FinetuneConfig, train_set: Encoded) -> int:
  """Updates of a run; the last partial batch of an epoch is dropped."""
  return config.train.total_steps(len(train_set) // config.batch_size)


def run_seed(
  config: FinetuneConfig,
  task: LabeledTask,
  data: dict[str, Encoded],
  start: Start,
  trainer: Trainer,
  measure: Callable[[Any], dict[str, float]],
  report: Callable[[Any, int, str], None],
  plan: Callable[[], tuple[Trainer, Forecast]],
  workdir: str,
  trackers: Trackers,
  profile: Span | None = None,
  pauses: Callable[[int], bool] = NEVER,
) -> dict[str, Any]:
  """Fine-tunes with config.train.seed in a claimed folder; returns the content of result.json."""
  finished = os.path.join(workdir, "result.json")
  if (result := read_result(finished)) is not None:
    log(f"{finished}: finished already")
    return result

  primary = f"dev_{task.primary_metric}"
  seed, steps = config.train.seed, total_steps(config, data["train"])
  batches = make_batches(config, data["train"], trainer.mesh)
  by_epoch = evaluation_due(config.train.evaluate_every, batches.steps_per_epoch)
  evaluating = hooks.any_of(by_epoch, pauses)
  meta = make_meta(config, task, start)
  newest = config.train.keep_checkpoints
  with Checkpoints(workdir, metric=primary, mode="max", newest=newest) as checkpoints:
    forecast = plan()[1] if max(checkpoints.steps(), default=0) < steps else Forecast()
    state, first = trainer.restore_or_init(seed, checkpoints)
    if first == 0:
      state = transfer_trunk(state, start, config.transfer_layers, trainer)
    reporter = Reporter(
      workdir,
      steps,
      first,
      flops_per_token=flops_per_token(config, start.trunk, batches.shape[1]),
      forecast=forecast,
      trackers=trackers.with_config(config),
    )
    with reporter:
      run_hooks = make_hooks(config, reporter, measure, checkpoints, meta, batches, evaluating)
      run_hooks.append(pause(pauses))
      if config.patience:
        run_hooks.append(stop_early(workdir, primary, config.patience, first, evaluating))
        if is_exhausted(evaluations(workdir, primary, first), config.patience):
          steps = first  # it was ended between its last evaluation and its result
      stopped: StoppedEarly | None = None
      try:
        with traced(run_hooks, profile, reporter, workdir, first) as all_hooks:
          batch_at = lambda step: trainer.local_part(batches(step))
          state, evaluation = trainer.fit(state, batch_at, steps, seed, all_hooks, forecast)
      except StoppedEarly as stop:
        stopped, steps, evaluation = stop, stop.step, stop.evaluation
        reporter.say(f"step {steps:,}: {stop.reason}")
  evaluation = evaluation or measure(state.params)
  # A stopped run's last state was donated to the step that was stopped: read the best one.
  report(state.params, 0 if stopped else steps, workdir)
  result = {"task": task.name, "seed": seed, "steps": steps, "dev": evaluation}
  if is_main_process() and not (stopped and stopped.goes_on):
    result["best"] = best_evaluation(workdir) or {"step": steps, **evaluation}
    write_json(finished, with_checksum(result))
    if not isinstance(task, TextTask):
      warn_of_majority(task, data["dev"], result["best"], config.optim, config.train)
  return result


def make_hooks(
  config: FinetuneConfig,
  reporter: Reporter,
  measure: Callable[[Any], dict[str, float]],
  checkpoints: Checkpoints,
  meta: dict[str, Any],
  batches: PackedBatches | PrefixBatches | EncoderDecoderBatches,
  evaluating: Callable[[int], bool],
) -> list[hooks.Hook]:
  """Logging, evaluation and checkpoints."""
  tokens = batches.shape[0] * batches.shape[1]
  saving = hooks.any_of(evaluating, hooks.every(config.train.checkpoint_every))
  return [
    hooks.measure_pace(reporter),
    hooks.log_progress(reporter, tokens, hooks.every(config.train.log_every)),
    hooks.evaluate(reporter, measure, evaluating),
    hooks.save(reporter, checkpoints, meta, saving),
  ]


def data_identity(data: dict[str, Encoded], start: Start) -> dict[str, str]:
  """Identifies checkpoint and examples, so that a run resumes only with the same ones."""
  identity = {"pretrained": start.identity}
  for split, encoded in data.items():
    arrays = [encoded.texts, encoded.fields, encoded.kept, encoded.labels, encoded.tags]
    identity[split] = f"{len(encoded)} examples, checksum {checksum(arrays)}"
  return identity


def make_meta(config: FinetuneConfig, task: LabeledTask, start: Start) -> dict[str, Any]:
  """What the checkpoints record beside the parameters."""
  return {
    "model": to_json(model_config(config, task, start)),
    "config": to_json(config),
    "task": to_json(config.task),
    "tokenizer_hash": start.tokenizer.hash,
    "trained_special": list(start.tokenizer.special.names),
    "sequence_format": to_json(start.format),
  }


def read_result(path: str) -> dict[str, Any] | None:
  """The result of a finished run; None if there is none, or one that is not what was written."""
  try:
    return verified(read_json(path))
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    warnings.warn(f"{path}: {error}; the last checkpoint is evaluated again", stacklevel=2)
    return None


def write_summary(results: list[dict[str, Any]], workdir: str) -> list[dict[str, Any]]:
  """Writes `summary.json` on process 0, and logs it; returns the results."""
  if is_main_process():  # which alone knows the best evaluations
    over_seeds = summarize(results)
    write_json(os.path.join(workdir, "summary.json"), over_seeds)
    log(format_summary(over_seeds))
  return results
