"""A bidirectional checkpoint is never read left to right: it has seen what it would predict."""

import pytest
from refused import refused

import gpt_jax
from gpt_jax.apps.paper import zero_shot
from gpt_jax.apps.report import visualize
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import finetune, generate
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.tasks.task import BuiltinTask

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, tiny_tokenizer):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  return make_run(
    tmp_path_factory.mktemp("bidirectional") / "run", ModelConfig(trunk, attention="bidirectional")
  )


@pytest.mark.parametrize(
  "read",
  [
    lambda run, folder: generate.run(run, [TEXT], max_tokens=2),
    lambda run, folder: gpt_jax.load(run).generate(TEXT, max_tokens=2),
    lambda run, folder: gpt_jax.load(run).log_probs(TEXT),
    lambda run, folder: visualize.run(run, str(folder / "page.html"), [TEXT]),
  ],
  ids=["generate", "load.generate", "load.log_probs", "visualize"],
)
def test_reading_from_left_to_right_is_refused(run, tmp_path, read):
  refused(f"^{run}: a model with bidirectional attention", read, run, tmp_path)
  assert not list(tmp_path.iterdir())


def test_zero_shot_needs_the_head_of_a_masked_model(run, tmp_path):
  refused(f"^{run}: has no masked-LM head", zero_shot.run, run, str(tmp_path))
  assert not list(tmp_path.iterdir())


def test_finetuning_it_with_a_language_model_is_refused(run, tmp_path):
  config = FinetuneConfig(task=BuiltinTask("story-ending"), lm_weight=0.5)
  refused("lm_weight=0.5: .* set lm_weight=0", finetune.run, config, "", run, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()
