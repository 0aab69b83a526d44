"""Exports a checkpoint to a folder that other software can read and that loads back equal."""

from gpt_jax.checkpoints.formats import find_format
from gpt_jax.checkpoints.load import AnyModel, load_unmerged
from gpt_jax.checkpoints.restore import saved_metrics
from gpt_jax.errors import InputError
from gpt_jax.inference.agreement import check_keep, labeled_rows
from gpt_jax.inference.dev_report import META, temperature_of
from gpt_jax.inference.linear_classifier import load_any

_GATED = "onnx_int8"  # the format that is compared with float32 before it is written


def run(
  checkpoint: str,
  out: str,
  format: str = "npz",
  *,
  data: str | None = None,
  split: str = "dev",
  keep: float = 0.99,
) -> None:
  """Writes the checkpoint's parameters, config and vocabulary to a folder.

  A classifier's temperature goes with it, so that the export gives the probabilities of predict.

  Args:
    checkpoint: see load_any.
    out: folder to create.
    format: see list_formats.
    data: of onnx_int8: folder of the task's files, to compare it with float32 on.
    split: of `data`: train, dev or test.
    keep: of onnx_int8: the share of float32's labels, and of its accuracy, to keep, or nothing is
      written.
  """
  if data is None and format == _GATED:
    raise InputError(f"format={format}: is compared with float32; name labeled rows by data=DIR")
  if data is not None:
    if format != _GATED:
      raise InputError(f"data={data}: only {_GATED} compares; leave it out")
    check_keep(keep)
  target = find_format(format)  # fail before loading
  loaded: AnyModel = load_unmerged(checkpoint) if format == "peft" else load_any(checkpoint)
  if format not in (loaded.exports or (format,)):
    raise InputError(
      f"format={format}: cannot hold {checkpoint}; use {' or '.join(loaded.exports)}"
    )
  meta = loaded.meta
  # Empty for what is no run, such as a folder of transformers that is converted.
  if metrics := saved_metrics(checkpoint, loaded.step):
    meta = {**meta, "metrics": metrics}  # for the model card
  if data is not None:
    meta = {**meta, "gate": (labeled_rows(loaded, data, split), keep)}
  if temperature := temperature_of(loaded):
    meta = {**meta, META: temperature}
  target.save(out, loaded.params, meta, loaded.step, loaded.tokenizer)
  print(f"wrote {out}: {checkpoint}, {loaded.size}")
