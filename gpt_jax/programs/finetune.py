"""Fine-tuning: a pre-trained trunk, a labeled task and a new head W_y (section 3.2)."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from jax.sharding import Mesh

from gpt_jax.checkpoints.run_folder import checksum, resume_choices, resume_microbatches
from gpt_jax.checkpoints.saved import keep_base, own_base
from gpt_jax.config import from_json
from gpt_jax.errors import InputError
from gpt_jax.models.loss import Loss, model_loss
from gpt_jax.models.model import parameter_shapes
from gpt_jax.parallel.mesh import make_mesh
from gpt_jax.parallel.placement import local_part
from gpt_jax.parallel.processes import log
from gpt_jax.programs.finetune_config import FinetuneConfig, check_type
from gpt_jax.programs.finetune_evaluations import (
  RESULT,
  evaluation_due,
  finish,
  make_evaluations,
  read_result,
  write_summary,
)
from gpt_jax.programs.finetune_task import load_task, make_meta, one_head, updates_per_epoch
from gpt_jax.programs.start import Start, load_start
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.training.hooks import ending_hooks, has_ended
from gpt_jax.training.layerwise import Layerwise, OptimizerOf, trained_layers
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.recipe import Batches, Evaluation, Recipe
from gpt_jax.training.run import Run, ending
from gpt_jax.training.unlabeled import UNLABELED_WORK, CrossViewLoss, LossInTurns, Turns, draw_order

if TYPE_CHECKING:
  from gpt_jax.training.profile import Span
  from gpt_jax.training.trackers import Trackers


def run(
  config: FinetuneConfig,
  data: str,
  checkpoint: str,
  workdir: str,
  *,
  seeds: int = 1,
  folds: int = 1,
  tokenizer: str = "",
  set_fields: Sequence[str] = (),
  trackers: "Trackers | None" = None,
  profile: "Span | None" = None,
  pauses: Callable[[int], bool] | None = None,
  on_end: Sequence[Callable[[str], None]] = (),
) -> list[dict[str, Any]]:
  """Fine-tunes one model per seed or fold, and evaluates on the dev set as OpenAI's code does.

  The checkpoint with the best primary metric is `<workdir>/best`. With several seeds or folds,
  `summary.json` has the spread of every metric.

  Args:
    config: see configs/finetune.py.
    data: folder of the task's official files (with glue/ or race/ in it), or tfds:DIR.
    checkpoint: see load_model; or none.
    workdir: folder for config, metrics and checkpoints, or of seed_<n> or fold_<n>, those of
      several runs; the same command resumes.
    seeds: number of runs, from config.train.seed on, each with its own folder; finished ones are
      skipped.
    folds: for a table, number of runs, each holding out another part of the training file in place
      of a dev file.
    tokenizer: folder of a vocabulary; only if `checkpoint` is none.
    set_fields: see load_start.
    trackers, profile: see pretrain.run.
    pauses: step -> whether the run ends after it for now, evaluated and saved but without its
      `result.json`; the same call goes on with it. For one process, without folds; None: never.
    on_end: called with `workdir`, or a fold's, when a run has ended, also by an error or a signal.

  Returns:
    The `result.json` of each seed or fold: the last evaluation and, on process 0, the best one.
  """
  check_type(config)
  if folds > 1:
    if seeds > 1:
      raise InputError(f"--folds={folds} and --seeds={seeds}: set one of them")
    options: dict[str, Any] = {"tokenizer": tokenizer, "set_fields": set_fields}
    options |= {"trackers": trackers, "profile": profile, "on_end": on_end}
    return _cross_validate(config, data, checkpoint, workdir, folds, options)
  first = config.train.seed
  folders = {first: workdir}
  if seeds > 1:
    folders = {n: os.path.join(workdir, f"seed_{n}") for n in range(first, first + seeds)}
  noted, checkpoint = own_base(checkpoint, folders.values())
  config = resume_choices(config, folders.values())
  # First what may fail on the user's input, then what compiles.
  start = load_start(config, checkpoint, tokenizer, set_fields)
  config, task, encoded = load_task(config, data, start)
  if noted != checkpoint:  # it is kept in the run's folder
    start = dataclasses.replace(start, checkpoint=noted)
  recipe = finetune_recipe(config, task, encoded["train"], start)
  recipe = with_evaluation(recipe, task, encoded, start, data, pauses)
  all_seeds = Run(recipe, folders.values())  # the seeds share one compiled step
  ends = [functools.partial(call, workdir) for call in on_end]
  results = []
  for seed, folder in folders.items():
    all_seeds.claim(seed, folder)
    if "adapter" in recipe.meta:
      keep_base(folder, recipe.meta["adapter"]["base"]["checkpoint"])
    result = read_result(folder)
    if result is None:
      result = all_seeds.train(seed, folder, on_end=ends, trackers=trackers, profile=profile)
    else:
      with ending(ends):  # which writes its report again
        log(f"{os.path.join(folder, RESULT)}: finished already")
    results.append(result)
  return write_summary(results, workdir) if seeds > 1 else results


def _cross_validate(
  config: FinetuneConfig,
  data_dir: str,
  pretrained: str,
  workdir: str,
  folds: int,
  options: dict[str, Any],
) -> list[dict[str, Any]]:
  """One run for each part of a table's training file that is held out; see run."""
  if not config.task.has_folds:
    raise InputError(f"--folds={folds}: only tables have folds; this task has a dev set of its own")
  results = []
  task = dataclasses.replace(config.task, folds=folds)
  task.with_labels(data_dir).check_folds(data_dir, config.batch_size)
  folders = [os.path.join(workdir, f"fold_{fold}") for fold in range(folds)]
  config = resume_choices(config, folders)
  for fold, folder in enumerate(folders):
    log(f"fold {fold + 1} of {folds}")
    resumed, is_open = resume_microbatches(config, folders)  # as the first fold has chosen
    task = dataclasses.replace(config.task, folds=folds, fold=fold)
    parts = make_mesh(config.mesh).shape["data"] * resumed.train.microbatches
    is_open |= config.batch_size % parts > 0  # as of folds on fewer devices
    of_fold = dataclasses.replace(config if is_open else resumed, task=task)
    (result,) = run(of_fold, data_dir, pretrained, folder, **options)
    results.append({**result, "fold": fold})
  write_summary(results, workdir)
  return results


def finetune_recipe(
  config: FinetuneConfig,
  task: LabeledTask,
  train_set: Encoded,
  start: Start,
  devices: Sequence[Any] | None = None,
) -> Recipe:
  """The recipe of a fine-tuning run without its evaluation; load_task gives config and data.

  devices: that need not be there; None: those of this machine.
  """
  recipe = plain_recipe(config, task, train_set, start, devices)
  for method in config.methods:
    recipe = method.recipe(recipe, start)
  return in_turns(recipe, task)


def plain_recipe(
  config: FinetuneConfig,
  task: LabeledTask,
  train_set: Encoded,
  start: Start,
  devices: Sequence[Any] | None = None,
) -> Recipe:
  """The recipe that the methods of a config change; see finetune_recipe."""
  mesh, meta = make_mesh(config.mesh, devices), make_meta(config, task, start)
  spec = from_json(meta["model"])
  steps_per_epoch = updates_per_epoch(config, train_set)
  layerwise = Layerwise()
  if not any(method.trains_trunk for method in config.methods):
    shapes = parameter_shapes(spec)
    layerwise = trained_layers(shapes, spec.trunk, config.train_layers, config.layer_decay)
  for method in config.methods:
    layerwise = method.change_layerwise(layerwise, spec, config, steps_per_epoch)

  @functools.lru_cache(2)  # packing takes a while; the next seed has other batches
  def batches(train: TrainConfig) -> Batches:
    return make_batches(dataclasses.replace(config, train=train), train_set, mesh)

  return Recipe(
    config,
    mesh,
    # A probe's trunk does not train, and gives the same features each time.
    spec.with_trunk_dropout(0) if config.is_probe else spec,
    batches,
    config.batch_size,
    steps_per_epoch,
    OptimizerOf(config.optim, layerwise),
    meta=meta,
    start=functools.partial(start.apply, layers=config.transfer_layers, heads=False),
  )


def in_turns(recipe: Recipe, task: LabeledTask) -> Recipe:
  """The recipe with a loss for each stream where batches take turns: of several tasks, and of text
  without labels.
  """
  config, spec, plain = recipe.config, recipe.spec, recipe.loss
  several = len(task.parts) > 1
  if not config.has_streams and not several:
    return recipe
  names = [part.name for part in task.parts] if several else ["labeled"]

  def loss(model: Any) -> Loss:
    alone = [model]
    if several or task.writes_text:
      # A batch with labels is of one task, and has no more than its head.
      alone = [one_head(spec, number).build(model.remat) for number in range(len(names))]
    losses = dict(zip(names, map(plain, alone), strict=True))
    if config.has_streams and task.writes_text:  # the views' targets are in the batch
      losses["unlabeled"] = model_loss(one_head(spec, 1).build(model.remat))
    elif config.has_streams:
      losses["unlabeled"] = CrossViewLoss(model)
    return LossInTurns(losses)

  work = (recipe.work + UNLABELED_WORK) / 2 if config.has_streams else recipe.work
  return dataclasses.replace(recipe, loss=loss, work=work)


def with_evaluation(
  recipe: Recipe,
  task: LabeledTask,
  data: dict[str, Encoded],
  start: Start,
  data_dir: str,
  pauses: Callable[[int], bool] | None,
) -> Recipe:
  """The recipe of finetune_recipe with its dev set and result; `data`: the examples by split."""
  config = recipe.config
  measure, report = make_evaluations(recipe, task, data["dev"], data_dir, start)
  due = evaluation_due(config.train.evaluate_every, recipe.steps_per_epoch, pauses)
  metric = f"dev_{task.primary_metric}"
  from_scratch = config.starts_anew(start.identity)
  return dataclasses.replace(
    recipe,
    tokenizer=start.tokenizer,
    identity={**data_identity(data, start), **recipe.identity},
    evaluation=Evaluation(measure, metric, "max", due),
    baselines=recipe.baselines._replace(rows_per_epoch=recipe.steps_per_epoch * config.batch_size),
    further_hooks=functools.partial(ending_hooks, metric, config.patience, due, pauses),
    has_ended=functools.partial(has_ended, metric, config.patience),
    finish=functools.partial(finish, config, task, data["dev"], report, from_scratch),
  )


class WholeBatches:
  """Batches from a function that builds a step's whole batch; each process takes its rows."""

  def __init__(
    self,
    whole: Callable[[int], Any],
    shape: tuple[int, int],
    mesh: Mesh,
    microbatches: int,
    largest: int = 0,
  ):
    """largest: the step whose batch needs most memory; a run is planned by it."""
    self.shape = shape
    self._whole, self._mesh, self._microbatches = whole, mesh, microbatches
    self._largest = largest

  def at(self, step: int) -> Any:
    return local_part(self._whole(step), self._mesh, self._microbatches)

  def example(self) -> Any:
    return self._whole(self._largest)


def make_batches(config: FinetuneConfig, train_set: Encoded, mesh: Mesh) -> Batches:
  """The batches of a run, in the order of its seed; packed, but for those of an encoder-decoder."""
  # At least 1: PackedBatches says what is wrong with fewer examples than a batch.
  steps = config.train.total_steps(max(1, updates_per_epoch(config, train_set)))
  labeled, rest = train_set.streams
  if not config.has_streams and len(labeled) == 1:
    return _batches_of(config, train_set, steps, mesh)
  if config.has_streams and rest is None:
    raise InputError(
      f"unlabeled: all {len(train_set)} training examples have labels; set a smaller "
      "train_examples, or unlabeled.file"
    )
  parts = [*labeled] if rest is None else [*labeled, rest]
  order = draw_order([len(part) for part in labeled], steps, config.train.seed, rest is not None)
  streams = []
  # Each stream is planned for as many batches as it gives.
  for number, part in enumerate(parts):
    count = int((order == number).sum())
    streams.append(_batches_of(config, part, max(1, count), mesh))
  # The last stream's step needs more memory, for its teacher and five views.
  return Turns(streams, order, largest=len(streams) - 1)


def _batches_of(config: FinetuneConfig, train_set: Encoded, steps: int, mesh: Mesh) -> WholeBatches:
  devices, microbatches = mesh.shape["data"], config.train.parts
  # All batches are planned ahead: one shape has to hold each of them.
  epochs = -(-steps // max(1, len(train_set) // config.batch_size))
  seed = config.train.seed
  if config.trunk.reads_source:
    rows = cast(Any, train_set).batches(config.batch_size, seed, epochs)
    return WholeBatches(rows, rows.shape, mesh, microbatches, rows.largest)
  # An extract token must be in the same group of rows as its example: a microbatch under jit; under
  # pmap also a device.
  pmap = config.mesh.backend == "pmap"
  packed = PackedBatches(
    train_set,
    config.batch_size,
    seed,
    epochs,
    groups=microbatches * devices if pmap else microbatches,
    row_multiple=1 if pmap else devices,
  )
  return WholeBatches(packed, packed.shape, mesh, microbatches)


def data_identity(data: dict[str, Encoded], start: Start) -> dict[str, str]:
  """Identifies checkpoint and examples, so that a run resumes only with the same ones."""
  identity = {"pretrained": start.identity}
  for split, encoded in data.items():
    # Not the locations: the files may have moved.
    identity[split] = f"{len(encoded)} examples, checksum {checksum(encoded.content)}"
  return identity
