"""Adversarial training: losses at embeddings that were moved to where the loss is higher.

An attack has `wrap(loss) -> loss`, and `work`, the arithmetic of a step as compiled, as a multiple
of that of a plain step: a third each for forward, gradients of activations and gradients of
parameters. All of them attack the loss of the labeled head; the auxiliary language model (eq. 5)
reads clean embeddings. Perturbations are constants: no gradient flows through them. The dropout
masks of a step are the same in all of its passes.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.batch import Batch, Mean
from gpt_jax.config import option, register
from gpt_jax.errors import InputError
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.loss import Denominators, Loss, ModelLoss, perturbed
from gpt_jax.models.method import Method
from gpt_jax.models.perturbation import (
  no_perturbation,
  normal,
  of_length,
  sequence_lengths,
  uniform,
  within,
)
from gpt_jax.ops.dropout import Key


class Attack(Method):
  """Base of the attacks."""

  slot = "adversarial"
  work: Any  # ClassVar[float] or a property

  def wrap(self, loss: ModelLoss) -> Loss:
    raise NotImplementedError

  def check(self, config: Any, task: Any, start: Any) -> None:
    if task.writes_text:
      raise InputError(
        "adversarial: attacks the loss of a head for labels, and a text-to-text model has none; "
        "leave it out"
      )

  def recipe(self, recipe: Any, start: Any) -> Any:
    plain = recipe.loss
    return dataclasses.replace(recipe, loss=lambda model: self.wrap(plain(model)), work=self.work)


@register("fgm")
@dataclasses.dataclass(frozen=True)
class FGM(Attack):
  """The loss, and the loss at e + r with r = radius g / |g|, g its gradient (arXiv 1605.07725)."""

  radius: float = option(1.0, "L2 norm of the perturbation of a sequence", low=1e-6, high=1e6)
  weight: float = option(1.0, "weight of the loss under attack, beside the clean loss", low=0.0)

  work = 2.0  # clean, which gives g as well, and under attack

  def wrap(self, loss: ModelLoss) -> Loss:
    return _FGMLoss(self, loss)


@register("virtual_adversarial")
@dataclasses.dataclass(frozen=True)
class VirtualAdversarial(Attack):
  """The loss, and KL(p(e) || p(e + r)), which needs no label (arXiv 1605.07725, section 3).

  r is the direction that the divergence is most sensitive to, by one power iteration from a random
  one. Every example of a batch counts, also one of label weight 0.
  """

  radius: float = option(1.0, "L2 norm of the perturbation of a sequence", low=1e-6, high=1e6)
  weight: float = option(1.0, "weight of the divergence, beside the clean loss", low=0.0)
  probe: float = option(0.1, "L2 norm of the random direction", low=1e-6, high=1e6)

  work = 3.0  # clean, p(e), the probe without gradients of parameters, and at e + r
  learns_unlabeled = True

  def wrap(self, loss: ModelLoss) -> Loss:
    return _VirtualLoss(self, loss)


@register("freelb")
@dataclasses.dataclass(frozen=True)
class FreeLB(Attack):
  """The mean loss over the steps of a gradient ascent from a random perturbation (arXiv
  1909.11764); its gradient is that of FreeLB's code, which adds up those of the steps.
  """

  steps: int = option(3, "K, passes forward and backward", low=1, high=100)
  step_size: float = option(0.1, "alpha, length of a step of the ascent", low=1e-6, high=1e6)
  radius: float = option(0.0, "largest L2 norm of a sequence's perturbation; 0: any", low=0.0)
  start: float = option(
    0.2, "size of the random perturbation of the first step; 0: it is clean", low=0.0
  )

  @property
  def work(self) -> float:
    """Each ascent shares the forward pass of its step, and differentiates the activations anew."""
    return self.steps + (self.steps - 1) / 3

  def wrap(self, loss: ModelLoss) -> Loss:
    return _FreeLBLoss(self, loss)


def ascent(
  loss: ModelLoss,
  params: Any,
  batch: Batch,
  key: Key | None,
  denominators: Denominators | None,
  perturbation: jax.Array,
) -> jax.Array:
  """The gradient [B, T, D] of a loss with respect to the perturbation; a constant."""
  # Else the outer gradient would be of second order, through the inner one.
  fixed = jax.lax.stop_gradient(params)
  return jax.grad(lambda r: loss(fixed, batch, key, denominators, r)[0])(perturbation)


class _Wrapped:
  """Base of the methods: the clean loss, the labeled head's loss, and the other heads."""

  def __init__(self, config: Any, loss: ModelLoss):
    self._config = config
    heads = loss.heads
    labeled = [head for head in heads if head.labeled] or heads
    self._loss = loss
    self._labeled = ModelLoss(loss.model, labeled)
    self._others = [head for head in heads if head not in labeled]
    self._scope, self._metric = labeled[0].scope, labeled[0].metric

  def denominators(self, batch: Batch) -> Denominators:
    return self._loss.denominators(batch)

  def __call__(self, params, batch: Batch, key: Key | None, denominators=None):
    """Its metrics: what is minimized, the clean losses of the heads, the term under attack."""
    denominators = self.denominators(batch) if denominators is None else denominators
    total, clean, attacked = self._losses(params, batch, key, denominators)
    weight = self._labeled.denominators(batch)[self._scope]
    clean = dict(clean)
    first = clean.pop("loss")
    if len(self._loss.heads) == 1:
      clean[self._metric] = first
    # Adds up over microbatches, as in ModelLoss.
    minimized = Mean(total * denominators[self._scope], weight)
    return total, {"loss": minimized, **clean, "adversarial_loss": attacked}

  def _losses(
    self, params: Any, batch: Batch, key: Key | None, denominators: Denominators
  ) -> tuple[jax.Array, dict[str, Mean], Mean]:
    """The total, the clean losses of the heads, and the term under attack."""
    raise NotImplementedError


class _FGMLoss(_Wrapped):
  def _losses(self, params, batch, key, denominators):
    total, clean = self._loss(params, batch, key, denominators)
    zero = no_perturbation(self._loss.model, params, batch)
    # At r = 0 and with the masks of the clean pass, so XLA can share that forward pass.
    gradient = ascent(self._labeled, params, batch, key, denominators, zero)
    # The loss is taken as linear around the clean input: r is its gradient, of the length `radius`.
    r = of_length(gradient, self._config.radius, batch.rows)
    attacked, metrics = self._labeled(params, batch, key, denominators, r)
    return total + self._config.weight * attacked, clean, metrics["loss"]


class _VirtualLoss(_Wrapped):
  def __init__(self, config: VirtualAdversarial, loss: ModelLoss):
    super().__init__(config, loss)
    self._head = self._labeled.heads[0]
    if not isinstance(self._head, ClassifyHead):
      raise InputError(
        "adversarial: virtual_adversarial compares the probabilities of classes, so it is for "
        "tasks that give each example one class, and read it without windows; use fgm or freelb"
      )

  def denominators(self, batch: Batch) -> Denominators:
    return {**super().denominators(batch), "virtual": self._count(batch)}

  def _losses(self, params, batch, key, denominators):
    total, clean = self._loss(params, batch, key, denominators)
    fixed = jax.lax.stop_gradient(params)
    # p(e) is the target, so the gradient does not flow through it.
    wanted = self._log_probs(fixed, batch, key, None)

    def divergence(params, r):
      """KL(p(e) || p(e + r)), summed over the examples."""
      return (jnp.exp(wanted) * (wanted - self._log_probs(params, batch, key, r))).sum()

    zero, rows = no_perturbation(self._loss.model, params, batch), batch.rows
    noise = normal(zero, key, rows)
    # At r = 0 the divergence is least and has no gradient. One at a small random r is a step of the
    # power iteration to the direction in which it grows fastest.
    probe = of_length(noise, self._config.probe, rows).astype(zero.dtype)
    gradient = jax.grad(divergence, argnums=1)(fixed, probe)
    r = of_length(gradient, self._config.radius, rows)
    virtual = divergence(params, r)
    total = total + self._config.weight * virtual / denominators["virtual"]
    return total, clean, Mean(virtual, self._count(batch))

  def _count(self, batch: Batch) -> jax.Array:
    """The number of examples; training batches are never padded with empty ones."""
    assert batch.labels is not None
    return jnp.float32(len(batch.labels.anchors))

  def _log_probs(self, params, batch, key, perturbation) -> jax.Array:
    """Log-probabilities [N, K]."""
    model = self._loss.model
    outputs = perturbed(model, params, batch, key, perturbation)
    return jax.nn.log_softmax(outputs.heads[model.config.heads.index(self._head)])


class _FreeLBLoss(_Wrapped):
  def _losses(self, params, batch, key, denominators):
    c, rows = self._config, batch.rows
    total, clean = jnp.float32(0), dict[str, Mean]()
    if self._others:
      others = ModelLoss(self._loss.model, self._others)
      total, clean = others(params, batch, key, denominators)
      if len(self._others) == 1:
        clean.setdefault(self._others[0].metric, clean["loss"])
    r = self._first(params, batch, key)
    means = []
    for step in range(c.steps):
      loss, metrics = self._labeled(params, batch, key, denominators, r)
      # FreeLB (algorithm 1): parameters' gradients of all K passes are averaged.
      total = total + loss / c.steps
      means.append(metrics["loss"])
      # The last pass needs no next perturbation.
      if step + 1 < c.steps:
        gradient = ascent(self._labeled, params, batch, key, denominators, r)
        r = r + of_length(gradient, c.step_size, rows)
        r = within(r, c.radius, rows) if c.radius else r
    return total, {**clean, self._metric: means[0], "loss": means[0]}, means[-1]

  def _first(self, params, batch: Batch, key: Key | None) -> jax.Array:
    """A random start, uniform in each feature, of expected norm `start` / sqrt(3) per sequence."""
    zero = no_perturbation(self._loss.model, params, batch)
    if not self._config.start:
      return zero
    features = sequence_lengths(batch.rows)[..., None] * zero.shape[-1]
    # As FreeLB's code: scaled by the square root of the sequence's length times D.
    noise = uniform(zero, key, batch.rows) * self._config.start / jnp.sqrt(features)
    return noise.astype(zero.dtype)
