"""The program that exports: a checkpoint to a folder that other software can read and that loads back equal."""

from gpt_jax import pretrained
from gpt_jax.errors import InputError
from gpt_jax.pretrained import FORMATS


def run(checkpoint: str, out: str, format: str = "npz") -> None:
  """Writes the checkpoint's parameters, config and vocabulary to the folder `out`.

  Args:
    checkpoint: see pretrained.load.
    out: a folder that is not there yet.
    format: "npz" or "safetensors" for any model; "openai" for GPT-1 with OpenAI's vocabulary; "hf", a folder of
      transformers', for any Transformer. What each holds is in interop/.

  Raises:
    InputError: no checkpoint, another vocabulary, a model that the format cannot hold, or something else in `out`.
  """
  if format not in FORMATS:
    raise InputError(f"--format={format}: must be one of {', '.join(FORMATS)}")
  found = pretrained.load(checkpoint)
  FORMATS[format].save(out, found.params, found.meta, found.step, found.tokenizer)
  print(f"{out}: step {found.step:,} of {checkpoint}, {found.spec.trunk.parameter_count():,} parameters")
