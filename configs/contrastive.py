"""Contrastive learning from a pre-trained checkpoint: :views (SimCSE) or :neighbors (QuickThoughts).

python launch/pretrain.py --config=configs/contrastive.py:neighbors --checkpoint=runs/small \
  --data=data/novels --workdir=runs/neighbors
python launch/evaluate.py --checkpoint=runs/neighbors --data=DIR --task=stsb
"""

from gpt_jax.config import did_you_mean
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.objectives.contrastive import DropoutViews, NeighborSpans
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig


def get_config(positives: str) -> PretrainConfig:
  pass
