"""Start of a distillation: a fine-tuned classifier as the teacher, and the student made of it."""

import dataclasses
from typing import Any

import jax

from gpt_jax.checkpoints.load import LoadedModel
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.errors import InputError, counted
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.programs.start import Start
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.training.distillation import first_student, taught_layers
from gpt_jax.training.step import TrainState
from gpt_jax.training.trainer import Trainer

# The student's head is the teacher's, and its trunk trains whole.
_WITHOUT_USE = ("adapter", "adversarial", "mix", "windows", "pooling", "head_units")


def student_start(config: FinetuneConfig, start: Start, loaded: LoadedModel) -> Start:
  """The start of a student.

  Args:
    config: of the run.
    start: as if the teacher was fine-tuned further.
    loaded: the teacher.

  Raises:
    InputError: it is no classifier that can teach, or options that do not go with distillation.
  """
  check_options(config)
  path, head = loaded.path, loaded.spec.head
  trunk: Any = start.trunk
  distill: Any = config.distill
  if loaded.task is None or not isinstance(head, ClassifyHead):
    raise InputError(
      f"checkpoint={path}: the teacher must be fine-tuned to give each example one label; this is "
      f"{loaded.without_task if loaded.task is None else f'a model of {loaded.task.name}'}"
    )
  if not trunk.is_transformer or trunk.shared_layers:
    raise InputError(
      f"checkpoint={path}: distillation takes blocks of the teacher, and needs a transformer whose "
      "blocks have parameters of their own"
    )
  if start.format != loaded.format:
    raise InputError(
      f"checkpoint={path}: the teacher reads windows or bare texts, the student would not; "
      "fine-tune a teacher without windows by launch/finetune.py"
    )
  layers = distill.layers or max(1, trunk.layers // 2)
  if layers > trunk.layers:
    raise InputError(
      f"distill.layers={layers}: the teacher has {counted(trunk.layers, 'block')}; a student has "
      "at most as many"
    )
  teacher = {"trunk": start.params["trunk"], head.scope: loaded.params[head.scope]}
  return dataclasses.replace(
    start,
    trunk=dataclasses.replace(trunk, layers=layers),
    params=first_student(teacher, taught_layers(trunk.layers, layers)),
    identity=f"step {loaded.step}, checksum {checksum(teacher)}",
    teacher=dataclasses.replace(
      loaded, spec=ModelConfig(trunk, (head,), start.attention), params=teacher
    ),
  )


def check_options(config: FinetuneConfig) -> None:
  """Raises InputError for options that do not go with distillation."""
  for name in _WITHOUT_USE:
    if getattr(config, name) != getattr(FinetuneConfig, name):
      raise InputError(f"{name}: does not go with distill, whose student is made of the teacher")
  if config.lm_weight:
    raise InputError(
      f"lm_weight={config.lm_weight}: distill has no auxiliary loss; set lm_weight=0"
    )
  if config.mesh.model > 1 or config.mesh.backend != "jit":
    raise InputError("distill: needs mesh.model=1 and mesh.backend=jit")
  if getattr(config.task, "folds", 1) > 1:
    raise InputError("--folds: the teacher has read the rows that a fold holds out; leave it out")


def check_teacher(start: Start, task: LabeledTask) -> None:
  """Raises InputError if the teacher gives other labels than the task has."""
  if start.teacher is None:
    return
  theirs = list(start.teacher.task.labels)
  if theirs != list(task.labels):
    raise InputError(
      f"checkpoint={start.checkpoint}: the teacher's labels are {', '.join(theirs)}; those of "
      f"{task.name} are {', '.join(task.labels)}"
    )


def apply_teacher(
  start: Start, layers: int | None, state: TrainState, trainer: Trainer
) -> TrainState:
  """The state with the teacher as its base; a new one begins with the student's first parameters.

  Args:
    layers: see Start.apply.
  """
  if state.base is not None:  # a state from a checkpoint has none, and has been trained
    state = start.apply(state, trainer, layers)
  base: Any = jax.device_put(start.teacher.params, trainer.shardings.base)
  return state._replace(base=base)
