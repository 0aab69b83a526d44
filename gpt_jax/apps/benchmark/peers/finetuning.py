"""Fine-tuning a classifier of transformers as its Trainer does: batches of similar lengths, each
padded to its longest sequence.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

from gpt_jax.apps.benchmark.peers.packages import check_trunk, find_device, import_packages
from gpt_jax.apps.benchmark.peers.transformers_model import kind_of, transformers_model
from gpt_jax.apps.benchmark.peers.update import updates
from gpt_jax.tasks.encoding import Encoded

BATCHES = 8  # whose lengths differ


def finetuning_steps(trunk: Any, encoded: Encoded, batch: int) -> Callable[[], None]:
  """Steps with the next BATCHES batches of a task's sequences; it returns when they are done.

  No language-model loss is added, which the paper and gpt_jax do: the peer has less to compute.

  Args:
    trunk: a Transformer's config.
    encoded: one sequence per example.
    batch: examples per step.

  Raises:
    InputError: missing packages, or a trunk that peers do not have.
  """
  torch = import_packages().torch
  from transformers.trainer_pt_utils import LengthGroupedSampler

  trunk, device = check_trunk(trunk), find_device()
  model = transformers_model(trunk, kind_of(trunk), "ForSequenceClassification", pad_token_id=0)
  update = updates(model.train(), 6.25e-5)
  lengths = encoded.lengths.reshape(-1).tolist()
  order = list(LengthGroupedSampler(batch, lengths=lengths))
  batches = [order[first : first + batch] for first in range(0, len(order), batch)]
  # The sampler sorts by length within 50 batches.
  in_any_order = itertools.cycle(random.Random(0).sample(batches, len(batches)))

  def step(rows: list[int]) -> None:
    longest = max(lengths[row] for row in rows)
    lengths_of_rows = torch.tensor([lengths[row] for row in rows], device=device)
    mask = torch.arange(longest, device=device)[None] < lengths_of_rows[:, None]
    # Which tokens these are does not matter; 0 would be padding.
    ids = torch.where(mask, torch.randint(1, trunk.vocab_size, mask.shape, device=device), 0)
    labels = torch.randint(2, (len(rows),), device=device)
    update(model(input_ids=ids, attention_mask=mask.long(), labels=labels).loss)

  def steps() -> None:
    for rows in itertools.islice(in_any_order, BATCHES):
      step(rows)

  return steps
