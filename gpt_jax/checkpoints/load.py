"""Loading a trained model with its task and what it can do: label, generate, embed."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax.checkpoints.formats import accept
from gpt_jax.checkpoints.saved import Embedding, SavedModel, no_network, read_json, read_model
from gpt_jax.errors import InputError, about
from gpt_jax.models.adapter import BASE, AdaptedModel, Adapter, with_rows
from gpt_jax.models.decoding_weights import check_kind, keep_classifier_weights
from gpt_jax.models.model import Model, ModelConfig, generator, language_model, parameter_shapes
from gpt_jax.models.predictor import make_predictor
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import replicate
from gpt_jax.tasks.answers.answer import LabeledTask
from gpt_jax.tasks.answers.text import as_text
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.task import Task


class AnyModel:
  """A trained model: a network (LoadedModel) or a TF-IDF classifier (TfidfClassifier).

  Both label texts. To generate, embed or train use `network`, which raises InputError for TF-IDF.
  load_any in inference/linear_classifier.py loads either.
  """

  path: str
  folder: str  # of the run, or of the export
  step: int
  meta: dict
  params: Any
  task: Any  # see LoadedModel
  without_task: str = ""  # see LoadedModel
  tokenizer: Any = None
  size: str  # for messages
  context: int | None = None  # the longest text in tokens; None: any
  alike: tuple[Any, ...] = ()  # models with equal keys can share encoded examples
  exports: tuple[str, ...] = ()  # the formats that can hold it; (): each format says
  encode: Callable[[LabeledTask, list[Any]], Encoded]  # see LoadedModel, as for what follows
  predictor: Callable[[], Callable[..., Any]]
  with_classes: Callable[[np.ndarray], Any]

  @property
  def network(self) -> "LoadedModel":
    """The model itself. Raises InputError where it is no network."""
    raise no_network(self.path)

  @property
  def identity(self) -> str:
    """Identifies the parameters."""
    raise NotImplementedError

  def on_device(self) -> Any:
    """The model with its parameters on the device."""
    return self

  def check_task(self) -> None:
    """Raises InputError unless it was fine-tuned."""
    if self.task is None:
      raise InputError(f"{self.path}: {self.without_task}; fine-tune it first")

  def label_task(self) -> Task:
    """The task, which gives each example one label. Raises InputError where there is no such."""
    self.check_task()
    if self.task.not_per_text:
      raise InputError(f"{self.path}: {self.task.name} {self.task.not_per_text}")
    return self.task

  def with_weights(self, kind: str) -> Any:
    """The model with its products' weights as one of decoding_weights.KINDS, for `predictor`."""
    check_kind(kind)
    if kind != "float32":
      raise InputError(f"weights={kind}: {self.path} has no such weights; leave it out")
    return self


@dataclasses.dataclass(frozen=True)
class LoadedModel(SavedModel, AnyModel):
  """A trained network, with the task it was fine-tuned on; see SavedModel for its fields."""

  @property
  def network(self) -> "LoadedModel":
    return self

  @property
  def model(self) -> Model:
    return self.spec.build()

  @functools.cached_property
  def task(self) -> Any:
    """The LabeledTask it was fine-tuned on, or its TextTask; None if it was not fine-tuned."""
    if "task" not in self.meta:
      return None
    # The labels are in the config: a task is rebuilt without its files.
    task = read_json(self.meta["task"], self.path).build("")
    if len(task.parts) > 1:
      name = task.parts[0].name
      raise InputError(
        f"{self.path}: a model of the tasks {task.name}; use that of one of them, which is in the "
        f"run's folder, as tasks/{name}"
      )
    return as_text(task) if self.is_text_to_text else task

  @functools.cached_property
  def embedding(self) -> Embedding:
    """How it turns a text into a vector, where no contrastive head says it."""
    tree = self.meta.get("embedding")
    return Embedding() if tree is None else read_json(tree, self.path)

  @property
  def ends(self) -> tuple[int, ...]:
    """The tokens that end a text: those that a folder of others names, or the tokenizer's."""
    end = self.tokenizer.end_id
    return tuple(self.meta.get("end_ids", () if end is None else (end,)))

  @property
  def without_task(self) -> str:  # type: ignore[override]
    """Says in messages why it gives no labels, e.g. "a language model without a head"."""
    kind = self.spec.kind
    article = "an" if kind[0] == "e" else "a"
    return f"{article} {kind} without a {'task' if self.spec.head else 'head'}"

  @property
  def is_text_to_text(self) -> bool:
    """Whether it reads a text, and then writes another up to its end."""
    return self.format.writes_answers

  @functools.cached_property
  def size(self) -> str:  # type: ignore[override]
    count = self.spec.trunk.parameter_count()
    return f"step {self.step:,}, {count:,} parameters, context {self.context}"

  @functools.cached_property
  def context(self) -> int:  # type: ignore[override]
    return self.spec.trunk.context

  @functools.cached_property
  def alike(self) -> tuple[Any, ...]:  # type: ignore[override]
    return self.tokenizer.hash, self.tokenizer.special, self.context, self.format

  def encode(self, task: LabeledTask, examples: list[Any]) -> Encoded:
    """Examples of a task as the model reads them."""
    return task.encode(examples, self.tokenizer, self.context, self.format)

  def check_head(self) -> None:
    """Raises InputError unless the model has a head that gives labels."""
    self.check_task()
    if self.task.writes_text:
      raise InputError(f"{self.path}: {self.task.not_per_text}")

  def language_model(self) -> Model:
    """The trunk as a model that generates or scores text from left to right."""
    with about(self.path):
      return language_model(self.spec.trunk, self.spec.attention)

  def generator(self) -> Model:
    """The trunk as a model that continues a prompt, which under prefix attention is the prefix, or
    writes for a source.
    """
    with about(self.path):
      return generator(self.spec)

  def masked_head(self) -> Any:
    """The head that predicts the tokens at masks."""
    for head in self.spec.heads:
      if head.scope == "masked":
        return head
    raise InputError(
      f"{self.path}: has no masked-LM head, which predicts the tokens at [MASK]; use the "
      "checkpoint of a masked language model"
    )

  def check_scores(self) -> None:
    """Raises InputError unless it gives the tokens of a text a probability."""
    if self.spec.attention == "bidirectional":
      self.masked_head()
    else:
      self.language_model()

  def encoder_alone(self) -> "LoadedModel":
    """The encoder of an encoder-decoder as a bidirectional model; any other model as it is."""
    if self.spec.kind != "encoder-decoder":
      return self
    trunk = dataclasses.replace(self.spec.trunk, decoder=False)
    spec = ModelConfig(trunk, (), "bidirectional")
    # What both have below `trunk/`: the table and the encoder, without the decoder.
    names = {name.split("/")[1] for name in parameter_shapes(spec)}
    params = {"trunk": {name: self.params["trunk"][name] for name in names}}
    return dataclasses.replace(self, spec=spec, params=params)

  def params_with_rows(self, rows: int) -> dict[str, Any]:
    """The parameters with so many rows in the trunk's tables; new ones are zeros."""
    return {**self.params, "trunk": with_rows(self.params["trunk"], rows)}

  def with_weights(self, kind: str) -> "LoadedModel":
    check_kind(kind)
    if kind == "float32":
      return self
    self.check_task()
    if self.task.writes_text:
      raise InputError(
        f"weights={kind}: is for classifiers; {self.path} writes its answers, so leave weights out"
      )
    params = keep_classifier_weights(self.model, self.params, kind)
    return dataclasses.replace(self, params=params)

  def with_classes(self, order: np.ndarray) -> "LoadedModel":
    """The model whose output i is the output order[i] of this one."""
    head = self.spec.head
    params = head.with_classes(self.params[head.scope], order)
    return dataclasses.replace(self, params={**self.params, head.scope: params})

  def on_device(self) -> "LoadedModel":
    return dataclasses.replace(self, params=jax.device_put(self.params))

  def predictor(self) -> Callable[..., Any]:
    """predict(examples, batch_size, …) -> predictions, on all devices; see make_predictor.

    Keep it: every predictor has its own copy of the parameters.
    """
    self.check_head()
    mesh = make_mesh(MeshConfig())  # all devices, data parallel
    # The parameters are sent to the devices once, not at each call.
    return functools.partial(make_predictor(self.model, mesh), replicate(self.params, mesh))


def load_model(
  path: str, format: str = "", check: Callable[[LoadedModel], object] = accept
) -> LoadedModel:
  """Reads and verifies a trained model; arguments and errors are those of read_model.

  check: raises InputError for a model that is of no use to the caller, before its weights are read:
    it gets the model without parameters and tokenizer.
  """

  def check_meta(meta: dict) -> None:
    bare: Any = None
    check(LoadedModel(read_json(meta["model"], path), bare, bare, meta, 0, path))

  # LoadedModel only adds methods to the fields of a SavedModel.
  return LoadedModel(**vars(read_model(path, format, check=check_meta)))


@dataclasses.dataclass(frozen=True)
class LoadedAdapter(LoadedModel):
  """A classifier as adapter and base, which are added up in each product and never merged."""

  @property
  def model(self) -> Any:
    return _adapted(self.spec, read_json(self.meta["adapter"]["config"], self.path))


@functools.lru_cache(32)  # adapters of one shape share what is compiled for a model
def _adapted(spec: ModelConfig, adapter: Adapter) -> Any:
  return AdaptedModel(spec.build(), adapter)


def load_unmerged(path: str) -> LoadedAdapter:
  """Loads an adapter beside its base; arguments and errors are those of read_model."""
  return LoadedAdapter(**vars(read_model(path, merges=False)))


def load_adapters(base: LoadedModel, adapters: Sequence[str]) -> dict[str, LoadedAdapter]:
  """Loads several adapters of one base, whose parameters the devices hold once.

  adapters: "NAME=DIR" of each, where DIR is a path as of load_model.
  """
  loaded: dict[str, LoadedAdapter] = {}
  trunks: dict[int, Any] = {}  # with so many rows for special tokens, on all devices
  paths: dict[str, str] = {}
  for entry in adapters:
    name, _, path = entry.partition("=")
    if not name or not path or name in paths or os.path.basename(name) != name:
      raise InputError(
        f"adapter={entry}: must be NAME=DIR, with another name for each, which is no path"
      )
    paths[name] = path
  for name, path in paths.items():
    saved = read_model(path, base=base, merges=False)
    # Those whose tasks have the same special tokens share all of the base, others all but tables.
    rows = saved.spec.trunk.rows
    if rows not in trunks:
      trunks[rows] = replicate(saved.params[BASE], make_mesh(MeshConfig()))
    params = {**saved.params, BASE: trunks[rows]}
    model = LoadedAdapter(**{**vars(saved), "params": params})
    if model.is_text_to_text:
      raise InputError(f"adapter={name}={path}: it writes its answers; load it alone")
    loaded[name] = model
  return loaded
