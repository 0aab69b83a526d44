"""Language modeling from right to left: predict every token from those after it, as ULMFiT's second
model (Howard and Ruder 2018, section 3.3), for LSTMStackConfig(directions=backward).

  row        <start> the cat sat <extract>
  predicted          the cat sat
"""

import dataclasses

from gpt_jax.config import option, register
from gpt_jax.objectives.bidirectional_lm import BidirectionalLM
from gpt_jax.objectives.causal import Causal


@register("backward_lm")
@dataclasses.dataclass(frozen=True)
class BackwardLM(BidirectionalLM):
  """The backward half of a BidirectionalLM by itself; with regularizers, AWD-LSTM's."""

  ar: float = option(0.0, "as in Causal", low=0.0)
  tar: float = option(0.0, "as in Causal", low=0.0)

  @property
  def heads(self) -> tuple[dict, ...]:
    backward = {**super().heads[1], "weight": 1.0}
    return (backward, *Causal(self.ar, self.tar).heads[1:])  # the language head is the first
