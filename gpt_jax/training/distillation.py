"""Knowledge distillation: a classifier of few blocks, the student, learns from a larger one of the
same task, the teacher (Hinton et al. 2015, section 2; DistilBERT, Sanh et al. 2019, section 2).

Parameters are `{trunk, head}`, the student's, and `{base}`, the teacher's, which no step changes.
Letters: N examples, K classes, B rows, T positions, D width.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean, given
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.config import option, register, to_json
from gpt_jax.errors import InputError, counted
from gpt_jax.models.loss import Denominators
from gpt_jax.models.method import Method
from gpt_jax.models.model import Model, ModelConfig
from gpt_jax.models.trunk import BASE
from gpt_jax.ops.dropout import Key


@register("distill")
@dataclasses.dataclass(frozen=True)
class Distillation(Method):
  """The size of a student, and the weights of what it learns from."""

  layers: int = option(0, "blocks of the student; 0: half of the teacher's", low=0, high=1000)
  temperature: float = option(
    2.0, "T, by which the scores of both are divided before the softmax", low=0.1, high=100.0
  )
  labels: float = option(
    0.5,
    "share of the cross-entropy with labels; the rest learns from probabilities",
    low=0.0,
    high=1.0,
  )
  hidden: float = option(1.0, "weight of the distance between hidden states", low=0.0, high=1e4)

  slot = "distill"
  learns_unlabeled = True
  reads_checkpoint = "a teacher, a fine-tuned classifier"

  def change_start(self, start: Any, loaded: Any, config: Any) -> Any:
    """The start of a student; `loaded` is the teacher, a classifier."""
    _check_options(config)
    head = _head_of_teacher(start, loaded)
    params = {"trunk": start.params["trunk"], head.scope: loaded.params[head.scope]}
    spec = dataclasses.replace(loaded.spec, trunk=start.trunk, heads=(head,))
    trunk, first = self.student(start.trunk, params)
    return dataclasses.replace(
      start,
      trunk=trunk,
      params=first,
      identity=f"step {loaded.step}, checksum {checksum(params)}",
      teacher=dataclasses.replace(loaded, spec=spec, params=params),
    )

  def change_head(self, head: dict[str, Any], start: Any) -> dict[str, Any]:
    # A student's head is the teacher's, with the settings of this run.
    of_run = {"class_weights": [], "label_smoothing": 0.0, **head}
    names = ("dropout", "class_weights", "label_smoothing")
    return to_json(start.teacher.spec.head) | {name: of_run[name] for name in names}

  def check(self, config: Any, task: Any, start: Any) -> None:
    theirs = start.teacher.task.labels
    if list(theirs) != list(task.labels):
      raise InputError(
        f"checkpoint={start.checkpoint}: the teacher's labels are {', '.join(theirs)}; those of "
        f"{task.name} are {', '.join(task.labels)}"
      )

  def recipe(self, recipe: Any, start: Any) -> Any:
    def apply(state: Any, trainer: Any) -> Any:
      if state.base is not None:  # a state from a checkpoint has none, and has been trained
        state = start.apply(state, trainer, recipe.config.transfer_layers)
      return state._replace(base=jax.device_put(start.teacher.params, trainer.shardings.base))

    return dataclasses.replace(
      recipe,
      adapted=lambda model: TaughtModel(model, start.teacher.spec.build()),
      loss=lambda model: DistillationLoss(self, model),
      work=self.work(start.teacher.spec, recipe.spec),
      start=apply,
      inference_params=lambda params: {name: x for name, x in params.items() if name != BASE},
      meta={**recipe.meta, "teacher": start.as_json},
    )

  def student(self, trunk: Any, params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The student's trunk and first parameters: the teacher's, with the blocks of taught_layers
    alone (DistilBERT, section 3).
    """
    if "blocks" not in trunk.gives or trunk.shared_layers:
      raise InputError("distill: takes blocks of a transformer, of which each has its parameters")
    layers = self.layers or max(1, trunk.layers // 2)
    if layers > trunk.layers:
      blocks = counted(trunk.layers, "block")
      raise InputError(f"distill.layers={layers}: the teacher has {blocks}; choose no more")
    kept = {name: x for name, x in params["trunk"].items() if not name.startswith("block_")}
    for number, layer in enumerate(taught_layers(trunk.layers, layers)):
      kept[f"block_{number}"] = params["trunk"][f"block_{layer - 1}"]
    return dataclasses.replace(trunk, layers=layers), {**params, "trunk": kept}

  def work(self, teacher: ModelConfig, student: ModelConfig) -> float:
    """Arithmetic of a step, the teacher's forward pass included, as a multiple of the student's."""
    length = student.trunk.context
    # Forward is a third of forward and backward.
    forward = teacher.trunk.flops_per_token(length) / 3
    return 1 + forward / student.trunk.flops_per_token(length)


def _head_of_teacher(start: Any, loaded: Any) -> Any:
  """The head of a classifier that can teach. Raises InputError for any other model."""
  head, task = loaded.spec.head, loaded.task
  kind = "" if head is None or task is None else to_json(head)["type"]
  if kind == "windowed" or kind == "classify" and start.format != loaded.format:
    raise InputError(
      f"checkpoint={loaded.path}: the teacher reads windows or bare texts, the student would not; "
      "fine-tune a teacher without windows by finetune.run"
    )
  if kind != "classify":
    model = loaded.without_task
    if task is not None:
      model = f"a model of {task.name}{' that writes its labels' if task.writes_text else ''}"
    raise InputError(
      f"checkpoint={loaded.path}: the teacher must be fine-tuned to give each example one label; "
      f"this is {model}"
    )
  return head


def _check_options(config: Any) -> None:
  """Raises InputError for options that do not go with distillation."""
  # The student's head is the teacher's, and its trunk trains whole.
  beside = ("distill", "unfreeze", "unlabeled")
  others = [method.slot for method in config.methods if method.slot not in beside]
  set_options = [name for name in ("pooling", "head_units") if vars(config)[name]]
  for name in [*others, *set_options]:
    raise InputError(f"{name}: does not go with distill, whose student is made of the teacher")
  if config.lm_weight:
    raise InputError(
      f"lm_weight={config.lm_weight}: distill has no auxiliary loss; set lm_weight=0"
    )
  if config.mesh.model > 1 or config.mesh.backend != "jit":
    raise InputError("distill: needs mesh.model=1 and mesh.backend=jit")
  if config.task.has_folds and config.task.folds:
    raise InputError("folds: the teacher has read the rows that a fold holds out; leave it out")


def taught_layers(teacher: int, student: int) -> list[int]:
  """The teacher's layer, from 1 on, that each of the student's begins as and learns from: evenly
  spaced, the last from the last (g(m) of TinyBERT, Jiao et al. 2020, section 3.1).
  """
  return [(layer + 1) * teacher // student for layer in range(student)]


class TaughtModel:
  """A student beside its teacher; has of Model what a training step needs."""

  def __init__(self, student: Model, teacher: Model):
    self.student, self.teacher = student, teacher

  def init(self, key: jax.Array, example: Any) -> dict[str, Any]:
    """The first parameters; those of the base are to be replaced."""
    params = self.student.init(key, example)["params"]
    shapes = jax.eval_shape(self.teacher.init, key, example)["params"]
    base = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return {"params": {**params, BASE: base}}


class DistillationLoss:
  """The sum of three means; see Loss. The teacher has neither dropout nor gradient.

  Of labels the cross-entropy over the examples that have one, times its share; of probabilities
  T^2 KL(teacher || student) over all examples, times the rest; of hidden states 1 - cosine over all
  tokens, in the mean of the student's layers. T^2 keeps the size of the gradient (Hinton et al.).
  """

  def __init__(self, config: Distillation, model: TaughtModel):
    self._config, self._model = config, model
    (self._head,) = model.student.config.heads
    sizes = model.teacher.config.trunk.layers, model.student.config.trunk.layers
    self._layers = taught_layers(*sizes)

  def denominators(self, batch: Batch) -> Denominators:
    return {
      "labels": self._head.denominator(batch),
      # Training batches are never padded with empty examples.
      "teacher": jnp.float32(len(given(batch.labels).anchors)),
      "hidden": jnp.float32(batch.rows.is_token.sum()),
    }

  def __call__(
    self, params: Any, batch: Batch, key: Key | None, denominators: Denominators | None = None
  ) -> tuple[jax.Array, dict[str, Mean]]:
    c, own = self._config, self.denominators(batch)
    denominators = own if denominators is None else denominators  # given: of the whole batch
    students = dict(params)
    fixed = jax.lax.stop_gradient(students.pop(BASE))
    teacher: Any = self._model.teacher.apply({"params": fixed}, batch, None, layers=True)
    student: Any = self._model.student.apply({"params": students}, batch, key, layers=True)
    with jax.named_scope("loss"):
      (scores,), num_tokens = student.heads, self._model.student.num_tokens
      of_labels = self._head.loss(scores, student.states, batch, num_tokens).total
      of_teacher = _divergence(teacher.heads[0], scores, c.temperature)
      distances = [
        _distance(teacher.states.layers[layer], student.states.layers[number + 1])
        for number, layer in enumerate(self._layers)
      ]
      of_hidden = (sum(distances) * batch.rows.is_token).sum() / len(distances)
    sums = {"labels": of_labels, "teacher": of_teacher, "hidden": of_hidden}
    weights = {"labels": c.labels, "teacher": 1 - c.labels, "hidden": c.hidden}
    total = jnp.float32(0)
    for name, weight in weights.items():
      denominator = denominators[name]
      # A batch may have no label at all.
      total = total + weight * sums[name] / jnp.where(denominator > 0, denominator, 1)
    metrics = {
      # Scaled so that the parts of a batch add up to the total.
      "loss": Mean(total * denominators["teacher"], own["teacher"]),
      self._head.metric: Mean(of_labels, own["labels"]),
      "teacher_loss": Mean(of_teacher, own["teacher"]),
      "hidden_loss": Mean(of_hidden, own["hidden"]),
    }
    return total, metrics


def _divergence(teacher: jax.Array, student: jax.Array, temperature: float) -> jax.Array:
  """T^2 KL(teacher || student), summed over examples, of scores [N, K]."""
  wanted = jax.nn.log_softmax(teacher / temperature)
  difference = wanted - jax.nn.log_softmax(student / temperature)
  return temperature**2 * (jnp.exp(wanted) * difference).sum()


def _distance(teacher: jax.Array, student: jax.Array) -> jax.Array:
  """1 - cosine, [B, T], of hidden states [B, T, D]: half the squared distance of PKD between
  normalized states (Sun et al. 2019, equation 7), at every token.
  """
  x, y = teacher.astype(jnp.float32), student.astype(jnp.float32)
  squares = (x * x).sum(-1) * (y * y).sum(-1)
  return 1 - (x * y).sum(-1) * jax.lax.rsqrt(squares + 1e-12)
