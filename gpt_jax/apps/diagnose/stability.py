"""Whether a training run learned, never left the unigram entropy, or diverged."""

import math

OUTCOMES = ("learned", "stuck", "diverged")
MARGIN = 0.1  # nats below the unigram entropy, from which on more than word frequencies is learned


def outcome(loss: float | None, first_loss: float, unigram_entropy: float) -> str:
  """One of OUTCOMES.

  Args:
    loss: held-out loss at the end, in nats per token; None or nan if the run broke off.
    first_loss: the same before the first update.
    unigram_entropy: of the text: the loss of a model that knows word frequencies and nothing else.
      A run that ends above it but below its first loss is stuck too, or too slow to get there.
  """
  if loss is None or not math.isfinite(loss) or loss > first_loss:
    return "diverged"
  return "learned" if loss < unigram_entropy - MARGIN else "stuck"
