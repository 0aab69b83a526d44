"""The config of a pre-training run."""

import dataclasses
from typing import Any

from gpt_jax.config import from_json, option, register
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.model import ModelConfig, make_heads
from gpt_jax.parallel.mesh import MeshConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig
from gpt_jax.training.recipe import RunConfig

PAPER_VOCABULARY = 40_478  # tokens, where there is no text yet


@register("pretrain")
@dataclasses.dataclass(frozen=True)
class PretrainConfig(RunConfig):
  """A pre-training run; the defaults are the paper's (section 4.1)."""

  trunk: Any = option(
    from_json({"type": "transformer"}),
    "the model below the head: TransformerConfig, T5Config, LSTMConfig or LSTMStackConfig",
  )
  objective: Any = option(from_json({"type": "causal"}), "what is predicted")
  data: WindowsConfig = option(WindowsConfig(), "how text becomes batches")
  optim: OptimConfig = option(OptimConfig(), "optimizer and schedule")
  mesh: MeshConfig = option(MeshConfig(), "how devices are used", resumable=True)
  train: TrainConfig = option(TrainConfig(epochs=100), "length of the run, logs and checkpoints")
  evaluation_batches: int = option(0, "batches of held-out text per evaluation; 0: all", low=0)
  layer_decay = 1.0  # an option of a LayerwiseConfig

  def __post_init__(self):
    super().__post_init__()
    if self.data.length > self.trunk.context:
      raise InputError(
        f"data.length={self.data.length}: must not exceed trunk.context={self.trunk.context}"
      )
    if (given := self.objective.gives_source) != self.trunk.reads_source:
      needs = "needs an encoder-decoder" if given else "has nothing for an encoder to read"
      raise InputError(
        f"objective: {type(self.objective).__name__} as configured {needs}; the trunk is a "
        f"{type(self.trunk).__name__}"
      )


def model_spec(config: PretrainConfig) -> ModelConfig:
  """The model of a run whose trunk has its vocabulary."""
  return ModelConfig(config.trunk, make_heads(config.objective.heads), config.objective.attention)


def config_of(loaded: Any) -> Any:
  """The config of the run that trained a LoadedModel; of weights from elsewhere, one with its sizes
  and the objective of its attention and heads.
  """
  if loaded.config is not None:
    return loaded.config
  spec = loaded.spec
  if spec.kind == "encoder-decoder":
    objective = {"type": "span_corruption", "layout": "encoder_decoder"}
  elif spec.attention == "prefix":
    objective = {"type": "prefix_lm"}
  elif spec.attention == "causal":
    objective = {"type": "causal"}
  elif any(head.scope == "sentence_pair" for head in spec.heads):
    # Next sentence and sentence order have the same head: the trunk tells whose it is.
    second = "swapped" if spec.trunk.shared_layers else "random_document"  # ALBERT's, or BERT's
    objective = {"type": "masked_pairs", "second": second}
  else:
    objective = {"type": "masked"}
  data = WindowsConfig(length=spec.trunk.context)
  return PretrainConfig(spec.trunk, from_json(objective), data)


def check_type(config: Any, program: str = "pre-training") -> None:
  """Refuses the config of another program."""
  if not isinstance(config, PretrainConfig):
    raise InputError(
      f"--config: a {type(config).__name__}; {program} takes a PretrainConfig, as in "
      "configs/gpt1.py"
    )
