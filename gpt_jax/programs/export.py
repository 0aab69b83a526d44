"""The program that exports: a checkpoint to a folder that other software can read and that loads
back equal.
"""

from gpt_jax.checkpoints.formats import find_format
from gpt_jax.checkpoints.load import load_model


def run(checkpoint: str, out: str, format: str = "npz") -> None:
  """Writes the checkpoint's parameters, config and vocabulary to the folder `out`.

  Args:
    checkpoint: see load_model.
    out: a folder that is not there yet.
    format: the name of a file in checkpoints/formats/: npz and safetensors hold any model, hf any
      causal Transformer, openai GPT-1 with OpenAI's vocabulary.

  Raises:
    InputError: no checkpoint, another vocabulary, a model that the format cannot hold, or something
      else in `out`.
  """
  target = find_format(format)  # fail before the expensive part
  found = load_model(checkpoint)
  target.save(out, found.params, found.meta, found.step, found.tokenizer)
  print(
    f"{out}: step {found.step:,} of {checkpoint}, {found.spec.trunk.parameter_count():,} parameters"
  )
