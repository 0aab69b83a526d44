"""Generation: equal to generation without a cache, each prompt by itself, within the vocabulary."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refused import refused
from sampled_texts import sample

import gpt_jax
from gpt_jax import inference
from gpt_jax.batch import Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES, END_OF_TEXT
from gpt_jax.inference.generate import continuations, write
from gpt_jax.inference.sampling import gumbel
from gpt_jax.inference.stream import Sampling, Text, Token
from gpt_jax.models.heads.classify import ClassifyHead
from gpt_jax.models.lstm import LSTMConfig
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.ops.cross_entropy import logits
from gpt_jax.programs import generate

CONTEXT = 24
PROMPTS = [[5, 9, 11], [7], list(range(20, 50)), [3] * 13]  # the third is longer than the context
SEEDS = [4, 5, 6, 7]


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def trained(request, make_run):
  trunks = {
    "transformer": TransformerConfig(vocab_size=60, context=CONTEXT, layers=2, width=32, heads=4),
    "lstm": LSTMConfig(vocab_size=60, context=CONTEXT, width=16, units=24),
  }
  spec = ModelConfig(trunks[request.param])
  return spec.build(), jax.tree.map(lambda x: 2 * x, make_run.params_of(spec, 1))


@functools.partial(jax.jit, static_argnums=0)
def one_token(model, params, ids, places, last, seed, number, temperature):
  scores = logits(
    *model.apply({"params": params}, Rows(ids, places), method="states")[:2], model.num_tokens
  )
  (noise,) = gumbel(jnp.array([seed]), jnp.array([number]), 60)
  return (scores[0, last, :60] + temperature * noise).argmax()


def without_cache(model, params, prompt, seed, max_tokens, temperature):
  """Reads everything again for every token."""
  text, begin = list(prompt), 0
  for number in range(max_tokens):
    if len(text) - begin >= CONTEXT:
      begin = len(text) - CONTEXT // 2
    window = text[begin:]
    ids = np.array([window + [0] * (CONTEXT - len(window))], np.int32)
    places = np.arange(CONTEXT, dtype=np.int32)[None]
    text.append(
      int(one_token(model, params, ids, places, len(window) - 1, seed, number, temperature))
    )
  return text[len(prompt) :]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_equals_generation_without_a_cache(trained, temperature):
  model, params = trained
  found = sample(model, params, PROMPTS, SEEDS, 40, temperature=temperature)
  for prompt, seed, ids in zip(PROMPTS, SEEDS, found, strict=True):
    assert ids == without_cache(model, params, prompt, seed, 40, temperature)
  assert len({tuple(ids) for ids in found}) == len(PROMPTS)


def test_a_prompt_is_continued_the_same_in_any_company(trained):
  together = sample(*trained, PROMPTS, SEEDS, 30)
  assert together == sample(*trained, PROMPTS, SEEDS, 30)
  for i in range(4):
    assert sample(*trained, PROMPTS[i : i + 1], SEEDS[i : i + 1], 30) == together[i : i + 1]
  assert sample(*trained, PROMPTS[:1], [99], 30) != together[:1]


def test_only_tokens_of_the_vocabulary(trained):
  """At this temperature all of the table's 128 rows would be as likely."""
  (ids,) = sample(*trained, [[1]], [0], 300, temperature=1e4)
  assert max(ids) < 60 and len(set(ids)) > 50


@pytest.mark.parametrize("trained", ["transformer"], indirect=True)
def test_top_k_of_one_is_greedy(trained):
  greedy = sample(*trained, PROMPTS, SEEDS, 10, temperature=0.0)
  assert sample(*trained, PROMPTS, SEEDS, 10, top_k=1) == greedy
  for top_p in (1e-6, 1e-300):  # the second is 0 in float32
    assert sample(*trained, PROMPTS, SEEDS, 10, top_p=top_p) == greedy


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, tiny_tokenizer):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  return make_run(tmp_path_factory.mktemp("generate") / "run", ModelConfig(trunk))


def test_many_prompts_are_as_many_runs(run):
  texts = generate.run(run, ["the cat"] * 17, max_tokens=5, seed=3)
  assert len(set(texts)) > 10 and all(text.startswith("the cat") for text in texts)
  assert generate.run(run, ["the cat"], max_tokens=5, seed=19) == texts[16:]
  (text,) = generate.run(run, ["the cat"], max_tokens=5, seed=19, weights="int8")
  assert text.startswith("the cat")


def test_a_fine_tuned_model_is_still_a_language_model(tmp_path, make_run, tiny_tokenizer):
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)
  path = make_run(tmp_path / "run", ModelConfig(trunk, (ClassifyHead(),)))
  assert generate.run(path, ["the dog"], max_tokens=2)[0].startswith("the dog")


@pytest.mark.parametrize(
  "settings, message",
  [
    ({"temperature": -0.1}, "temperature=-0.1: must be at least 0"),
    ({"temperature": float("nan")}, "temperature=nan"),
    ({"top_p": 1.5}, "top_p=1.5: must be above 0 and at most 1"),
    ({"top_p": 0.0}, "top_p=0.0"),
    ({"top_k": -1}, "top_k=-1"),
    ({"top_k": 2**31}, "top_k=2147483648: must be at least 0, below 2"),
    ({"temperature": 1e300}, "temperature=1e.300: must be at least 0, at most 1,000,000"),
    ({"max_tokens": 0}, "max_tokens=0"),
    ({"seed": -1}, "seed=-1"),
    ({"prompts": []}, "no prompt"),
    ({"num_samples": 0}, "num_samples=0: must be at least 1"),
    ({"beams": 0}, "beams=0: must be from 1 to 256"),
    ({"beams": 2, "top_k": 3}, "--beams=2: a search takes the most likely text"),
    ({"beams": 2, "temperature": 0.3}, "--beams=2: .* leave out temperature"),
    ({"beams": 2, "seed": 9}, "--beams=2: .* leave out temperature"),
    ({"beams": 2, "length_penalty": float("nan")}, "length_penalty=nan"),
    ({"beams": 2, "length_penalty": -1e308}, "length_penalty=-1e.308: must be from -10 to 10"),
    ({"beams": 2, "max_tokens": 16}, "context of 16"),
    ({"weights": "float16"}, "weights=float16: must be one of float32, bfloat16, int8"),
    ({"prompts": ["the cat", " "]}, "prompt 2 is empty"),
  ],
)
def test_bad_values(run, settings, message):
  refused(message, generate.run, run, **{"prompts": ["the cat"], **settings})


def test_the_command_line(run, launch):
  prompt = "--prompt=The cat, on\nthe mat"
  flags = f"--checkpoint={run}", "--max_tokens=4", "--temperature=0", prompt
  lines = "the\u2028dog\n"  # one line, as in all files of texts
  code, printed, errors = launch("generate", *flags, "--input=-", input=lines)
  assert (code, errors) == (0, "")
  prompts = ["the cat, on\nthe mat", "the\u2028dog"]
  first, second = generate.run(run, prompts, max_tokens=4, temperature=0)
  assert printed == f"=== 1 of 2 ===\n{first}\n=== 2 of 2 ===\n{second}\n"
  streamed = launch("generate", *flags, "--input=-", "--stream", input=lines)
  assert streamed == (0, printed, "")
  code, _, errors = launch("generate", f"--checkpoint={run}", "--input=nowhere.txt")
  assert (code, errors) == (2, "error: --input=nowhere.txt: no such file\n")


def test_what_outgrows_the_context_is_told(run, launch):
  flags = f"--checkpoint={run}", "--prompt=the cat"
  for stream, advice in (
    ("--nostream", "; --stream prints the text while it is"),
    ("--stream", ""),
  ):
    code, printed, errors = launch("generate", *flags, "--max_tokens=17", stream)
    assert code == 0 and printed.startswith("the cat")
    assert errors.startswith("--max_tokens=17: the model's context is 16 tokens; each time it is ")
    assert f"reads the last 8 again and forgets the others{advice}" in errors
    assert ("--stream" in errors) == bool(advice) and errors.count("\n") == 1
  assert launch("generate", *flags, "--max_tokens=16")[2] == ""


def test_a_stream_has_the_same_words(run):
  prompts, options = ["the cat", "the dog ran to"], {"max_tokens": 11, "seed": 3, "num_samples": 2}
  texts = generate.run(run, prompts, **options)
  assert generate.run(run, ["the dog ran to"], max_tokens=11, seed=5) == texts[2:3]
  written, numbers = [""] * 4, []
  for number, piece in generate.stream(run, prompts, **options):
    assert piece and written[number] + piece == texts[number][: len(written[number] + piece)]
    written[number] += piece
    numbers.append(number)
  assert written == texts
  assert numbers == sorted(numbers) and len(numbers) > 4


def test_words_are_held_back_until_they_are_whole(monkeypatch):
  """With characters of several bytes, and no space."""
  wanted = "ein schöner Tag, 漢字かな交じり文はとても長くて空白がありませんから。"
  ids = list(wanted.encode())
  text = Text(ids[:1], Sampling(len(ids) - 1))

  def one_by_one(*_, steps):
    for id in ids[1:]:
      text.added.append(Token(id, 0.0, []))
      yield [text]

  monkeypatch.setattr(inference.generate, "_begin", lambda *_: [text])
  monkeypatch.setattr(inference.generate, "keep_weights", lambda *_: None)
  monkeypatch.setattr(inference.generate, "continue_texts", one_by_one)
  tokenizer = SimpleNamespace(decode=lambda ids: bytes(ids).decode(errors="replace"))
  loaded = SimpleNamespace(
    tokenizer=tokenizer, is_text_to_text=False, generator=lambda: None, params=None
  )
  pieces = [piece for _, piece in write(loaded, [], text.sampling)]
  assert "".join(pieces) == wanted and "\ufffd" not in wanted
  assert pieces[:3] == ["ein", " schöner", " Tag,"] and len(pieces) >= 10


def test_beam_search(run):
  greedy = generate.run(run, ["the cat"], max_tokens=6, temperature=0)
  assert generate.run(run, ["the cat"], max_tokens=6, beams=1, temperature=0) == greedy
  (text,) = generate.run(run, ["the cat"], max_tokens=6, beams=8)
  model = gpt_jax.load(run)
  assert text.startswith("the cat")
  found, of_greedy = (np.nansum(each.log_probs) for each in model.log_probs([text, *greedy]))
  assert found >= of_greedy - 1e-4


@pytest.mark.parity("released")
def test_texts_end_before_the_end_token(make_run, tmp_path):
  """Greedy, sampled, streamed and searched; a flag goes on behind it."""
  tokenizer = GPT2Tokenizer((*BYTES, END_OF_TEXT), ())
  trunk = TransformerConfig(context=32, layers=1, width=16, heads=2).with_vocabulary(tokenizer)
  loaded = load_model(make_run(tmp_path / "run", ModelConfig(trunk), tokenizer=tokenizer))
  # Every state is nearly 1, and so is the row of the end token.
  params = jax.tree.map(np.array, loaded.params["trunk"])
  norm = params["block_0"]["mlp_norm"]
  norm["scale"], norm["bias"] = 0.01 * norm["scale"], np.ones_like(norm["bias"])
  params["tokens"][tokenizer.end_id] = 9.0
  loaded = dataclasses.replace(loaded, params={"trunk": params})
  settings = {"temperature": 0.0, "max_tokens": 4}
  assert continuations(loaded, ["ab"], Sampling(**settings), 2) == ["ab", "ab"]
  pieces = write(loaded, ["ab"], Sampling(max_tokens=4, seed=3))
  assert "".join(piece for _, piece in pieces) == "ab"
  assert continuations(loaded, ["ab"], Sampling(max_tokens=4), beams=2) == ["ab"]
  (text,) = continuations(loaded, ["ab"], Sampling(**settings, ignore_eos=True))
  assert text == "ab" + 4 * END_OF_TEXT
