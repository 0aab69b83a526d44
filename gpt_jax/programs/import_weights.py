"""The program that imports: weights in another format to the folder of a run, which is used as
any other.
"""

import os

import jax

from gpt_jax.checkpoints.formats import find_format
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.run_folder import claim
from gpt_jax.checkpoints.store import Checkpoints
from gpt_jax.config import to_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.files import atomic_folder
from gpt_jax.programs.pretrain import PretrainConfig


def run(format: str, path: str, out: str) -> None:
  """Writes the folder `out`, with config, vocabulary and one checkpoint.

  Args:
    format: the name of a file in checkpoints/formats/.
    path: a folder of that format; for "hf" also the file of weights in it.
    out: a folder that is not there yet.

  Raises:
    InputError: an unknown format, no such files, damaged or not of this format, another vocabulary,
      or something in `out`.
  """
  find_format(format)  # required: files meant as one format must not be read as another
  with atomic_folder(out) as folder:
    found = load_model(path, format)
    trunk = found.spec.trunk
    config = found.config or PretrainConfig(trunk, data=WindowsConfig(length=trunk.context))
    meta = {**found.meta, "config": to_json(config)}
    claim(folder, config, found.tokenizer, {"imported": os.path.basename(os.path.abspath(path))})
    leaves, tree = jax.tree.flatten(found.params)
    spec, step = found.spec, found.step
    del found
    for i in range(
      len(leaves)
    ):  # one by one: a checkpoint copies NumPy arrays, all at once, and not JAX's
      leaves[i] = jax.device_put(leaves[i])
    with Checkpoints(folder) as checkpoints:
      checkpoints.save(step, {"params": jax.tree.unflatten(tree, leaves)}, meta)
  print(f"{out}: step {step:,} of {path}, {spec.trunk.parameter_count():,} parameters")
