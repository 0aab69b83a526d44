"""The program that exports: a checkpoint to a folder that other software can read and that loads back equal."""

from gpt_jax import pretrained
from gpt_jax.errors import InputError
from gpt_jax.interop import npz

FORMATS = {"npz": npz.save}


def run(checkpoint: str, out: str, format: str = "npz") -> None:
  """Writes the checkpoint's parameters, config and vocabulary to the folder `out`.

  Args:
    checkpoint: see pretrained.load.
    out: a folder that is not there yet.
    format: "npz"; see interop/npz.py for what it holds.

  Raises:
    InputError: no checkpoint, another vocabulary, an unknown format, or something else in `out`.
  """
  if format not in FORMATS:
    raise InputError(f"--format={format}: must be one of {', '.join(FORMATS)}")
  found = pretrained.load(checkpoint)
  FORMATS[format](out, found.params, found.meta, found.step, found.tokenizer)
  print(f"{out}: step {found.step:,} of {checkpoint}, {found.spec.trunk.parameter_count():,} parameters")
