"""Exports a checkpoint to a folder that other software can read and that loads back equal."""

from gpt_jax.checkpoints.formats import find_format
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.store import saved_metrics


def run(checkpoint: str, out: str, format: str = "npz") -> None:
  """Writes the checkpoint's parameters, config and vocabulary to a folder.

  Args:
    checkpoint: see load_model.
    out: the folder to create.
    format: the name of a file in checkpoints/formats/: npz and safetensors hold any model, hf any
      causal Transformer, openai GPT-1 with OpenAI's vocabulary, onnx and stablehlo the program of
      a language model or classifier, which no longer loads here.

  Raises:
    InputError: no checkpoint, a model that the format cannot hold, or something else in `out`.
  """
  target = find_format(format)  # fail before loading
  loaded = load_model(checkpoint)
  meta = loaded.meta
  if metrics := saved_metrics(checkpoint, loaded.step):
    meta = {**meta, "metrics": metrics}  # for the model card
  target.save(out, loaded.params, meta, loaded.step, loaded.tokenizer)
  parameters = loaded.spec.trunk.parameter_count()
  print(f"wrote {out}: step {loaded.step:,} of {checkpoint}, {parameters:,} parameters")
