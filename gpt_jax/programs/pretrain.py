"""Pre-training: from prepared text to a checkpoint (section 3.1)."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from gpt_jax.batch import Batch
from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.checkpoints.run_folder import (
  claim,
  claimed_config,
  replace_config,
  resume_microbatches,
  with_microbatches,
)
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import option, register, to_json, validate
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.windows import Windows, WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.inference.evaluate import make_text_measure
from gpt_jax.inference.samples import FIRST_SAMPLE, LEAST_STEPS, make_writer, write_samples
from gpt_jax.models.heads.contrastive import ContrastiveHead
from gpt_jax.models.heads.sentence_pair import SentencePairHead
from gpt_jax.models.loss import model_loss
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.models.trunk import with_vocabulary
from gpt_jax.objectives.causal import Causal
from gpt_jax.objectives.masked import Masked
from gpt_jax.objectives.masked_pairs import MaskedPairs
from gpt_jax.objectives.objective import Bound, example_batch, make_windows
from gpt_jax.objectives.prefix_lm import PrefixLM
from gpt_jax.objectives.span_corruption import SpanCorruption
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import (
  anchors_of_parts,
  check_batch,
  check_whole_batch,
  local_rows,
)
from gpt_jax.programs.report import report_at_end
from gpt_jax.training import hooks
from gpt_jax.training.fitting import plan_training
from gpt_jax.training.forecast import Forecast
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig, make_optimizer
from gpt_jax.training.profile import parse_span, traced
from gpt_jax.training.reporter import Reporter, log
from gpt_jax.training.step import TrainState
from gpt_jax.training.trackers import Trackers, parse_trackers
from gpt_jax.training.trainer import Trainer
from gpt_jax.training.warm_start import WarmStart, load_warm_start

LENGTH_FIELDS = ("train.steps", "train.epochs")  # may change when a run resumes


@register("pretrain")
@dataclasses.dataclass(frozen=True)
class PretrainConfig:
  """A pre-training run; the defaults are the paper's (section 4.1)."""

  trunk: Any = option(
    TransformerConfig(), "the model below the head: TransformerConfig, T5Config or LSTMConfig"
  )
  objective: Any = option(Causal(), "what is predicted")
  data: WindowsConfig = option(WindowsConfig(), "how text becomes batches")
  optim: OptimConfig = option(OptimConfig(), "optimizer and schedule")
  mesh: MeshConfig = option(MeshConfig(), "how devices are used")
  train: TrainConfig = option(TrainConfig(epochs=100), "length of the run, logs and checkpoints")
  evaluation_batches: int = option(0, "batches of held-out text per evaluation; 0: all", low=0)

  def __post_init__(self):
    validate(self)
    if self.data.length > self.trunk.context:
      raise InputError(
        f"data.length={self.data.length}: must not exceed trunk.context={self.trunk.context}"
      )
    given = getattr(self.objective, "gives_source", False)
    if given != self.trunk.reads_source:
      needs = "needs an encoder-decoder" if given else "has nothing for an encoder to read"
      raise InputError(
        f"objective: {type(self.objective).__name__} as configured {needs}; the trunk is a "
        f"{type(self.trunk).__name__}"
      )


def run(
  config: PretrainConfig,
  data: str,
  workdir: str,
  *,
  pretrained: str = "",
  profile: str = "",
  tracker: str = "auto",
) -> dict[str, float]:
  """Trains to the end, resuming from the newest checkpoint; returns the last evaluation.

  Args:
    config: see configs/.
    data: folder that prepare wrote.
    workdir: folder of the run.
    pretrained: checkpoint whose trunk and vocabulary the run starts from; "": random weights.
    profile: START:STOP, the steps of which a trace is written; "": none.
    tracker: see parse_trackers.

  Raises:
    InputError: user errors, before training; later only if ten updates in a row are not finite.
  """
  # 1. Text and start, and the settings that follow from them.
  check_type(config)
  trackers = parse_trackers(tracker, workdir)
  text, held_out, tokenizer = load_text(config, data)
  config, tokenizer, start = with_start(config, tokenizer, pretrained)
  windows = make_windows(config.objective, text, config.data, config.train.seed)
  total_steps = config.train.total_steps(windows.steps_per_epoch)
  span = parse_span(profile, total_steps)

  # 2. Devices, and the parts of a batch: a run that goes on keeps its own.
  mesh = make_mesh(config.mesh)
  config, chooses = resume_microbatches(config, [workdir])
  check_batch(config.data.batch_size, mesh, config.train.microbatches)

  # 3. Objective, model, trainer.
  objective = config.objective.bind(tokenizer, config.data.length)
  spec = ModelConfig(config.trunk, make_heads(config.objective.heads), config.objective.attention)
  trainer = make_trainer(config, spec, objective, mesh, total_steps)
  measure = make_measure(config, spec, objective, held_out, mesh)
  identity = data_identity(text, held_out, start)
  claim(workdir, config, tokenizer, identity, LENGTH_FIELDS)

  # 4. Training, from the newest checkpoint if there is one.
  with contextlib.ExitStack() as after, open_checkpoints(config, workdir) as checkpoints:
    forecast = Forecast()
    if max(checkpoints.steps(), default=0) < total_steps:
      trainer, forecast = plan_run(config, spec, objective, trainer, total_steps, chooses)
      if trainer.microbatches != config.train.microbatches:
        config = with_microbatches(config, trainer.microbatches)
        claim(workdir, config, tokenizer, identity, LENGTH_FIELDS)
    batch_at = make_batch_at(config, objective, windows, mesh)
    state, first = first_state(trainer, config.train.seed, checkpoints, start)
    new_heads = start.new_heads(state.params) if start else []
    log(describe(config, tokenizer, text, total_steps, start, first, new_heads))
    change_length(config, workdir, windows.steps_per_epoch, first)
    after.enter_context(report_at_end(workdir))
    steps, texts = (first, total_steps), (text, held_out)
    with make_reporter(config, spec, texts, workdir, steps, forecast, trackers) as reporter:
      meta = make_meta(config, spec, tokenizer, start)
      run_hooks = make_hooks(config, reporter, measure, checkpoints, meta)
      run_hooks[:0] = warn_when_stuck(config, spec, text, total_steps, new_heads)
      if writes_samples(spec, total_steps):
        write = make_writer(spec.build(), tokenizer, held_out, mesh)
        run_hooks.append(write_samples(workdir, first, reporter, write, samples_due(config)))
      with traced(run_hooks, span, reporter, workdir, first) as all_hooks:
        seed = config.train.seed
        state, evaluation = trainer.fit(state, batch_at, total_steps, seed, all_hooks, forecast)
  return evaluation or measure(state.params)


def check_type(config: Any) -> None:
  """Raises InputError if it is the config of another program."""
  if not isinstance(config, PretrainConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; pre-training takes a PretrainConfig, "
      "as in configs/gpt1.py"
    )


def config_of(loaded: LoadedModel) -> Any:
  """The config of the run that trained a model; of weights from elsewhere, one with its sizes and
  the objective of its heads.
  """
  if loaded.config is not None:
    return loaded.config
  trunk = loaded.spec.trunk
  return PretrainConfig(trunk, _objective_of(loaded.spec), WindowsConfig(length=trunk.context))


def _objective_of(spec: ModelConfig) -> Any:
  """The objective that suits a model's attention and heads."""
  if spec.trunk.reads_source:
    return SpanCorruption("encoder_decoder")
  if spec.attention == "prefix":
    return PrefixLM()
  if spec.attention == "causal":
    return Causal()
  if any(isinstance(head, SentencePairHead) for head in spec.heads):
    is_albert = getattr(spec.trunk, "shared_layers", False)
    return MaskedPairs(second="swapped" if is_albert else "random_document")
  return Masked()


def load_text(config: PretrainConfig, data: str) -> tuple[TokenFile, TokenFile, Tokenizer]:
  """(training text, held-out text, tokenizer with the objective's special tokens)."""
  text, held_out = TokenFile(data, "train"), TokenFile(data, "valid")
  tokenizer = load_tokenizer(f"{data}/tokenizer")
  try:
    tokenizer = tokenizer.with_special(*config.objective.special)
  except InputError as error:
    raise InputError(f"{data}/tokenizer: {error}") from error
  text.check_vocabulary(tokenizer)
  held_out.check_vocabulary(tokenizer)
  return text, held_out, tokenizer


def load_start(config: PretrainConfig, pretrained: str, tokenizer: Tokenizer) -> WarmStart | None:
  """The checkpoint to start from; None for random weights."""
  if not pretrained:
    return None
  objective = config.objective
  return load_warm_start(
    pretrained,
    config.trunk,
    objective.attention,
    tokenizer,
    objective.special,
    objective.format,
    getattr(objective, "keeps_format", False),
  )


def with_start(
  config: PretrainConfig, tokenizer: Tokenizer, pretrained: str
) -> tuple[PretrainConfig, Tokenizer, WarmStart | None]:
  """The checkpoint to start from, and the config and tokenizer with its sizes and vocabulary."""
  start = load_start(config, pretrained, tokenizer)
  if start:
    return dataclasses.replace(config, trunk=start.trunk), start.tokenizer, start
  trunk = with_vocabulary(config.trunk, tokenizer)
  return dataclasses.replace(config, trunk=trunk), tokenizer, None


def first_state(
  trainer: Trainer, seed: int, checkpoints: Checkpoints, start: WarmStart | None
) -> tuple[TrainState, int]:
  """The newest checkpoint's state, or the start's, or random weights; and its step."""
  state, step = trainer.restore_or_init(seed, checkpoints)
  if start and not step:
    state = start.apply(state, trainer)
  return state, step


def data_identity(
  text: TokenFile, held_out: TokenFile, start: WarmStart | None = None
) -> dict[str, Any]:
  """Identifies text and start, so that a run resumes only with the same ones."""
  identity = {
    "train_tokens": text.n_tokens,
    "train_digest": text.digest,
    "valid_tokens": held_out.n_tokens,
    "valid_digest": held_out.digest,
  }
  return identity | {"pretrained": start.identity} if start else identity


def change_length(config: PretrainConfig, workdir: str, steps_per_epoch: int, first: int) -> None:
  """Records and logs that a run goes on with another number of steps than it began with.

  Args:
    config: as given now.
    workdir: claimed for the run.
    steps_per_epoch: of its data.
    first: updates that the run has made.

  Raises:
    InputError: the run has made more updates than it should have now.
  """
  earlier = claimed_config(workdir).train
  before, now = (train.total_steps(steps_per_epoch) for train in (earlier, config.train))
  if now < first:
    length = f"train.steps={now}" if config.train.steps else f"train.epochs={config.train.epochs}"
    raise InputError(
      f"{length}: the run in --workdir={workdir} has made {first:,} updates already; a run can be "
      "made longer, but not shorter than it is"
    )
  if (earlier.steps, earlier.epochs) == (config.train.steps, config.train.epochs):
    return
  replace_config(workdir, config, {"at_step": first, "total_steps": [before, now]})
  was, rate = (float(make_optimizer(config.optim, n).schedule(first)) for n in (before, now))
  schedule = "which does not change the learning rate at this step"
  if was != rate:
    schedule = f"and the learning rate follows their schedule: {rate:.3g} here, not {was:.3g}"
  log(f"length  from step {first:,} on {now:,} steps instead of {before:,}, {schedule}")


def open_checkpoints(config: PretrainConfig, workdir: str) -> Checkpoints:
  """The run's checkpoints: the newest, the best and the milestones are kept."""
  return Checkpoints(
    workdir,
    metric="valid_loss",
    mode="min",
    keep=hooks.powers_of_two_times(config.train.milestone),
    newest=config.train.keep_checkpoints,
  )


def make_trainer(
  config: PretrainConfig, spec: ModelConfig, objective: Bound, mesh: Mesh, total_steps: int
) -> Trainer:
  """The trainer of a pre-training run; the config's trunk has its vocabulary size.

  Raises:
    InputError: the batch is split, but the loss needs all of it.
  """
  if spec.needs_whole_batch:
    check_whole_batch(config.data.batch_size, config.train.parts, config.mesh.backend)
  model = spec.build(config.train.remat)
  return Trainer.build(
    model,
    model_loss(model),
    example_batch(config.objective, objective, config.data.length, 1),
    make_optimizer(config.optim, total_steps),
    mesh,
    rules=config.trunk.TENSOR_PARALLEL,
    fsdp=config.mesh.fsdp,
    backend=config.mesh.backend,
    microbatches=config.train.parts,
    scales_loss=config.trunk.dtype == "float16",
  )


def make_batch_at(
  config: PretrainConfig, objective: Bound, windows: Windows, mesh: Mesh
) -> Callable[[int], Any]:
  """The function from a step to the rows of its batch that this process provides."""
  size, parts = config.data.batch_size, config.train.parts
  rows = local_rows(size, mesh, parts)
  part = size // parts
  if config.mesh.backend == "pmap":
    part //= mesh.shape["data"]

  def batch_at(step: int) -> Batch:
    batch = objective(windows(step, rows), windows.draw(step, rows))
    return anchors_of_parts(batch, rows, part)

  return batch_at


def plan_run(
  config: PretrainConfig,
  spec: ModelConfig,
  objective: Bound,
  trainer: Trainer,
  total_steps: int,
  chooses: bool = False,
  limit: float = 0.0,
) -> tuple[Trainer, Forecast]:
  """See fitting.plan_training; `trainer` is the config's."""
  size, length = config.data.batch_size, config.data.length
  example = example_batch(config.objective, objective, length, size)

  def build(train: TrainConfig) -> tuple[Trainer, Any]:
    changed = dataclasses.replace(config, train=train)
    return make_trainer(changed, spec, objective, trainer.mesh, total_steps), example

  return plan_training(
    config.train,
    trainer,
    example,
    size * length * config.trunk.flops_per_token(length),
    build,
    size,
    "a smaller --config.data.batch_size or --config.data.length",
    chooses,
    limit,
    spec.needs_whole_batch,
    other_programs=2 if writes_samples(spec, total_steps) else 1,
  )


def make_meta(
  config: PretrainConfig,
  spec: ModelConfig,
  tokenizer: Tokenizer,
  start: WarmStart | None = None,
) -> dict[str, Any]:
  """What the checkpoints record beside the parameters."""
  trained = (*(start.trained_special if start else ()), *config.objective.special)
  return {
    "model": to_json(spec),
    "config": to_json(config),
    "tokenizer_hash": tokenizer.hash,
    "trained_special": list(dict.fromkeys(trained)),
    "sequence_format": start.format if start else config.objective.format,
  }


def make_reporter(
  config: PretrainConfig,
  spec: ModelConfig,
  texts: tuple[TokenFile, TokenFile],
  workdir: str,
  steps: tuple[int, int],
  forecast: Forecast,
  trackers: Trackers,
) -> Reporter:
  """The run's Reporter, from the first of `steps` to the last, for training and held-out text."""
  entropies = [text.unigram_entropy if spec.predicts_tokens else None for text in texts]
  return Reporter(
    workdir,
    steps[1],
    steps[0],
    unigram_entropy=entropies[0],
    held_out_entropy=entropies[1],
    flops_per_token=config.trunk.flops_per_token(config.data.length),
    forecast=forecast,
    trackers=trackers.with_config(config),
    token_metric=spec.token_metric,
  )


def writes_samples(spec: ModelConfig, total_steps: int) -> bool:
  return spec.gives_text_probability and total_steps >= LEAST_STEPS


def samples_due(config: PretrainConfig) -> Callable[[int], bool]:
  """After evaluations, and after FIRST_SAMPLE updates times 1, 2, 4, …"""
  evaluating = hooks.every(config.train.evaluate_every)
  return hooks.any_of(evaluating, hooks.powers_of_two_times(FIRST_SAMPLE))


def warn_when_stuck(
  config: PretrainConfig,
  spec: ModelConfig,
  text: TokenFile,
  total_steps: int,
  new_heads: Sequence[str] = (),
) -> list[hooks.Hook]:
  """The warning that after twice the warm-up a loss is no better than with nothing learned.

  A head that is new beside a trunk that is not begins above the loss of word frequencies.
  """
  after = 2 * config.optim.warmup_length(total_steps)
  due = hooks.every(config.train.log_every)
  if spec.predicts_tokens:
    first, reason = spec.heads[0].scope, {}
    if first in new_heads:
      reason["meaning"] = f"the {first} head is new"
      reason["advice"] = "train longer (train.steps or train.epochs)"
    return [hooks.warn_when_stuck(text.unigram_entropy, after, due, spec.token_metric, **reason)]
  return [
    hooks.warn_when_stuck(
      head.chance(config.data.batch_size),
      after,
      due,
      name="chance",
      meaning="the vectors of all texts are alike so far",
    )
    for head in spec.heads
    if isinstance(head, ContrastiveHead)
  ]


def make_hooks(
  config: PretrainConfig,
  reporter: Reporter,
  measure: Callable[[Any], dict[str, float]],
  checkpoints: Checkpoints,
  meta: dict[str, Any],
) -> list[hooks.Hook]:
  """Logging, evaluation and checkpoints at the config's intervals."""
  logging = hooks.every(config.train.log_every)
  evaluating = hooks.every(config.train.evaluate_every)
  saving = hooks.any_of(
    evaluating,
    hooks.every(config.train.checkpoint_every),
    hooks.powers_of_two_times(config.train.milestone),
  )
  return [
    hooks.measure_pace(reporter),
    hooks.log_progress(reporter, config.data.batch_size * config.data.length, logging),
    hooks.evaluate(reporter, measure, evaluating),
    hooks.save(reporter, checkpoints, meta, saving),
  ]


def make_measure(
  config: PretrainConfig, spec: ModelConfig, objective: Bound, held_out: TokenFile, mesh: Mesh
) -> Callable[[Any], dict[str, float]]:
  """The function from parameters to valid_loss, and to what else text_measures gives."""
  windows = make_windows(config.objective, held_out, config.data)
  text_measure = make_text_measure(
    spec.build(), objective, windows, mesh, config.evaluation_batches
  )

  def measure(params) -> dict[str, float]:
    return {f"valid_{name}": value for name, value in text_measure(params).items()}

  return measure


def describe(
  config: PretrainConfig,
  tokenizer: Tokenizer,
  text: TokenFile,
  total_steps: int,
  start: WarmStart | None,
  first: int,
  new_heads: Sequence[str] = (),
) -> str:
  """The summary printed before a run: model, text, length, devices, what is new after a start."""
  trunk, tokens = config.trunk, config.data.batch_size * config.data.length
  kinds = sorted({device.device_kind for device in jax.devices()})
  epochs = total_steps * tokens / text.n_tokens
  lines = [
    f"model   {trunk.parameter_count():,} parameters, {type(trunk).__name__}, {trunk.dtype}",
    f"text    {text.n_tokens:,} tokens, vocabulary {tokenizer.vocab_size:,}, "
    f"unigram entropy {text.unigram_entropy:.2f} nats",
    f"run     {total_steps:,} steps of {tokens:,} tokens: {epochs:.2f} epochs",
    f"devices {jax.device_count()} x {', '.join(kinds)}",
  ]
  if warning := config.optim.about_long_warmup(total_steps):
    lines.append(warning)
  if start:
    heads = "".join(f"the {name} head and " for name in new_heads)
    lines.append(
      f"start   {start.checkpoint}, step {start.step:,}: sizes, vocabulary and weights; {heads}the "
      f"optimizer {'are' if heads else 'is'} new"
    )
  if first:
    lines.append(f"resumed at step {first:,}")
  return "\n".join(lines)
