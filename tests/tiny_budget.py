"""The smallest budget of launch/compare.py: four steps of a model of 16 features."""

from gpt_jax.apps.compare.budgets import Budget
from gpt_jax.models.transformer import TransformerConfig

TINY = Budget(
  "tiny",
  TransformerConfig(context=64, layers=1, width=16, heads=2, norm="pre"),
  batch_size=8,
  length=64,
  steps=4,
  warmup_steps=1,
  rates=(1e-3,),
  evaluations=2,
  evaluation_batches=1,
  tasks=("story-ending",),
  examples=32,
  finetuning=(16, 1, 1e-3),
)
