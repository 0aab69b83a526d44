"""Loading a trained model from each place that may be named, and refusing what is none."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from refused import refused

from gpt_jax.checkpoints.formats import npz
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.tokenizers.gpt1 import REGEX
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.models.model import ModelConfig, language_model
from gpt_jax.models.predictor import make_predictor
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs.pretrain import PretrainConfig


@pytest.fixture(scope="module")
def spec(tiny_tokenizer):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  return ModelConfig(trunk)


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, spec):
  return make_run(tmp_path_factory.mktemp("pretrained") / "run", spec, steps=(3, 7))


@pytest.fixture
def copy(run, tmp_path):
  return shutil.copytree(run, tmp_path / "run")


@pytest.mark.parametrize(
  "place, step", [("", 7), ("/best", 3), ("/checkpoints/3", 3), ("/checkpoints/7", 7)]
)
def test_every_place_that_names_a_checkpoint(run, make_run, spec, tiny_tokenizer, place, step):
  found = load_model(run + place)
  assert (found.spec, found.step, found.tokenizer) == (spec, step, tiny_tokenizer)
  jax.tree.map(np.testing.assert_array_equal, found.params, make_run.params_of(spec, step))


def test_a_language_model_has_no_task(run, spec):
  loaded = load_model(run)
  assert loaded.task is None
  assert loaded.language_model() == language_model(spec.trunk)
  data = WindowsConfig(batch_size=2, length=spec.trunk.context)
  assert loaded.config == PretrainConfig(spec.trunk, data=data)
  refused(f"{run}: a language model without a head; fine-tune it", loaded.predictor)


def test_a_fine_tuned_model_knows_its_task(finetuned):
  loaded = load_model(f"{finetuned.workdir}/seed_0")
  assert (loaded.task.name, loaded.task.labels) == ("table", ("barks", "meows"))
  examples = loaded.task.examples(finetuned.data_dir, "dev")
  encoded = loaded.task.encode(examples, loaded.tokenizer, loaded.spec.trunk.context)
  probabilities = loaded.predictor()(encoded, 8)
  mesh = make_mesh(MeshConfig(), jax.devices()[:1])
  alone = make_predictor(loaded.model, mesh)(loaded.params, encoded, 30)
  np.testing.assert_allclose(probabilities, alone, atol=1e-5)


def test_a_checkpoint_of_an_earlier_version_is_refused(run, tmp_path):
  loaded = load_model(run)
  meta = loaded.meta | {"model": {"type": "gpt_jax.models:ModelConfig"}}
  npz.save(str(tmp_path / "old"), loaded.params, meta, 7, loaded.tokenizer)
  message = f"{tmp_path}/old: .* written by an earlier version of gpt"
  refused(message, load_model, str(tmp_path / "old"))


def test_another_vocabulary(copy):
  other = SentencePieceTokenizer.train(["another text for another vocabulary"], 280)
  other.save(str(copy / "tokenizer"))
  refused("vocabulary is not the tokenizer's", load_model, str(copy))


def test_another_splitter_of_words(run, tmp_path, openai_tokenizer):
  found = load_model(run)
  meta = found.meta | {"tokenizer_hash": openai_tokenizer.hash}
  npz.save(str(tmp_path / "same"), found.params, meta, 7, openai_tokenizer)
  assert load_model(str(tmp_path / "same")).tokenizer == openai_tokenizer
  other = dataclasses.replace(openai_tokenizer, splitter=REGEX)
  npz.save(str(tmp_path / "other"), found.params, meta, 7, other)
  message = "trained with the same but with the word splitter spacy-en, not regex-1;"
  refused(message, load_model, str(tmp_path / "other"))


def test_a_checkpoint_taken_out_of_its_run(copy, tmp_path):
  step = shutil.copytree(copy / "checkpoints" / "7", tmp_path / "elsewhere" / "7")
  refused("not inside the folder of a run", load_model, str(step))


@pytest.mark.parametrize("place", ["", "/best", "/checkpoints/3"])
def test_nothing_there(tmp_path, place):
  message = "no checkpoint in .*: give a workdir, WORKDIR/best or"
  refused(message, load_model, str(tmp_path / "run") + place)


@pytest.mark.parametrize("place", ["", "/best"])
@pytest.mark.parametrize("folder", ["seed_0", "fold_0", "finetuned"])
def test_a_folder_of_runs_names_one(tmp_path, place, folder):
  (tmp_path / folder / "checkpoints").mkdir(parents=True)
  message = f"no checkpoint in .*: give one of its runs, such as .*/{folder}{place}$"
  refused(message, load_model, str(tmp_path) + place)


def test_a_label_run_that_goes_on_says_so(tmp_path):
  for name in ("finetuned/checkpoints", "tfidf"):
    (tmp_path / name).mkdir(parents=True)
  (tmp_path / "label.json").write_text("{}")
  message = "as label.run has not ended there, and goes on when given again; .*/tfidf predicts"
  refused(message, load_model, str(tmp_path))
  (tmp_path / "result.json").write_text("{}")
  refused("give one of its runs, such as .*/finetuned", load_model, str(tmp_path))
  (tmp_path / "result.json").write_text('{"chosen": "tfidf"}')
  refused("give its model that predicts, .*/tfidf/best", load_model, str(tmp_path))


def test_the_tokenizer_is_missing(copy):
  shutil.rmtree(copy / "tokenizer")
  refused("no tokenizer here", load_model, str(copy))
