"""Generation by transformers' GPT-2 with its key-value cache."""

from collections.abc import Callable
from typing import Any

from gpt_jax.programs.benchmarks.peers.packages import check_trunk, find_device, import_packages


def generator(trunk: Any, prompt: int) -> Callable[[int, int], None]:
  """(batch, new tokens) -> greedy continuations of `prompt` tokens, in float32.

  Raises:
    InputError: missing packages, or a trunk that peers do not have.
  """
  torch, transformers = import_packages()
  trunk, device = check_trunk(trunk), find_device(torch)
  config = transformers.GPT2Config(
    vocab_size=trunk.vocab_size,
    n_positions=trunk.context,
    n_embd=trunk.width,
    n_layer=trunk.layers,
    n_head=trunk.heads,
  )
  model = transformers.GPT2LMHeadModel(config).to(device).eval()

  def generate(batch: int, new: int) -> None:
    ids = torch.tensor([list(range(i, i + prompt)) for i in range(batch)], device=device)
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
