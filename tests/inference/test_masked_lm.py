"""Masked language models: pseudo-log-likelihoods and fillings, beside one plain pass a position."""

import functools

import jax
import numpy as np
import pytest
from refused import refused
from tiny_runs import TEXTS, make_masked

import gpt_jax
from gpt_jax.batch import Batch, Predictions, Rows
from gpt_jax.errors import InputError

CONTEXT = 48
ROBERTA = {"sequence_format": {"type": "roberta_format"}}
FRAMES = {
  "bare": {**ROBERTA, "trained_special": ["mask"]},  # as the objective `masked` leaves it
  "framed": {**ROBERTA, "trained_special": ["cls", "sep", "mask"]},
}


def masked_run(make_run, tiny_tokenizer, folder, **meta):
  tokenizer = tiny_tokenizer.with_special("cls", "sep", "mask")
  return make_masked(make_run, folder, tokenizer, CONTEXT, **meta)


@pytest.fixture(scope="module", params=FRAMES)
def model(request, tmp_path_factory, make_run, tiny_tokenizer):
  folder = tmp_path_factory.mktemp("masked") / "run"
  return gpt_jax.load(masked_run(make_run, tiny_tokenizer, folder, **FRAMES[request.param]))


@functools.partial(jax.jit, static_argnums=0)
def outputs_of(module, params, batch):
  states, ((hidden, bias),) = module.apply({"params": params}, batch)
  return hidden @ states.table.T + bias[None, None]


def log_probs_of(model, ids, position):
  """log P of all tokens at a position of a text, [V], float64; without padding."""
  special = model.loaded.tokenizer.special
  if "cls" in model.loaded.meta.get("trained_special", ["cls"]):
    ids, position = [special["cls"], *ids, special["sep"]], position + 1
  row = np.array([ids], np.int32)
  places = np.arange(len(ids), dtype=np.int32)[None]
  # A prediction at every position, of which one is read.
  batch = Batch(Rows(row, places), predictions=Predictions(row, np.ones_like(row), places))
  scores = np.float64(outputs_of(model.loaded.model, model.loaded.params, batch))[0, position]
  scores = scores[: model.loaded.tokenizer.vocab_size]
  return scores - np.log(np.exp(scores).sum())


def test_a_text_of_other_software_has_its_frame(tmp_path, make_run, tiny_tokenizer):
  metas = {"framed": FRAMES["framed"], "unknown": ROBERTA}
  framed, unknown = (
    gpt_jax.load(masked_run(make_run, tiny_tokenizer, tmp_path / name, **meta))
    for name, meta in metas.items()
  )
  assert framed.fill_mask("a [MASK]") == unknown.fill_mask("a [MASK]")


@pytest.mark.parametrize("within_word", [False, True])
def test_each_token_is_scored_given_all_others(model, within_word):
  tokenizer = model.loaded.tokenizer
  split = 0
  for text, scored in zip(TEXTS, model.pseudo_log_probs(TEXTS, within_word), strict=True):
    ids = tokenizer.encode(text)
    words = np.cumsum([piece.startswith("▁") for piece in scored.tokens])
    for position, token in enumerate(ids):
      hidden = np.arange(len(ids)) == position
      if within_word:
        hidden |= (words == words[position]) & (np.arange(len(ids)) > position)
      masked = np.where(hidden, tokenizer.special["mask"], ids)
      expected = log_probs_of(model, masked, position)[token]
      np.testing.assert_allclose(scored.log_probs[position], expected, atol=1e-4)
      split += hidden.sum() > 1
    mean = scored.log_probs.mean(dtype=np.float64)
    assert scored.perplexity == pytest.approx(np.exp(-mean), rel=1e-5)
  assert bool(split) == within_word  # some words have several tokens


def test_a_text_is_scored_the_same_in_any_company(model):
  together = model.pseudo_log_probs(TEXTS * 3)  # more queries than a batch
  assert sum(len(scored.tokens) for scored in together) > 64
  for text, scored in zip(TEXTS * 3, together, strict=True):
    alone = model.pseudo_log_probs(text)
    assert alone.tokens == scored.tokens
    np.testing.assert_allclose(alone.log_probs, scored.log_probs, atol=1e-5)
  assert model.pseudo_log_probs([]) == []


def test_masks_are_filled_with_the_likeliest_tokens(model):
  tokenizer = model.loaded.tokenizer
  ids = tokenizer.encode("the cat sat, the.")
  positions = [n for n, i in enumerate(ids.tolist()) if tokenizer.piece(i) == "▁the"]
  ids[positions] = tokenizer.special["mask"]
  filled = model.fill_mask("[MASK] cat sat, [MASK].", top_k=3)
  for mask, position in zip(filled, positions, strict=True):
    expected = log_probs_of(model, ids, position)
    best = np.argsort(-expected)[:3]
    assert [filling.piece for filling in mask] == [tokenizer.piece(i) for i in best.tolist()]
    found = [filling.probability for filling in mask]
    np.testing.assert_allclose(found, np.exp(expected[best]), rtol=1e-4)
  one, other = model.fill_mask(["  <mask> cat sat,  <mask>.", "天[MASK]气"], top_k=3)
  assert [[f.piece for f in mask] for mask in one] == [[f.piece for f in mask] for mask in filled]
  assert len(other) == 1 and len(other[0]) == 3


@pytest.mark.parametrize(
  "text, top_k, message",
  [
    ("the cat", 5, r"text 1: has no \[MASK\]"),
    ("the c[MASK]t", 5, r"text 1: 'c\[MASK\]t?': \[MASK\] stands for a whole token"),
    ("the <mask>s", 5, "text 1: '<mask>s': .* put a space between"),
    ("the cat " * 30 + "[MASK]", 5, r"text 1: \d+ tokens, and the model's context is 48"),
    ("the [MASK]", 0, "top_k=0: must be from 1 to the vocabulary's 290"),
    ("the [MASK]", 291, "top_k=291: must be from 1 to"),
    (3, 5, "3 is not a text"),
  ],
)
def test_what_cannot_be_filled_is_one_line(model, text, top_k, message):
  refused(message, model.fill_mask, text, top_k)


def test_what_cannot_be_scored_is_one_line(model, finetuned):
  refused("text 2: empty", model.pseudo_log_probs, ["the", " "])
  with pytest.raises(InputError, match=r"text 1: \d+ tokens, and the model's context is 48"):
    model.pseudo_log_probs("the cat " * 30)
  for checkpoint in (finetuned.pretrained, f"{finetuned.workdir}/seed_0"):
    for call in (gpt_jax.load(checkpoint).pseudo_log_probs, gpt_jax.load(checkpoint).fill_mask):
      refused(f"{checkpoint}: has no masked-LM head", call, "the [MASK]")


def test_the_command_prints_the_likeliest_tokens(model, launch, finetuned):
  checkpoint = f"--checkpoint={model.loaded.path}"
  code, out, err = launch("generate", checkpoint, "--fill=the [MASK] sat", "--top_k=2")
  expected = [f"{p:.4f}  {piece}\n" for piece, p in model.fill_mask("the [MASK] sat", 2)[0]]
  assert (code, out) == (0, "".join(expected)), err
  code, out, err = launch("generate", checkpoint, "--fill=[MASK] cat [MASK]", "--fill=a [MASK]")
  assert code == 0 and out.count("\n") == 3 * 6 and "=== 3 of 3 ===" in out
  for arguments, message in (
    ([checkpoint, "--fill=the cat"], "has no [MASK]"),
    ([checkpoint, "--fill=the [MASK]", "--prompt=the"], "leave out --prompt"),
    ([checkpoint, "--fill=the [MASK]", "--beams=4"], "--beams: is for prompts; leave it out"),
    ([checkpoint, "--fill=the [MASK]", "--top_k=0"], "top_k=0: must be from 1 to the vocabulary's"),
    ([f"--checkpoint={finetuned.pretrained}", "--fill=the [MASK]"], "has no masked-LM head"),
  ):
    code, out, err = launch("generate", *arguments)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1
