"""A run of a recipe, from claiming its folder to its result."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpt_jax.checkpoints.run_folder import (
  claim,
  claimed_config,
  replace_config,
  resume_microbatches,
  resume_milestone,
)
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.parallel.memory import Forecast
from gpt_jax.parallel.processes import log
from gpt_jax.training import hooks
from gpt_jax.training.fitting import plan_training
from gpt_jax.training.recipe import Finished, Recipe, make_trainer
from gpt_jax.training.reporter import Reporter
from gpt_jax.training.step import TrainState
from gpt_jax.training.trainer import Trainer

if TYPE_CHECKING:  # a run has them only if its user asks for them
  from gpt_jax.training.profile import Span
  from gpt_jax.training.trackers import Trackers

# They may change when a run that can go on resumes.
LENGTH_FIELDS: tuple[str, ...] = ("train.steps", "train.epochs")
_PATIENCE = 5.0  # seconds that an interrupted run may spend on `on_end`


class Run:
  """A recipe whose step is compiled and planned once, for the runs of several seeds."""

  def __init__(self, recipe: Recipe, folders: Iterable[str]):
    """folders: the folders of all runs; one that has trained before decides the microbatches."""
    folders, is_open = list(folders), not recipe.config.train.microbatches
    config, self._chooses = resume_microbatches(recipe.config, folders)
    count = config.train.microbatches
    parts = recipe.mesh.shape["data"] * count
    if is_open and recipe.batch_size % parts:  # as of a run on fewer devices
      log(f"train.microbatches: chosen anew, as {count} do not divide a batch on these devices")
      count, self._chooses = 1, True
    self._may_change = LENGTH_FIELDS if recipe.can_grow else ()
    self._may_change += ("train.microbatches",) if is_open else ()
    # With the microbatches that it trains with, once they are known.
    milestone = resume_milestone(recipe.config, folders)
    self.recipe = recipe.with_train(microbatches=count, milestone=milestone)
    self.trainer = make_trainer(self.recipe)
    self._forecast: Forecast | None = None
    self._claimed: set[tuple[str, int, bool]] = set()  # (folder, microbatches, may_replace)

  def claim(self, seed: int, workdir: str, may_replace: bool = False) -> None:
    """Claims a folder for the run of a seed. Raises InputError if it is another run's."""
    recipe = self.recipe.with_train(seed=seed)
    key = workdir, recipe.config.train.parts, may_replace
    if key in self._claimed:  # a claim reads the folder, perhaps on a store, and is a barrier
      return
    assert recipe.tokenizer is not None
    identity = dict(recipe.identity)
    claim(workdir, recipe.config, recipe.tokenizer, identity, self._may_change, may_replace)
    self._claimed.add(key)

  def plan(self) -> Forecast:
    """Compiles the step and forecasts the run; chooses the microbatches if the config does not."""
    if self._forecast is None:
      self.trainer, self._forecast = plan_training(self.recipe, self.trainer, self._chooses)
      self.recipe = self.recipe.with_train(microbatches=self.trainer.microbatches)
    return self._forecast

  def train(
    self,
    seed: int,
    workdir: str,
    *,
    on_end: Sequence[Callable[[], None]] = (),
    trackers: "Trackers | None" = None,
    profile: "Span | None" = None,
  ) -> Any:
    """Trains with a seed to the end, from the newest checkpoint in `workdir` if there is one.

    `on_end` is called when the run has ended, also by an error or a signal. Returns the value of
    the recipe's `finish`.
    """
    if profile:
      profile.check(self.recipe.total_steps)
    # Before anything is compiled, so that a wrong folder fails at once.
    self.claim(seed, workdir)
    with contextlib.ExitStack() as ends:
      train, evaluation = self.recipe.config.train, self.recipe.evaluation
      metric, mode = (evaluation.metric, evaluation.mode) if evaluation else (None, "max")
      keep = hooks.powers_of_two_times(train.milestone)  # milestones are never deleted
      with Checkpoints(workdir, metric, mode, keep, train.keep_checkpoints) as checkpoints:
        if self.recipe.summary:  # before minutes of compiling
          log("\n".join(self.recipe.summary))
        forecast = Forecast()
        # A run that has made all its steps compiles nothing: it only returns its result.
        if max(checkpoints.steps(), default=0) < self.recipe.total_steps:
          forecast = self.plan()
          self.claim(seed, workdir, may_replace=True)  # the microbatches are known now
        recipe = self.recipe.with_train(seed=seed)
        state, first = self.trainer.restore_or_init(seed, checkpoints)
        # A resumed state already contains what the recipe starts from, but for a base.
        if not first or self.trainer.shardings.base is not None:
          state = recipe.start(state, self.trainer)
        if first and recipe.summary:
          log(f"resumed at step {first:,}")
        if recipe.can_grow:
          change_length(recipe, workdir, first)
        ends.enter_context(ending(on_end))
        with Reporter(
          workdir,
          recipe.total_steps,
          first,
          baselines=recipe.baselines,
          flops_per_token=recipe.flops_per_token(),
          forecast=forecast,
          trackers=trackers,
          config=recipe.config,
        ) as reporter:
          context = hooks.RunContext(workdir, first, reporter)
          run_hooks = make_hooks(recipe, context, checkpoints)
          tracing = profile.traced(run_hooks, context) if profile else None
          with tracing or contextlib.nullcontext(run_hooks) as all_hooks:
            finished = _fit(recipe, self.trainer, state, context, all_hooks, forecast)
      return recipe.finish(finished, workdir)


@contextlib.contextmanager
def ending(on_end: Sequence[Callable[[], None]]) -> Iterator[None]:
  """Calls each of `on_end` when the block ends; after an error for _PATIENCE at most."""

  def call() -> None:
    for function in on_end:
      function()

  try:
    yield
  except BaseException:
    # A daemon, so that a call that hangs does not keep the process alive.
    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    calling.join(_PATIENCE)  # the error is raised even if a call still hangs
    raise
  call()


def make_hooks(
  recipe: Recipe, context: hooks.RunContext, checkpoints: Checkpoints
) -> list[hooks.Hook]:
  """Logging, evaluation, checkpoints and the recipe's own, in the order they are called."""
  train, reporter, evaluation = recipe.config.train, context.reporter, recipe.evaluation
  rows, length = recipe.batches(train).shape
  evaluating = evaluation.due if evaluation else hooks.every(0)
  saving = hooks.any_of(
    evaluating,
    hooks.every(train.checkpoint_every),
    hooks.powers_of_two_times(train.milestone),
  )
  # The order matters: an evaluation goes into the checkpoint of its step and ranks it, and hooks
  # that end the run by an exception come after the save.
  result = [
    *recipe.first_hooks(),
    hooks.log_progress(reporter, rows * length, hooks.every(train.log_every)),
  ]
  if evaluation:
    result.append(hooks.evaluate(reporter, evaluation.measure, evaluating))
  meta = {**recipe.meta, "config": to_json(recipe.config)}
  result.append(hooks.save(reporter, checkpoints, meta, saving))
  return [*result, *recipe.further_hooks(context)]


def _fit(
  recipe: Recipe,
  trainer: Trainer,
  state: TrainState,
  context: hooks.RunContext,
  all_hooks: Sequence[hooks.Hook],
  forecast: Forecast,
) -> Finished:
  """Trains from a state on, to the last step or an early stop."""
  train, evaluation = recipe.config.train, recipe.evaluation
  steps = context.first if recipe.has_ended(context) else recipe.total_steps
  stopped = None
  batches = recipe.batches(train)  # shuffled by this seed
  try:
    state, measured = trainer.fit(state, batches.at, steps, train.seed, all_hooks, forecast)
  except hooks.StoppedEarly as stop:  # raised by a hook, so the loop does not return its last state
    stopped, steps, measured = stop, stop.step, stop.evaluation
    context.reporter.say(f"step {steps:,}: {stop.reason}")
  # No step was left to make: the run had ended before its result was written.
  if evaluation and not measured:
    measured = evaluation.measure(state.all_params)
  return Finished(train.seed, state.all_params, steps, measured, stopped)


def change_length(recipe: Recipe, workdir: str, first: int) -> None:
  """Records and logs that a run goes on with another number of steps than it began with, after
  `first` updates.
  """
  earlier, train = claimed_config(workdir).train, recipe.config.train
  before, now = earlier.total_steps(recipe.steps_per_epoch), recipe.total_steps
  if now < first:
    length = f"train.steps={now}" if train.steps else f"train.epochs={train.epochs}"
    raise InputError(
      f"{length}: the run in workdir={workdir} has made {first:,} updates already; a run can be "
      "made longer, but not shorter than it is"
    )
  if (earlier.steps, earlier.epochs) == (train.steps, train.epochs):
    return
  replace_config(workdir, recipe.config, {"at_step": first, "total_steps": [before, now]})
  # Schedules such as cosine depend on the length, so the rate may jump where the run continues.
  was, rate = (float(recipe.optimizer(length).schedule(first)) for length in (before, now))
  schedule = "which does not change the learning rate at this step"
  if was != rate:
    schedule = f"and the learning rate follows their schedule: {rate:.3g} here, not {was:.3g}"
  log(f"length  from step {first:,} on {now:,} steps instead of {before:,}, {schedule}")
