"""transformers' pipelines on our exports: our labels, probabilities and texts."""

import dataclasses
import json

import numpy as np
import pytest
from their_models import vocabulary_of

import gpt_jax
from gpt_jax.models.heads.masked import MaskedHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export, finetune

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


def test_a_classifier_gives_our_probabilities(tempered, pipeline, tmp_path):
  classify = pipeline("text-classification", tempered, tmp_path / "out")
  ours = gpt_jax.load(tempered).classify(TEXTS)
  assert {max(each, key=each.get) for each in ours} == {"meows", "barks"}
  for batch_size in (1, len(TEXTS)):
    theirs = classify(TEXTS, top_k=None, batch_size=batch_size)
    for row, expected in zip(theirs, ours, strict=True):
      found = {entry["label"]: entry["score"] for entry in row}
      assert found == pytest.approx(expected, abs=1e-5)
  long = "the cat sat on the old mat and " * 30
  [expected] = gpt_jax.load(tempered).classify([long])
  found = {e["label"]: e["score"] for e in classify(long, truncation=True, top_k=None)}
  assert found == pytest.approx(expected, abs=1e-5)


# The trunk, the format of its sequences, and the family.
ENCODER = TransformerConfig(
  context=48, layers=1, width=32, heads=2, embedding_norm=True, activation="gelu"
)
BERT = dataclasses.replace(ENCODER, token_types=2, pooler=True)
ALBERT = dataclasses.replace(BERT, shared_layers=True, embedding_width=16)
ENCODERS = {
  "bert": (BERT, "bert_format", "Bert"),
  "roberta": (ENCODER, "roberta_format", "Roberta"),
  "albert": (ALBERT, "bert_format", "Albert"),
}


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request, make_run, tmp_path_factory):
  """A pre-trained run of a family, with a vocabulary of its kind."""
  trunk, format, kind = ENCODERS[request.param]
  tokenizer = vocabulary_of(kind)
  trunk = dataclasses.replace(trunk, vocab_size=tokenizer.vocab_size, special_tokens=0)
  spec = ModelConfig(trunk, (MaskedHead(),), "bidirectional")
  workdir = tmp_path_factory.mktemp(request.param) / "run"
  return make_run(workdir, spec, tokenizer=tokenizer, sequence_format={"type": format})


def test_a_fine_tuned_encoder_leaves_with_its_labels(encoder, finetuned, pipeline, tmp_path):
  config = dataclasses.replace(finetuned.config, lm_weight=0.0)
  finetune.run(config, finetuned.data_dir, encoder, str(tmp_path / "run"))
  checkpoint = str(tmp_path / "run" / "best")
  classify = pipeline("text-classification", checkpoint, tmp_path / "out")
  texts = [*TEXTS, *(f"the {word} [MASK] sat, the dog <mask>" for word in ("cat", "old", "sea"))]
  ours = gpt_jax.load(checkpoint).classify(texts)
  for batch_size in (1, len(texts)):
    theirs = classify(texts, top_k=None, batch_size=batch_size)
    for row, expected in zip(theirs, ours, strict=True):
      assert {entry["label"]: entry["score"] for entry in row} == pytest.approx(expected, abs=1e-4)
  answers = [list(answer.values()) for answer in ours]
  assert np.ptp(answers, axis=0).max() > 0.1


@pytest.mark.parametrize("text", ["the cat {} on the mat", "{}, that sat ({})!"])
def test_fill_mask_gives_what_the_pipeline_gives(encoder, pipeline, tmp_path, text):
  fill = pipeline("fill-mask", encoder, tmp_path / "out")
  assert fill.tokenizer.mask_token in (tmp_path / "out" / "README.md").read_text()
  theirs = fill(text.replace("{}", fill.tokenizer.mask_token), top_k=4)
  theirs = theirs if isinstance(theirs[0], list) else [theirs]
  for checkpoint in (encoder, str(tmp_path / "out")):
    model = gpt_jax.load(checkpoint)
    for mask, expected in zip(
      model.fill_mask(text.replace("{}", "[MASK]"), 4), theirs, strict=True
    ):
      pieces = [model.loaded.tokenizer.piece(entry["token"]) for entry in expected]
      assert [filling.piece for filling in mask] == pieces
      scores = [entry["score"] for entry in expected]
      assert [filling.probability for filling in mask] == pytest.approx(scores, rel=1e-3)


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
