"""Fine-tuning: a pre-trained trunk, a labeled task and a new head W_y (section 3.2)."""

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.run_folder import (
  checksum,
  claim,
  resume_microbatches,
  with_microbatches,
)
from gpt_jax.checkpoints.store import Checkpoints, best_evaluation, restore_params
from gpt_jax.config import from_json, option, register, to_json, validate
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError, counted
from gpt_jax.files import read_json, verified, with_checksum, write_json
from gpt_jax.inference.dev_report import (
  REPORT,
  format_calibration,
  format_labels,
  is_classification,
  write_dev_report,
  write_multi_label_report,
)
from gpt_jax.inference.evaluate import task_measures
from gpt_jax.inference.text_answers import text_measures
from gpt_jax.models.heads.language import LanguageHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import (
  ModelConfig,
  generator,
  make_heads,
  parameter_shapes,
  without_trunk_dropout,
)
from gpt_jax.models.predictor import make_predictor
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import TrunkConfig, with_vocabulary
from gpt_jax.paper.seeds import format_summary, summarize
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import check_batch, check_whole_batch
from gpt_jax.parallel.processes import is_main_process
from gpt_jax.programs.report import report_at_end
from gpt_jax.tasks.encoding import Encoded, count_repeated, evenly, without_labels
from gpt_jax.tasks.formats import Format, GPTFormat, RoBERTaFormat
from gpt_jax.tasks.multi_label import MultiLabelTask
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.table import TableTask
from gpt_jax.tasks.task import BuiltinTask, LabeledTask, Task
from gpt_jax.tasks.text_batches import EncoderDecoderBatches, PrefixBatches
from gpt_jax.tasks.text_to_text import EncodedText, TextTask, TextToText, as_text
from gpt_jax.training import hooks
from gpt_jax.training.adversarial import VirtualAdversarial, adversarial_loss
from gpt_jax.training.class_weights import balanced, parse_weights
from gpt_jax.training.early_stopping import StoppedEarly, evaluations, is_exhausted, stop_early
from gpt_jax.training.fitting import plan_training
from gpt_jax.training.forecast import Forecast
from gpt_jax.training.layerwise import trained_layers
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.majority import warn_of_majority
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.profile import Span, parse_span, traced
from gpt_jax.training.recipe import with_recipe
from gpt_jax.training.reporter import Reporter, log
from gpt_jax.training.step import TrainState
from gpt_jax.training.trackers import Trackers, parse_trackers
from gpt_jax.training.trainer import Trainer
from gpt_jax.training.transfer import transfer
from gpt_jax.training.warm_start import RUNTIME_FIELDS

FIRST_EVALUATION = 1000  # updates; see evaluation_due


@register("finetune")
@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
  """A fine-tuning run; the defaults are the paper's (section 4.1).

  Learning rate, warm-up and epochs are too where the model has GPT-1's size; for others see
  training/recipe.py.
  """

  task: Any = option(BuiltinTask(), "the task: BuiltinTask, or TableTask for files of your own")
  lm_weight: float = option(
    0.5, "lambda, the weight of the auxiliary language-modeling loss (eq. 5)", low=0.0
  )
  head_dropout: float = option(0.1, "dropout on the input of the head", low=0.0, high=0.99)
  transfer_layers: int | None = option(
    None,
    "parameters taken from the checkpoint: none = all, -1 nothing, 0 the embeddings, "
    "k also the first k blocks",
    low=-1,
  )
  train_layers: int | None = option(
    None,
    "parameters that train: none = all, 0 the head alone (a linear probe), "
    "k also the last k blocks",
    low=0,
  )
  unfreeze: bool = option(
    False, "begin with train_layers, by default 0, and train one layer more in each epoch"
  )
  layer_decay: float = option(
    1.0, "learning rate of a layer as a share of that of the layer above it", low=0.01, high=1.0
  )
  class_weights: tuple[str, ...] = option(
    (),
    "loss weight of the examples of a class: LABEL=WEIGHT,… (others 1), or balanced, in inverse "
    "proportion to the class's frequency",
  )
  label_smoothing: float = option(
    0.0, "share of each label that is spread over all classes in the loss", low=0.0, high=0.99
  )
  adversarial: Any = option(
    None, "adversarial training: the method that configs/adversarial.py:METHOD:TASK names"
  )
  patience: int = option(
    0, "stop after so many evaluations without a better primary metric; 0: never", low=0
  )
  batch_size: int = option(32, "examples in a batch", low=1, high=10**6)
  train_examples: int = option(
    0, "train on only so many examples, evenly spaced in the training set; 0: on all", low=0
  )
  unlabeled: bool = option(
    False,
    "with train_examples: the other training examples too, without their labels, for virtual "
    "adversarial training",
  )
  dev_examples: int = option(
    0, "evaluate on only so many examples, evenly spaced in the dev set; 0: on all", low=0
  )
  trunk: Any = option(
    TransformerConfig(),
    "the trunk for --checkpoint=none; a checkpoint brings its own, but for dtype",
  )
  optim: OptimConfig = option(
    OptimConfig(learning_rate=None, schedule="linear", warmup_steps=0, warmup_share=None),
    "optimizer and schedule",
  )
  mesh: MeshConfig = option(MeshConfig(), "how devices are used")
  train: TrainConfig = option(
    # One checkpoint beside the best: a sweep has many runs, and at GPT-1's size each checkpoint
    # takes 1.4 GB with its moments.
    TrainConfig(log_every=50, keep_checkpoints=1),
    "length of the run, logs and checkpoints; without steps and epochs: by the model's size",
  )

  def __post_init__(self):
    validate(self)


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

  Returns:
    The `result.json` of each seed or fold: the last evaluation and, on process 0, the best one.
  """
  check_type(config)
  trackers = parse_trackers(tracker, workdir)
  if folds > 1:
    more = tokenizer, profile, trackers
    return cross_validate(config, data_dir, pretrained, workdir, folds, seeds, *more)

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
      results.append(run_one(plan, folder, trackers, span))
  return write_summary(results, workdir) if seeds > 1 else results


def check_type(config: Any) -> None:
  """Raises InputError if it is the config of another program."""
  if not isinstance(config, FinetuneConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; fine-tuning takes that of configs/finetune.py:TASK"
    )


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


@dataclasses.dataclass(frozen=True)
class Start:
  """The trunk and vocabulary that a run starts from.

  Attributes:
    trunk: the trunk's config.
    attention: see ModelConfig.
    tokenizer: its vocabulary, with the format's special tokens.
    params: the trunk's parameters; None: they are initialized.
    trained_special: names of the special tokens whose embeddings the checkpoint has trained.
    identity: identifies the parameters in config.json.
    format: how labeled examples are written.
  """

  trunk: TrunkConfig
  attention: str
  tokenizer: Tokenizer
  params: Any = None
  trained_special: tuple[str, ...] = ()
  identity: str = "none"
  format: Format = GPTFormat()

  def encode(self, task: LabeledTask, examples: list[Any]) -> Encoded:
    """Examples of a task as the model reads them."""
    return task.encode(examples, self.tokenizer, self.trunk.context, self.format)


def load_start(config: FinetuneConfig, pretrained: str, tokenizer: str) -> Start:
  """The checkpoint to start from, or for "none" the config's trunk and the tokenizer in a folder.

  Raises:
    InputError: a tokenizer is missing or superfluous, or the config does not fit the checkpoint.
  """
  if pretrained == "none":
    return _start_from_scratch(config, tokenizer)
  if tokenizer:
    raise InputError(
      "--tokenizer is for --checkpoint=none; a checkpoint brings its own: leave it out"
    )
  loaded = load_model(pretrained)
  trunk = _with_runtime_fields(loaded.spec.trunk, config.trunk)
  sizes_are_set = _with_runtime_fields(FinetuneConfig.trunk, config.trunk) != config.trunk
  if sizes_are_set and config.trunk != trunk:
    raise InputError(
      "config.trunk is for --checkpoint=none; a checkpoint brings its own: leave these settings out"
    )
  blocks = getattr(trunk, "layers", 1)
  if (config.transfer_layers or 0) > blocks:
    raise InputError(
      f"transfer_layers={config.transfer_layers}: the checkpoint has {counted(blocks, 'block')}; "
      "none takes all"
    )
  tokenizer_of_format = loaded.tokenizer.with_special(*loaded.format.special)
  trunk = with_vocabulary(trunk, tokenizer_of_format)
  return Start(
    trunk,
    loaded.spec.attention,
    tokenizer_of_format,
    _with_rows(loaded.params["trunk"], trunk.rows),
    tuple(loaded.meta.get("trained_special", ())),
    loaded.identity,
    loaded.format,
  )


def _with_rows(params: Any, rows: int) -> Any:
  """A trunk's parameters with further rows of its tables, for the format's special tokens."""
  tables = {name: params[name] for name in ("tokens", "output") if name in params}
  padded = {name: np.pad(x, [(0, rows - len(x)), (0, 0)]) for name, x in tables.items()}
  return {**params, **padded}


def _with_runtime_fields(trunk: Any, config: Any) -> Any:
  """The trunk with the settings of `config` that fit any parameters, where they are no default."""
  changes = {}
  for name in RUNTIME_FIELDS:
    value = getattr(config, name, None)
    default = getattr(FinetuneConfig.trunk, name)
    if value not in (None, default) and hasattr(trunk, name):
      changes[name] = value
  return dataclasses.replace(trunk, **changes)


def _start_from_scratch(config: FinetuneConfig, tokenizer: str) -> Start:
  if not tokenizer:
    raise InputError(
      "--checkpoint=none needs --tokenizer=DIR, the folder of a vocabulary "
      "(DIR/tokenizer of prepare)"
    )
  format: Format = TextToText() if config.trunk.reads_source else GPTFormat()
  vocabulary = load_tokenizer(tokenizer).with_special(*format.special)
  return Start(with_vocabulary(config.trunk, vocabulary), "causal", vocabulary, format=format)


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


def transform_of(start: Start) -> str:
  """What stands between the anchor and W_y, see ClassifyHead.transform: BERT's pooler where the
  trunk has one, RoBERTa's layer, or nothing.
  """
  if getattr(start.trunk, "pooler", False):
    return "pooler"
  return "dense" if isinstance(start.format, RoBERTaFormat) else "none"


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


def is_probe(config: FinetuneConfig) -> bool:
  """Whether nothing but the head ever trains."""
  return config.train_layers == 0 and not config.unfreeze


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


def make_evaluations(
  config: FinetuneConfig,
  spec: ModelConfig,
  task: LabeledTask,
  dev_set: Encoded,
  mesh: Mesh,
  data_dir: str,
  start: Start,
) -> tuple[Callable[[Any], dict[str, float]], Callable[[Any, int, str], None]]:
  """See make_measure and make_report; both predict by one compiled function.

  A text-to-text model writes its answers, and has no report.
  """
  if isinstance(task, TextTask):
    return make_answer_measure(task, spec, dev_set, start.tokenizer), lambda *_: None
  predict = make_predictor(spec.build(), mesh)
  measure = make_measure(config, task, dev_set, predict)
  return measure, make_report(config, task, dev_set, predict, data_dir)


def make_answer_measure(
  task: TextTask, spec: ModelConfig, dev_set: Any, tokenizer: Tokenizer
) -> Callable[[Any], dict[str, float]]:
  """The function from parameters to the metrics of what a text-to-text model writes."""
  model = generator(spec)

  def measure(params) -> dict[str, float]:
    measures = text_measures(task, model, params, dev_set, tokenizer)
    return {f"dev_{name}": value for name, value in measures.items()}

  return measure


def make_measure(
  config: FinetuneConfig, task: LabeledTask, dev_set: Encoded, predict: Callable[..., Any]
) -> Callable[[Any], dict[str, float]]:
  """The function from parameters to dev_loss and the task's metrics, dev_accuracy and so on.

  Args:
    predict: from make_predictor.
  """

  def measure(params) -> dict[str, float]:
    predictions = predict(params, dev_set, config.batch_size)
    measures = task_measures(task, predictions, dev_set.truth)
    return {f"dev_{name}": value for name, value in measures.items()}

  return measure


def make_report(
  config: FinetuneConfig,
  task: LabeledTask,
  dev_set: Encoded,
  predict: Callable[..., Any],
  data_dir: str,
) -> Callable[[Any, int, str], None]:
  """The function from a run's last parameters, their step and its folder to what dev_report writes
  there of the run's best checkpoint; it does nothing for tasks without classes.

  Args:
    predict: from make_predictor.
    data_dir: see write_dev_report.
  """

  def report(params, step: int, workdir: str) -> None:
    best = best_evaluation(workdir)
    try:
      if best is not None and best["step"] != step:
        shapes = jax.tree.map(_abstract, params)
        params, _, step = restore_params(os.path.join(workdir, "best"), shapes)
      probabilities = predict(params, dev_set, config.batch_size)
      if not is_main_process():
        return
      name = f"{task.name} dev, best checkpoint (step {step}):"
      files = dev_set, probabilities, step, data_dir
      if isinstance(task, MultiLabelTask):
        classes = write_multi_label_report(workdir, task, *files)["per_class"]
        log(f"{name}\n{format_labels(classes)}")
      else:
        log(f"{name} {format_calibration(write_dev_report(workdir, task, *files))}")
    except InputError as error:  # scikit-learn is missing; the run's result does not depend on it
      log(f"no {REPORT}: {error}")

  has_labels = is_classification(task) or isinstance(task, MultiLabelTask)
  return report if has_labels else lambda *_: None


def _abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


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
) -> dict[str, Any]:
  """Fine-tunes with config.train.seed in a claimed folder; returns the content of result.json."""
  finished = os.path.join(workdir, "result.json")
  if (result := read_result(finished)) is not None:
    log(f"{finished}: finished already")
    return result

  primary = f"dev_{task.primary_metric}"
  seed, steps = config.train.seed, total_steps(config, data["train"])
  batches = make_batches(config, data["train"], trainer.mesh)
  evaluating = evaluation_due(config.train.evaluate_every, batches.steps_per_epoch)
  saving = hooks.any_of(evaluating, hooks.every(config.train.checkpoint_every))
  meta = make_meta(config, task, start)
  newest = config.train.keep_checkpoints
  with Checkpoints(workdir, metric=primary, mode="max", newest=newest) as checkpoints:
    forecast = plan()[1] if max(checkpoints.steps(), default=0) < steps else Forecast()
    state, first = trainer.restore_or_init(seed, checkpoints)
    if first == 0:
      state = transfer_trunk(state, start, config.transfer_layers, trainer)
    flops = flops_per_token(config, start.trunk, batches.shape[1])
    told = None, flops, forecast, trackers.with_config(config)
    with Reporter(workdir, steps, first, *told) as reporter:
      tokens = batches.shape[0] * batches.shape[1]
      run_hooks = [
        hooks.measure_pace(reporter),
        hooks.log_progress(reporter, tokens, hooks.every(config.train.log_every)),
        hooks.evaluate(reporter, measure, evaluating),
        hooks.save(reporter, checkpoints, meta, saving),
      ]
      if config.patience:
        run_hooks.append(stop_early(workdir, primary, config.patience, first, evaluating))
        if is_exhausted(evaluations(workdir, primary, first), config.patience):
          steps = first  # it was ended between its last evaluation and its result
      try:
        with traced(run_hooks, profile, reporter, workdir, first) as all_hooks:
          state, evaluation = trainer.fit(
            state, lambda step: trainer.local_part(batches(step)), steps, seed, all_hooks
          )
      except StoppedEarly as stop:
        steps, evaluation = stop.step, stop.evaluation
        reporter.say(
          f"step {steps:,}: no better {primary} in {counted(config.patience, 'evaluation')}"
        )
  evaluation = evaluation or measure(state.params)
  report(state.params, steps, workdir)
  result = {"task": task.name, "seed": seed, "steps": steps, "dev": evaluation}
  if is_main_process():
    result["best"] = best_evaluation(workdir) or {"step": steps, **evaluation}
    write_json(finished, with_checksum(result))
    if not isinstance(task, TextTask):
      warn_of_majority(task, data["dev"], result["best"], config.optim, config.train)
  return result


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


def evaluation_due(evaluate_every: int, steps_per_epoch: int) -> Callable[[int], bool]:
  """Every `evaluate_every` steps, or if 0 as OpenAI's code does: after 1000, 2000, 4000, … updates
  of the first epoch and at the end of each epoch (`openai/train.py:430-445`).
  """
  if evaluate_every:
    return hooks.every(evaluate_every)
  epoch_ends, doubling = hooks.every(steps_per_epoch), hooks.powers_of_two_times(FIRST_EVALUATION)
  return lambda step: epoch_ends(step) or (step < steps_per_epoch and doubling(step))


def transfer_trunk(
  state: TrainState, start: Start, layers: int | None, trainer: Trainer
) -> TrainState:
  """The first state with the checkpoint's parameters in its trunk, on the trainer's devices."""
  if start.params is None:
    return state
  special = start.tokenizer.special
  copy = functools.partial(
    transfer,
    layers=layers,
    trunk=start.trunk,
    trained_rows=[special[name] for name in start.trained_special],
  )
  on_devices = jax.jit(copy, out_shardings=trainer.shardings.params["trunk"])
  trunk = on_devices(state.params["trunk"], start.params)
  return state._replace(params={**state.params, "trunk": trunk})


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
  over_seeds = summarize(results)
  if is_main_process():
    write_json(os.path.join(workdir, "summary.json"), over_seeds)
  log(format_summary(over_seeds))
  return results
