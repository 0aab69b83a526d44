"""Generation by transformers' GPT-2 with its key-value cache."""

from collections.abc import Callable
from typing import Any

from gpt_jax.apps.benchmark.peers.packages import check_trunk, import_packages
from gpt_jax.apps.benchmark.peers.transformers_model import transformers_model


def generator(trunk: Any, prompt: int, dtype: str = "float32") -> Callable[[int, int], None]:
  """(batch, new tokens) -> greedy continuations of `prompt` tokens, in a type of torch.

  Raises:
    InputError: missing packages, or a trunk that peers do not have.
  """
  torch = import_packages().torch
  # OpenAIGPT has no cache.
  model = transformers_model(check_trunk(trunk), "GPT2", "LMHeadModel").eval()
  model = model.to(getattr(torch, dtype))

  def generate(batch: int, new: int) -> None:
    ids = torch.tensor([list(range(i, i + prompt)) for i in range(batch)], device=model.device)
    with torch.inference_mode():
      model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=new,
        max_new_tokens=new,
        pad_token_id=0,
        use_cache=True,
      ).cpu()

  return generate
