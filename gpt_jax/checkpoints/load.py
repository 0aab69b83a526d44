"""Loading a trained model: parameters, config, tokenizer and task, from a run or another format."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from gpt_jax.checkpoints import store
from gpt_jax.checkpoints.embedding import Embedding
from gpt_jax.checkpoints.formats import detect_format, find_format
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.config import from_json
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import absolute, check_path, exists, local_copy
from gpt_jax.models.model import Model, ModelConfig, generator, language_model
from gpt_jax.models.predictor import make_predictor
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import replicate
from gpt_jax.tasks.encoding import Encoded
from gpt_jax.tasks.formats import Format
from gpt_jax.tasks.task import LabeledTask, Task
from gpt_jax.tasks.text_to_text import TextTask, TextToText, as_text

TFIDF_FILE = "classifier.npz"  # of what is no neural network; see inference/tfidf_classifier.py
_EXPORTS = ("config.json", "params_shapes.json")  # one of them is in a folder of each format


@dataclasses.dataclass(frozen=True)
class LoadedModel:
  """A trained model.

  Attributes:
    spec: config of the model.
    params: float32 NumPy arrays, `{trunk}` or `{trunk, head}`.
    tokenizer: the tokenizer it was trained with.
    meta: JSON saved with the parameters: `model`, `config`, `tokenizer_hash`, `sequence_format`,
      `task` if it was fine-tuned, `embedding` if it was imported with one.
    step: number of updates made.
    path: the path given to `load_model`.
    folder: the folder of the run, or of the export.
  """

  spec: ModelConfig
  params: Any = dataclasses.field(repr=False)
  tokenizer: Tokenizer
  meta: dict = dataclasses.field(repr=False)
  step: int
  path: str
  folder: str = ""

  @property
  def identity(self) -> str:
    """Identifies the parameters of the trunk."""
    return f"step {self.step}, checksum {checksum(self.params['trunk'])}"

  @property
  def model(self) -> Model:
    return self.spec.build()

  @functools.cached_property
  def task(self) -> Any:
    """The LabeledTask it was fine-tuned on, or its TextTask; None if it was not fine-tuned."""
    if "task" not in self.meta:
      return None
    task = _from_json(self.meta["task"], self.path).build("")
    return as_text(task) if self.is_text_to_text else task

  @functools.cached_property
  def format(self) -> Format:
    """How labeled examples are written for it; a checkpoint that names none has its trunk's."""
    return _from_json(self.meta.get("sequence_format", self.spec.trunk.format), self.path)

  @functools.cached_property
  def embedding(self) -> Embedding:
    """How it turns a text into a vector, where no contrastive head says it."""
    tree = self.meta.get("embedding")
    return Embedding() if tree is None else _from_json(tree, self.path)

  @property
  def without_task(self) -> str:
    """Says in messages why it gives no labels, e.g. "a language model without a head"."""
    kind = self.spec.kind
    article = "an" if kind[0] == "e" else "a"
    return f"{article} {kind} without a {'task' if self.spec.head else 'head'}"

  @property
  def is_text_to_text(self) -> bool:
    """Whether it reads a text, and then writes another up to its end."""
    return isinstance(self.format, TextToText)

  def encode(self, task: LabeledTask, examples: list[Any]) -> Encoded:
    """Examples of a task as the model reads them."""
    return task.encode(examples, self.tokenizer, self.spec.trunk.context, self.format)

  def label_task(self) -> Task | None:
    """The task as one that gives each example one label; None if there is none.

    Raises:
      InputError: the task labels every word, or the model writes its labels.
    """
    task = self.task
    if task is None or isinstance(task, Task):
      return task
    self.check_head()
    raise InputError(f"{self.path}: {task.name} labels every word; use launch/predict.py")

  def check_head(self) -> None:
    """Raises InputError if the model has no head that gives labels, since it writes them."""
    if isinstance(self.task, TextTask):
      raise InputError(
        f"{self.path}: writes its labels as text; launch/predict.py asks for them, "
        "launch/evaluate.py scores them"
      )

  @property
  def config(self) -> Any:
    """The config of the run that trained the model; None for released or foreign weights."""
    return _from_json(self.meta["config"], self.path) if "config" in self.meta else None

  def language_model(self) -> Model:
    """The trunk as a model that generates or scores text from left to right.

    Raises:
      InputError: the model is not causal; it has seen the tokens that it would predict. Or it
        reads a source.
    """
    try:
      return language_model(self.spec.trunk, self.spec.attention)
    except InputError as error:
      raise InputError(f"{self.path}: {error}") from error

  def generator(self) -> Model:
    """The trunk as a model that continues a prompt, which under prefix attention is the prefix, or
    that writes for a source.

    Raises:
      InputError: the model has bidirectional attention.
    """
    try:
      return generator(self.spec)
    except InputError as error:
      raise InputError(f"{self.path}: {error}") from error

  def predictor(self) -> Callable[..., Any]:
    """predict(examples, batch_size, …) -> predictions, on all devices; see make_predictor.

    Keep it: every predictor compiles anew, and has its own copy of the parameters.

    Raises:
      InputError: the model was not fine-tuned, or writes its labels.
    """
    if self.task is None:
      raise InputError(f"{self.path}: {self.without_task}; fine-tune it first")
    self.check_head()
    mesh = make_mesh(MeshConfig())
    return functools.partial(make_predictor(self.model, mesh), replicate(self.params, mesh))


def load_model(path: str, format: str = "") -> LoadedModel:
  """Reads and verifies a trained model.

  Args:
    path: a workdir (its newest checkpoint), `<workdir>/best`, `<workdir>/checkpoints/<step>`, or a
      model in one of formats/: an export, OpenAI's release, a transformers folder.
    format: the only format to accept; "" detects it.

  Raises:
    InputError: no model, a damaged one, or one with another tokenizer.
  """
  check_path(path)
  with local_copy(path) if _is_export(path) else contextlib.nullcontext(path) as copy:
    reader = find_format(format) if format else detect_format(copy)
    if reader:
      params, meta, step, tokenizer = reader.load(copy)
      folder = path
  if not reader:
    if exists(os.path.join(path.removesuffix("/best"), TFIDF_FILE)):
      raise InputError(
        f"{path}: a TF-IDF classifier of launch/label.py; only launch/predict.py reads it"
      )
    params, meta, step = store.restore_params(path)
    folder = _find_workdir(path)
    tokenizer = load_tokenizer(os.path.join(folder, "tokenizer"))
  if tokenizer.hash != meta["tokenizer_hash"]:
    raise InputError(
      f"{path}: a checkpoint whose vocabulary is not the tokenizer's: it was trained with "
      f"{tokenizer.difference(meta['tokenizer_hash'])}; put its own tokenizer into "
      f"{folder}/tokenizer"
    )
  return LoadedModel(_from_json(meta["model"], path), params, tokenizer, meta, step, path, folder)


def _is_export(folder: str) -> bool:
  """Whether a folder holds a model of formats/ that is one folder, and no run."""
  if exists(os.path.join(folder, "checkpoints")):
    return False
  return any(exists(os.path.join(folder, name)) for name in _EXPORTS)


def _from_json(tree: Any, path: str) -> Any:
  try:
    return from_json(tree)
  except InputError as error:
    raise InputError(f"{path}: {error}") from error


def _find_workdir(path: str) -> str:
  """The run folder of a checkpoint."""
  folder = absolute(path)
  for _ in range(3):  # <workdir>/checkpoints/<step> is the deepest path
    if exists(os.path.join(folder, "config.json")):
      return folder
    folder = os.path.dirname(folder)
  raise InputError(
    f"{path}: not inside the folder of a run, which has config.json and tokenizer/; give it there"
  )
