"""The program that exports: a checkpoint to a folder that other software can read and that loads
back equal.
"""

from gpt_jax.checkpoints import load as pretrained


def run(checkpoint: str, out: str, format: str = "npz") -> None:
  """Writes the checkpoint's parameters, config and vocabulary to the folder `out`.

  Args:
    checkpoint: see pretrained.load.
    out: a folder that is not there yet.
    format: "npz" or "safetensors" for any model; "openai" for GPT-1 with OpenAI's vocabulary; "hf",
      a folder of transformers', for any Transformer. What each holds is in interop/.

  Raises:
    InputError: no checkpoint, another vocabulary, a model that the format cannot hold, or something
      else in `out`.
  """
  target = pretrained.of_format(format)  # met before the work
  found = pretrained.load(checkpoint)
  target.save(out, found.params, found.meta, found.step, found.tokenizer)
  print(
    f"{out}: step {found.step:,} of {checkpoint}, {found.spec.trunk.parameter_count():,} parameters"
  )
