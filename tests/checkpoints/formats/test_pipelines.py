"""transformers' pipelines on our exports: our labels, probabilities and texts."""

import json

import numpy as np
import pytest

import gpt_jax
from gpt_jax.programs import export

pytestmark = pytest.mark.parity
pytest.importorskip("safetensors")

TEXTS = [
  "the cat sat on the old mat",
  "dog",
  "ran to the barn and the DOG",
  "a cat\nthat reads <extract> and <unk>, <start>",
]


@pytest.fixture(scope="module")
def pipeline():
  """pipeline(kind, checkpoint, folder): of an export, without network."""
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()

  def make(kind, checkpoint, folder):
    export.run(checkpoint, str(folder), "hf")
    return transformers.pipeline(kind, model=str(folder), device="cpu")

  return make


def test_a_classifier_gives_our_probabilities(finetuned, pipeline, tmp_path):
  checkpoint = f"{finetuned.workdir}/seed_0/best"
  classify = pipeline("text-classification", checkpoint, tmp_path / "out")
  ours = gpt_jax.load(checkpoint).classify(TEXTS)
  assert {max(each, key=each.get) for each in ours} == {"meows", "barks"}
  for batch_size in (1, len(TEXTS)):
    theirs = classify(TEXTS, top_k=None, batch_size=batch_size)
    for row, expected in zip(theirs, ours, strict=True):
      found = {entry["label"]: entry["score"] for entry in row}
      assert found == pytest.approx(expected, abs=1e-5)
  long = "the cat sat on the old mat and " * 30
  [expected] = gpt_jax.load(checkpoint).classify([long])[:1]
  found = {e["label"]: e["score"] for e in classify(long, truncation=True, top_k=None)}
  assert found == pytest.approx(expected, abs=1e-5)


def test_a_language_model_gives_our_text(finetuned, pipeline, tmp_path):
  generate = pipeline("text-generation", finetuned.pretrained, tmp_path / "out")
  prompts = ["the cat sat", "the dog ran to\nthe"]
  ours = gpt_jax.load(finetuned.pretrained).generate(prompts, max_tokens=12, temperature=0)
  for prompt, expected in zip(prompts, ours, strict=True):
    [answer] = generate(prompt, max_new_tokens=12, do_sample=False)
    ids = generate.tokenizer(answer["generated_text"])["input_ids"]
    assert answer["generated_text"] == expected
    assert np.max(ids) < generate.model.config.vocab_size


def test_the_card_has_scores_and_recipe(finetuned, tmp_path):
  yaml = pytest.importorskip("yaml")
  export.run(f"{finetuned.workdir}/seed_0/best", str(tmp_path / "out"), "hf")
  _, front, text = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
  card = yaml.safe_load(front)
  assert card["library_name"] == "transformers" and card["pipeline_tag"] == "text-classification"
  [result] = card["model-index"][0]["results"]
  best = json.loads((tmp_path / "out" / "config.json").read_text())["gpt_jax"]["metrics"]
  assert result["metrics"][0]["type"] == "accuracy"
  assert result["metrics"][0]["value"] == pytest.approx(best["dev_accuracy"], abs=1e-4)
  assert "license" not in card and "learning_rate 0.01" in text and "meows" in text
