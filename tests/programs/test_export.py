"""launch/export.py from the command line."""

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.checkpoints.load import load_model
from gpt_jax.files import atomic_file
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, tiny_tokenizer):
  spec = ModelConfig(
    TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  )
  return make_run(tmp_path_factory.mktemp("export") / "run", spec)


def test_the_command_exports_and_the_export_loads(run, tmp_path, launch):
  flags = f"--checkpoint={run}", f"--out={tmp_path / 'out'}", "--format=npz"
  code, printed, errors = launch("export", *flags)
  assert (code, errors) == (0, "") and printed.startswith(f"wrote {tmp_path / 'out'}: step 7 of")
  before, after = load_model(run), load_model(str(tmp_path / "out"))
  jax.tree.map(np.testing.assert_array_equal, before.params, after.params)


def test_a_missing_checkpoint_is_one_line(tmp_path, launch):
  flags = f"--checkpoint={tmp_path / 'nowhere'}", f"--out={tmp_path / 'out'}"
  code, _, errors = launch("export", *flags)
  assert (code, errors) == (2, f"error: --checkpoint={tmp_path / 'nowhere'}: no such folder\n")
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["npz", "hf"])
def test_an_export_on_a_store_loads(run, store, tmp_path, format):
  for folder in (str(tmp_path / "out"), f"{store}/out"):
    export.run(run, folder, format)
  local, after = load_model(str(tmp_path / "out")), load_model(f"{store}/out")
  jax.tree.map(np.testing.assert_array_equal, local.params, after.params)
  assert after.path == after.folder == f"{store}/out"
  weights = "weights.npz" if format == "npz" else "model.safetensors"
  with atomic_file(f"{store}/out/{weights}") as file:
    file.write("damaged")
  refused(rf"{store}/out.*damaged", load_model, f"{store}/out")


def test_an_unknown_format(run, tmp_path):
  refused("format=tflite: must be one of hf, npz", export.run, run, str(tmp_path / "out"), "tflite")
