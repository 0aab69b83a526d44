"""Start of a distillation: a fine-tuned classifier as the teacher, and the student made of it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.start import Start

# The student's head is the teacher's, and its trunk trains whole.
_WITHOUT_USE = ("adapter", "adversarial", "mix", "windows", "pooling", "head_units")


def student_start(config: FinetuneConfig, start: Start, loaded: Any) -> Start:
  """The start of a student.

  Args:
    config: of the run.
    start: as if the teacher was fine-tuned further.
    loaded: the teacher, a LoadedModel.

  Raises:
    InputError: it is no classifier that can teach, or options that do not go with distillation.
  """
  _check_options(config)
  head, task, distill = loaded.spec.head, loaded.task, config.distill
  kind = "" if head is None or task is None else to_json(head)["type"]
  if kind == "windowed" or kind == "classify" and start.format != loaded.format:
    raise InputError(
      f"checkpoint={loaded.path}: the teacher reads windows or bare texts, the student would not; "
      "fine-tune a teacher without windows by launch/finetune.py"
    )
  if kind != "classify":
    model = loaded.without_task
    if task is not None:
      model = f"a model of {task.name}{' that writes its labels' if task.writes_text else ''}"
    raise InputError(
      f"checkpoint={loaded.path}: the teacher must be fine-tuned to give each example one label; "
      f"this is {model}"
    )
  assert distill is not None
  params = {"trunk": start.params["trunk"], head.scope: loaded.params[head.scope]}
  spec = dataclasses.replace(loaded.spec, trunk=start.trunk, heads=(head,))
  trunk, first = distill.student(start.trunk, params)
  return dataclasses.replace(
    start,
    trunk=trunk,
    params=first,
    identity=f"step {loaded.step}, checksum {checksum(params)}",
    teacher=dataclasses.replace(loaded, spec=spec, params=params),
  )


def _check_options(config: FinetuneConfig) -> None:
  """Raises InputError for options that do not go with distillation."""
  usual = vars(FinetuneConfig())
  for name in _WITHOUT_USE:
    if vars(config)[name] != usual[name]:
      raise InputError(f"{name}: does not go with distill, whose student is made of the teacher")
  if config.lm_weight:
    raise InputError(
      f"lm_weight={config.lm_weight}: distill has no auxiliary loss; set lm_weight=0"
    )
  if config.mesh.model > 1 or config.mesh.backend != "jit":
    raise InputError("distill: needs mesh.model=1 and mesh.backend=jit")
  if config.task.has_folds and config.task.folds:
    raise InputError("--folds: the teacher has read the rows that a fold holds out; leave it out")


def check_teacher(start: Start, name: str, labels: Sequence[str]) -> None:
  """Raises InputError if a teacher has other labels than the task of this name."""
  if start.teacher is None:
    return
  theirs = start.teacher.task.labels
  if list(theirs) != list(labels):
    raise InputError(
      f"checkpoint={start.checkpoint}: the teacher's labels are {', '.join(theirs)}; those of "
      f"{name} are {', '.join(labels)}"
    )


def apply_teacher(start: Start, layers: int | None, state: Any, trainer: Any) -> Any:
  """The state with the teacher as its base; a new one begins with the student's first parameters.

  Args:
    layers: see Start.apply.
    state, trainer: see there.
  """
  if state.base is not None:  # a state from a checkpoint has none, and has been trained
    state = start.apply(state, trainer, layers)
  base = jax.device_put(start.teacher.params, trainer.shardings.base)
  return state._replace(base=base)
