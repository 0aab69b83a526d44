"""Imports weights in another format as a run folder."""

import os

import jax

from gpt_jax.checkpoints.formats import find_format
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.run_folder import claim
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.files import atomic_folder
from gpt_jax.programs.pretrain_config import config_of


def run(format: str, path: str, out: str) -> None:
  """Writes a run folder with config, vocabulary and one checkpoint.

  Args:
    format: see list_formats.
    path: folder in that format; for hf also the file of weights in it.
    out: run folder to create.
  """
  find_format(format)  # required: files of one format must not be read as another
  with atomic_folder(out) as folder:
    loaded = load_model(path, format)
    trunk, step, config = loaded.spec.trunk, loaded.step, config_of(loaded)
    meta = {**loaded.meta, "config": to_json(config)}
    claim(folder, config, loaded.tokenizer, {"imported": os.path.basename(os.path.abspath(path))})
    leaves, tree = jax.tree.flatten(loaded.params)
    del loaded
    # Saving copies NumPy arrays, all at once, but not JAX arrays: convert them one by one.
    for i, leaf in enumerate(leaves):
      leaves[i] = jax.device_put(leaf)
    with Checkpoints(folder) as checkpoints:
      checkpoints.save(step, {"params": jax.tree.unflatten(tree, leaves)}, meta)
  print(f"wrote {out}: step {step:,} of {path}, {trunk.parameter_count():,} parameters")
