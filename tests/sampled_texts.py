"""Continuations of prompts of token ids, for the tests of generation."""

from gpt_jax.inference.stream import Sampling, Text, continue_texts


def sample(model, params, prompts, seeds, max_tokens, **settings):
  """The ids that follow each prompt, each by its seed."""
  texts = [
    Text(prompt, Sampling(max_tokens, seed=seed, **settings))
    for prompt, seed in zip(prompts, seeds, strict=True)
  ]
  for _ in continue_texts(model, params, texts):
    pass
  return [text.added_ids for text in texts]
