"""The server answers as the model does, alone and with many clients, and survives all of them."""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused
from tiny_runs import make_masked

import gpt_jax
from gpt_jax.apps.serve import serve
from gpt_jax.apps.serve.app import _read_rows, make_app
from gpt_jax.apps.serve.completions import Choice, Request, join_pieces
from gpt_jax.apps.serve.engine import MAX_QUEUE, Engine, Job
from gpt_jax.apps.serve.fields import Fields, Refusal
from gpt_jax.checkpoints.load import load_adapters
from gpt_jax.data.tokenizers.gpt2 import GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES, END_OF_TEXT
from gpt_jax.inference.model import Model
from gpt_jax.inference.stream import Sampling, Text, Token
from gpt_jax.models.adapter import Adapter
from gpt_jax.programs import finetune
from gpt_jax.tasks.table import TableTask

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

testclient = pytest.importorskip("starlette.testclient")

ROOT = Path(__file__).parents[3]
JSON = {"Content-Type": "application/json"}
TEXTS = ["the cat sat on the mat", "dog", "the dog ran to the old red barn by the sea"]


def make_client(path, adapters=(), weights="float32"):
  model = gpt_jax.load(path)
  loaded = load_adapters(model.loaded, adapters)
  classifiers = {name: Model(adapter) for name, adapter in loaded.items()}
  engine = Engine(model, weights, classifiers)
  app = make_app(engine, "tiny", ["localhost"])
  http = testclient.TestClient(app, "http://localhost", raise_server_exceptions=False)
  return SimpleNamespace(
    engine=engine, model=engine.model, http=http, post=lambda url, body: http.post(url, json=body)
  )


@contextlib.contextmanager
def running(path, *arguments):
  client = make_client(path, *arguments)
  client.engine.start()
  try:
    yield client
  finally:
    client.engine.close()
    client.engine.join(20)
  assert not client.engine.is_alive()


@pytest.fixture(scope="module")
def language(finetuned):
  """A server of a language model: .post(path, JSON), .http, .model, .engine."""
  with running(finetuned.pretrained) as client:
    yield client


@pytest.fixture(scope="module")
def classifier(finetuned):
  with running(f"{finetuned.workdir}/seed_0") as client:
    yield client


def test_labels_by_weights_of_8_bits(finetuned, classifier):
  with running(f"{finetuned.workdir}/seed_0", (), "int8") as client:
    answers = [
      x.post("/classify", {"texts": TEXTS}).json()["results"] for x in (client, classifier)
    ]
  found, expected = ([list(row["probabilities"].values()) for row in rows] for rows in answers)
  assert 0 < np.abs(np.subtract(found, expected)).max() < 0.02


@pytest.fixture(scope="module")
def adapted(finetuned, tmp_path_factory):
  """A server of a language model with two adapters of it, and their folders by name."""
  workdir = str(tmp_path_factory.mktemp("adapted") / "run")
  train = dataclasses.replace(finetuned.config.train, epochs=1)
  config = dataclasses.replace(finetuned.config, methods=(Adapter(rank=2),), train=train)
  finetune.run(config, finetuned.data_dir, finetuned.pretrained, workdir, seeds=2)
  folders = {name: f"{workdir}/seed_{seed}" for seed, name in enumerate(("one", "two"))}
  adapters = [f"{name}={path}" for name, path in folders.items()]
  with running(finetuned.pretrained, adapters) as client:
    yield client, folders


def test_a_request_names_its_adapter(adapted):
  client, folders = adapted
  given = {}
  with ThreadPoolExecutor() as pool:
    for name, path in folders.items():
      expected = gpt_jax.load(path).classify(TEXTS)
      body = {"texts": TEXTS, "model": name}
      for answer in pool.map(client.post, ["/classify"] * 4, [body] * 4):
        assert answer.json()["model"] == name
        given[name] = [result["probabilities"] for result in answer.json()["results"]]
        assert given[name] == [pytest.approx(probabilities, abs=1e-6) for probabilities in expected]
  assert given["one"] != given["two"]
  ids = [model["id"] for model in client.http.get("/v1/models").json()["data"]]
  assert ids == ["tiny", "one", "two"]
  assert client.http.get("/health").json()["adapters"] == {
    name: ["barks", "meows"] for name in given
  }
  answer = client.post("/classify", {"texts": TEXTS})
  assert (answer.status_code, answer.json()["error"]["message"].count("model=two")) == (400, 1)
  for wanted in ("three", ["one"]):
    answer = client.post("/classify", {"texts": TEXTS, "model": wanted})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


def events(response):
  """The JSON values of a stream; checks its end."""
  assert response.headers["content-type"].startswith("text/event-stream")
  *values, end, rest = response.text.split("\n\n")
  assert (end, rest) == ("data: [DONE]", "")
  return [json.loads(value.removeprefix("data: ")) for value in values]


def test_labels_are_those_of_the_model(classifier):
  expected = classifier.model.classify(TEXTS)
  answer = classifier.post("/classify", {"texts": TEXTS})
  assert answer.status_code == 200
  for result, probabilities in zip(answer.json()["results"], expected, strict=True):
    assert result["probabilities"] == pytest.approx(probabilities, abs=1e-6)
    assert result["label"] == max(probabilities, key=probabilities.get)
  (one,) = classifier.post("/classify", {"texts": [[TEXTS[0]]]}).json()["results"]
  assert one["probabilities"] == pytest.approx(expected[0], abs=1e-6)


@pytest.mark.filterwarnings("ignore:.* longer than the context")
def test_a_text_that_is_cut_is_marked(classifier):
  texts = ["the cat sat on the mat " * 20, "the dog"]
  long, short = classifier.post("/classify", {"texts": texts}).json()["results"]
  assert long["truncated"] is True and "truncated" not in short


def test_embeddings_are_those_of_the_model(language):
  expected = language.model.embed(TEXTS)
  answer = language.post("/embed", {"texts": TEXTS}).json()
  np.testing.assert_allclose(answer["embeddings"], expected, atol=1e-5)


def test_completions_are_those_of_generate(language):
  settings = {"max_tokens": 9, "temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 5}
  expected = language.model.generate(TEXTS, **settings)
  answer = language.post("/v1/completions", {"prompt": TEXTS, **settings}).json()
  texts = [choice["text"] for choice in answer["choices"]]
  assert [prompt + text for prompt, text in zip(TEXTS, texts, strict=True)] == expected
  assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
  assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
  tokens = sum(len(ids) for ids in language.model.loaded.tokenizer.encode_many(TEXTS))
  usage = {"prompt_tokens": tokens, "completion_tokens": 27, "total_tokens": tokens + 27}
  assert answer["usage"] == usage
  assert (answer["object"], answer["model"]) == ("text_completion", "tiny")


def test_a_stream_is_the_same_text_in_pieces(language):
  body = {"prompt": TEXTS[:2], "n": 2, "max_tokens": 13, "seed": 3, "logprobs": 2}
  whole = language.post("/v1/completions", body).json()
  options = {"stream": True, "stream_options": {"include_usage": True}}
  *pieces, last = events(language.post("/v1/completions", {**body, **options}))
  assert (last["choices"], last["usage"]) == ([], whole["usage"])
  assert {json.dumps(piece["usage"]) for piece in pieces} == {"null"}
  assert len(pieces) >= 4
  for choice in whole["choices"]:
    own = [p["choices"][0] for p in pieces if p["choices"][0]["index"] == choice["index"]]
    assert "".join(piece["text"] for piece in own) == choice["text"]
    assert own[-1]["finish_reason"] == "length"
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
      joined = [value for piece in own for value in piece["logprobs"][name]]
      assert len(joined) == 13
      if name in ("tokens", "text_offset"):
        assert joined == choice["logprobs"][name]
  assert len({choice["text"] for choice in whole["choices"]}) == 4


def test_log_probs_are_those_of_the_text(language):
  body = {"prompt": TEXTS[0], "max_tokens": 8, "temperature": 0, "logprobs": 3}
  (choice,) = language.post("/v1/completions", body).json()["choices"]
  scored = language.model.log_probs(TEXTS[0] + choice["text"])
  np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], scored.log_probs[-8:], atol=1e-4)
  assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
  found = choice["logprobs"]
  for best, own in zip(found["top_logprobs"], found["token_logprobs"], strict=True):
    assert len(best) == 3 and max(best.values()) == pytest.approx(own)  # greedy
  offsets = found["text_offset"]
  assert offsets[0] == len(TEXTS[0]) and offsets == sorted(offsets)  # from the prompt's beginning


def test_log_probs_of_an_unlikely_token_and_of_a_prompt_that_decodes_otherwise(language):
  body = {"prompt": "the  cat ", "max_tokens": 9, "temperature": 2, "seed": 1, "logprobs": 2}
  found = language.post("/v1/completions", body).json()["choices"][0]["logprobs"]
  assert found["text_offset"][0] == len("the  cat ")
  for own, best in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
    assert own in best.values() and len(best) in (2, 3)
  assert 3 in map(len, found["top_logprobs"])


def choice_of(ids, tokenizer, stop, prompt="the "):
  text = Text(tokenizer.encode(prompt).tolist(), Sampling(len(ids)), ends=(tokenizer.end_id,))
  request = Request([text], [len(prompt)], 0, stop, 1, False, False, {})
  return text, Choice(0, request, tokenizer), [Token(i, -1.0, [(i, -1.0)]) for i in ids]


@pytest.mark.parity("released")
@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12), st.lists(st.integers(0, 258), max_size=8), st.data())
def test_tokens_join_to_the_text_however_it_comes(written, further, data):
  """Bytes, characters of several tokens, an end token, stop texts; in one piece or in several."""
  tokenizer = GPT2Tokenizer((*BYTES, "Ġt", "he", END_OF_TEXT), (("Ġ", "t"), ("h", "e")))
  ids = [*tokenizer.encode(written).tolist(), *further] or [65]
  stop = data.draw(st.sampled_from([[], ["e"], ["\n", "the"]]))
  results = []
  for sizes in ([len(ids)], data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))):
    text, choice, tokens = choice_of(ids, tokenizer, stop)
    pieces, at = [], 0
    while choice.finish is None:
      for token in tokens[at : at + sizes[len(pieces) % len(sizes)]]:
        text.added += [] if text.done else [token]
      at += sizes[len(pieces) % len(sizes)]
      pieces.append(choice.update())
    results.append(join_pieces(pieces))
    found = results[-1]["logprobs"]
    assert "".join(found["tokens"]) == results[-1]["text"]
    begins = np.cumsum([0, *map(len, found["tokens"])])[:-1] + len("the ")
    assert found["text_offset"] == begins.tolist()
    assert len(found["top_logprobs"]) == len(found["token_logprobs"]) == len(found["tokens"])
  assert results[0] == results[1]
  if not stop:
    end = ids.index(258) if 258 in ids else len(ids)
    assert results[0]["text"] == tokenizer.decode(ids[:end])
    assert results[0]["finish_reason"] == ("length" if end == len(ids) else "stop")
    assert choice.tokens == end


@pytest.mark.parity("released")
@pytest.mark.parametrize("size", [1, 2, 4, 50])
def test_no_part_of_a_stop_text_is_sent_before_its_last_character_is_whole(size):
  tokenizer = GPT2Tokenizer((*BYTES, END_OF_TEXT), ())
  ids, pieces = tokenizer.encode("a\n\u554f: b").tolist(), []
  text, choice, tokens = choice_of(ids, tokenizer, ["\n\u554f:"])
  while choice.finish is None:
    text.added += tokens[len(text.added) : len(text.added) + size]
    pieces.append(choice.update())
  assert (join_pieces(pieces)["text"], choice.finish) == ("a", "stop")


def test_the_stop_and_the_usage_do_not_depend_on_how_far_the_model_is(language, monkeypatch):
  body = {"prompt": "the", "max_tokens": 40, "seed": 1, "logprobs": 1}
  (full,) = language.post("/v1/completions", body).json()["choices"]
  whole = full["text"]
  offsets = [offset - len("the") for offset in full["logprobs"]["text_offset"]]
  # "over" begins before "within", and ends later.
  over, within = whole[offsets[20] - 1 : offsets[24]], whole[offsets[21] : offsets[22]]
  advance = language.engine._stream.advance
  for stop in ([over], [within], [over, within]):
    ends = (whole[:end] for end in offsets)
    count, text = next((i, text) for i, text in enumerate(ends) if any(s in text for s in stop))
    text = text[: min(at for s in stop if (at := text.find(s)) >= 0)]
    for steps in (1, 4, 32):
      monkeypatch.setattr(language.engine._stream, "advance", lambda steps=steps: advance(steps))
      answer = language.post("/v1/completions", {**body, "stop": stop}).json()
      assert answer["usage"]["completion_tokens"] == count
      streaming = {"stop": stop, "stream": True, "stream_options": {"include_usage": True}}
      *pieces, last = events(language.post("/v1/completions", {**body, **streaming}))
      assert last["usage"] == answer["usage"]
      for parts in (answer["choices"], [piece["choices"][0] for piece in pieces]):
        assert "".join(part["text"] for part in parts) == text
        assert parts[-1]["finish_reason"] == "stop"
        assert "".join(token for part in parts for token in part["logprobs"]["tokens"]) == text


COMPLETE, CLASSIFY, EMBED = "/v1/completions", "/classify", "/embed"
BAD = [
  ("{", "the body is not JSON: "),
  ("\xff", "the body is not JSON: "),
  ("[1]", "the body should be one JSON object"),
  ({}, "prompt: nothing should be a string or a list of strings"),
  ({"prompt": []}, "prompt: 0 entries; give 1 to 16"),
  ({"prompt": "a", "max_tokens": True}, "max_tokens: True should be"),
  ({"prompt": "a", "best_of": True}, "best_of is not supported"),
  ({"prompt": ["a"] * 17}, "prompt: 17 entries; give 1 to 16"),
  ({"prompt": ["a", None]}, "prompt[1]: nothing should be a string"),
  ({"prompt": ""}, "prompt[0]: the prompt is empty"),
  ('{"prompt": "a\\ud800"}', "prompt[0]: has half of a surrogate pair"),
  ({"prompt": "the cat " * 40}, "the model's context of 64"),
  ({"prompt": "a", "max_tokens": 65}, "max_tokens: 65 should be an integer from 1 to"),
  ({"prompt": "a", "max_tokens": 64}, "are more than the model's context of 64"),
  ({"prompt": "a", "max_tokens": 10**30}, "an integer of more than 20 digits should"),
  ('{"prompt": "a", "seed": 1' + "0" * 5000 + "}", "the body is not JSON: "),
  ('{"prompt": "a", "temperature": NaN}', "temperature: a number that is not finite"),
  ({"prompt": "a", "temperature": -1}, "temperature: -1 should be a number from 0 t"),
  ({"prompt": "a", "top_p": 0}, "top_p: 0 should be a number above 0 to 1"),
  ({"prompt": "a", "top_k": -1}, "top_k: -1 should be"),
  ({"prompt": "a", "seed": -1}, "seed: -1 should be"),
  ({"prompt": "a", "n": 17}, "n: 17 should be an integer from 1 to 16"),
  ({"prompt": ["a", "b"], "n": 9}, "n: 2 prompts x 9 are more than 16 texts"),
  ({"prompt": "a", "logprobs": 6}, "logprobs: 6 should be an integer from 0 to 5"),
  ({"prompt": "a", "stop": ["a"] * 5}, "stop: 5 entries; give 1 to 4"),
  ({"prompt": "a", "stream": "yes"}, "stream: 'yes' should be true or false"),
  ({"prompt": "a", "stream_options": {}}, "stream_options: should be"),
  ({"prompt": "a", "best_of": 3}, "best_of is not supported"),
  ({"prompt": "a", "user": ["a"]}, "user: ['a'] should be a string"),
  ({"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}}, "should be {"),
  ({"prompt": "a", "maxtokens": 3}, "maxtokens: no such field; the fields are be"),
  ('{"prompt": "a", "\\ud800x": 3}', "\\ud800x: no such field; the fields are be"),
]
ELSEWHERE = [
  (COMPLETE, {"prompt": "a", "model": "gpt-9"}, 404, "model: 'gpt-9' is not here; this server"),
  (EMBED, {"texts": ["a"] * 257}, 400, "texts: 257 entries; give 1 to 256"),
  (EMBED, {"texts": ["the cat " * 40]}, 400, "the model's context is 64; give a part of it"),
  (EMBED, {"texts": [""]}, 400, "text 1: empty; give at least one word"),
  (EMBED, "x" * (2**20 + 1), 413, "the body is larger than 1,048,576 bytes"),
  (CLASSIFY, {"texts": ["a"]}, 400, "a language model without a head; fine-tune it first"),
]
BAD_ROWS = [
  ({"texts": ["a", ""]}, "texts[1]: empty; give at least one word"),
  ({"texts": [["a", "b"]]}, "texts[0]: 2 columns; a text of this task is a list of 1"),
  ({"texts": [None]}, "texts[0]: nothing should be a string"),
  ({"texts": []}, "texts: give a list of 1 to 256 texts"),
  ({"texts": {"a": 1}}, "texts: give a list of 1 to 256 texts"),
  ({"texts": ["a"], "top_k": 2}, "top_k: no such field; the fields are model, texts"),
]
PAIRS = TableTask(columns=("a", "b"), label="c", labels=("x", "y"), transform="entailment")


def test_one_of_two_texts_may_be_empty_where_they_are_joined():
  def read(cells, task):
    return _read_rows(Fields(json.dumps({"texts": [cells]}).encode()), task.build(""))

  assert read(["", "the cat"], PAIRS) == [["", "the cat"]]
  compared = dataclasses.replace(PAIRS, transform="similarity")
  for cells, task in ((["", " "], PAIRS), (["", "the cat"], compared)):
    with pytest.raises(Refusal, match=r"texts\[0\]: empty; give at least one word"):
      read(cells, task)


ALL_BAD = [
  *(("language", COMPLETE, body, 400, message) for body, message in BAD),
  *(("language", *row) for row in ELSEWHERE),
  *(("classifier", CLASSIFY, body, 400, message) for body, message in BAD_ROWS),
]


@pytest.mark.parametrize("server, path, body, status, message", ALL_BAD, ids=range(len(ALL_BAD)))
def test_a_bad_request_is_one_sentence(request, server, path, body, status, message):
  client = request.getfixturevalue(server)
  if isinstance(body, str):
    answer = client.http.post(path, content=body.encode("latin-1"), headers=JSON)
  else:
    answer = client.post(path, body)
  assert answer.status_code == status, answer.text
  error = answer.json()["error"]
  assert message in error["message"] and "\n" not in error["message"]
  assert set(error) == {"message", "type", "param", "code"}


def test_paths_methods_and_hosts_that_are_not_served(language):
  assert language.http.get("/nothing").status_code == 404
  assert language.http.get("/nothing").json()["error"]["message"] == "no such path; try /"
  assert language.http.get("/classify").status_code == 405
  evil = language.http.get("/health", headers={"Host": "evil.example"})
  assert evil.status_code == 400 and "tiny" not in evil.text


OTHER = "pages of other web sites may not use this server"


@pytest.mark.parametrize(
  "headers, status, message",
  [
    ({"Origin": "https://evil.example"}, 403, f"Origin 'https://evil.example': {OTHER}"),
    ({"Origin": "http://localhost:3000"}, 403, f"Origin 'http://localhost:3000': {OTHER}"),
    ({"Origin": "null"}, 403, f"Origin 'null': {OTHER}"),
    ({"Sec-Fetch-Site": "cross-site"}, 403, f"Sec-Fetch-Site 'cross-site': {OTHER}"),
    ({"Content-Type": "text/plain"}, 415, "Content-Type 'text/plain' should be 'application/json'"),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "should be 'application/json'"),
    ({"Content-Type": ""}, 415, "Content-Type '' should be 'application/json'"),
    ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, 200, ""),
    ({"Content-Type": "Application/JSON; charset=utf-8"}, 200, ""),
  ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/embed"])
def test_pages_of_other_sites_are_refused(language, path, headers, status, message):
  body = b'{"texts": ["a"]}' if path == "/embed" else b'{"prompt": "a", "max_tokens": 1}'
  answer = language.http.post(path, content=body, headers={**JSON, **headers})
  assert answer.status_code == status, answer.text
  if status != 200:
    assert message in answer.json()["error"]["message"]


def test_what_the_server_tells_about_itself(language, classifier):
  health = classifier.http.get("/health").json()
  assert (health["status"], health["labels"]) == ("ok", ["barks", "meows"])
  (model,) = language.http.get("/v1/models").json()["data"]
  assert (model["id"], model["object"]) == ("tiny", "model")
  before = language.http.get("/metrics").text
  language.post("/v1/completions", {"prompt": "the", "max_tokens": 7})
  after = language.http.get("/metrics").text

  def value(text, name):
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0

  requests = 'gpt_jax_requests_total{route="/v1/completions",status="200"}'
  for name, more in (("gpt_jax_generated_tokens_total", 7), (requests, 1)):
    assert value(after, name) == more + value(before, name)
  page = language.http.get("/")
  assert page.headers["content-type"].startswith("text/html")
  assert not re.search(r"(src|href)=[\"']?(https?:)?//", page.text)


def test_requests_of_several_clients_are_one_batch(classifier, monkeypatch):
  sizes = []
  call = classifier.model.classify

  def slow(texts):
    sizes.append(len(texts))
    time.sleep(0.1)  # meanwhile the others wait
    return call(texts)

  texts = [f"the {'cat' if i % 2 else 'dog'} sat" for i in range(12)]
  expected = call(texts)
  monkeypatch.setattr(classifier.model, "classify", slow)
  with ThreadPoolExecutor(12) as pool:
    answers = list(pool.map(lambda t: classifier.post("/classify", {"texts": [t]}), texts))
  for answer, probabilities in zip(answers, expected, strict=True):
    assert answer.json()["results"][0]["probabilities"] == pytest.approx(probabilities, abs=1e-5)
  assert sum(sizes) == 12 and len(sizes) < 6


def test_a_request_that_fails_leaves_the_others_of_its_batch(classifier, monkeypatch, caplog):
  call, begun = classifier.model.classify, threading.Event()

  def fail(texts):
    if not begun.is_set():
      begun.set()
      time.sleep(0.2)
    if "the dog" in texts:
      raise RuntimeError("a bug")
    return call(texts)

  monkeypatch.setattr(classifier.model, "classify", fail)
  with ThreadPoolExecutor(4) as pool:
    first = pool.submit(classifier.post, "/classify", {"texts": ["the sea"]})
    begun.wait(10)
    texts = ["the cat", "the dog", "the mat"]
    rest = [pool.submit(classifier.post, "/classify", {"texts": [t]}) for t in texts]
    codes = [answer.result().status_code for answer in (first, *rest)]
  assert codes == [200, 200, 500, 200]
  assert "a bug" in caplog.text
  assert "a bug" not in rest[1].result().text


def test_a_full_queue_is_refused_and_closing_refuses_the_rest(finetuned):
  client = make_client(f"{finetuned.workdir}/seed_0")  # whose engine never starts
  results = []
  client.engine.submit([Job("classify", results.append, ["the cat"])] * MAX_QUEUE)
  answer = client.post("/classify", {"texts": ["the cat"]})
  assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
  assert "512 texts are waiting already" in answer.json()["error"]["message"]
  client.engine.close()
  assert len(results) == MAX_QUEUE and {error.status for error in results} == {503}
  answer = client.post("/classify", {"texts": ["the cat"]})
  assert answer.json()["error"]["message"] == "the server is stopping"


def test_masks_are_filled_as_the_model_does(make_run, tiny_tokenizer, tmp_path, language):
  tokenizer = tiny_tokenizer.with_special("mask")
  client = make_client(make_masked(make_run, tmp_path / "run", tokenizer, 16))
  client.engine.warm_up()
  client.engine.start()
  texts = ["the [MASK] sat on the [MASK]", "a [MASK]"]
  answer = client.post("/fill-mask", {"texts": texts, "top_k": 3}).json()
  assert answer["model"] == "tiny" and client.http.get("/health").json()["fills"]
  for masks, expected in zip(answer["results"], client.model.fill_mask(texts, 3), strict=True):
    assert [len(mask) for mask in masks] == [3] * len(expected)
    for mask, fillings in zip(masks, expected, strict=True):
      assert [entry["piece"] for entry in mask] == [filling.piece for filling in fillings]
      found = [entry["probability"] for entry in mask]
      assert found == pytest.approx([filling.probability for filling in fillings], rel=1e-4)
  assert len(client.post("/fill-mask", {"texts": "a [MASK]"}).json()["results"][0][0]) == 5
  for body, message in (
    ({"texts": ["the cat"]}, "text 1: has no [MASK]"),
    ({"texts": ["a [MASK]"], "top_k": 101}, "top_k: 101 should be an integer from 1 to 100"),
    ({"texts": ["a [MASK]"], "top": 1}, "top: no such field"),
  ):
    answer = client.post("/fill-mask", body)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]
  answer = client.post("/v1/completions", {"prompt": "the"})
  assert answer.status_code == 400
  assert "bidirectional attention does not generate" in answer.json()["error"]["message"]
  client.engine.close()
  answer = language.post("/fill-mask", {"texts": ["a [MASK]"]})
  assert answer.status_code == 400 and "no masked-LM head" in answer.json()["error"]["message"]


# ------------------------------------------------------------------------------------- Connections


@contextlib.contextmanager
def serving(app, protocol):
  """Serves an ASGI application on a free port of this machine, in a thread."""
  import uvicorn

  server = uvicorn.Server(
    uvicorn.Config(app, http=protocol, loop="asyncio", lifespan="off", log_config=None)
  )
  with socket.create_server(("127.0.0.1", 0)) as listener:
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
      yield listener.getsockname()
    finally:
      server.should_exit = True
      thread.join(20)


def post_bytes(path, body):
  """A request as it is sent; a body is bytes or JSON."""
  data = body if isinstance(body, bytes) else json.dumps(body).encode()
  head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
  head += "Content-Type: application/json\r\n"
  return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def test_slow_clients_are_cut_off():
  ended = threading.Event()

  async def app(scope, receive, send):
    head = {"type": "http.response.start", "status": 200, "headers": []}
    await send(head)
    body = {"type": "http.response.body", "body": b"x" * 2**20, "more_body": True}
    while not ended.is_set():
      await send(body)
      if scope["path"] == "/short":
        break  # one piece only
    await send({"type": "http.response.body"})

  with serving(app, serve.make_protocol(0.3, 0.3, 9)) as address:
    for beginning in (b"", b"GET / HTTP/1.1\r\nHost"):  # headers that do not end
      with socket.create_connection(address, timeout=20) as client:
        client.sendall(beginning)
        with contextlib.suppress(ConnectionResetError):
          assert client.recv(100) == b""
    with socket.create_connection(address, timeout=20) as client:  # no reader
      client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
      time.sleep(1.5)
      received = 0
      with contextlib.suppress(ConnectionResetError):
        while received < 2**27 and (data := client.recv(2**20)):
          received += len(data)
      assert 0 < received < 2**26
    ended.set()
    with socket.create_connection(address, timeout=20) as client:  # and a good one is served
      client.sendall(b"GET /short HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
      assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_connections_beyond_the_limit_are_refused_as_json(language):
  request = post_bytes("/embed", {"texts": ["the cat"]})
  with serving(language.http.app, serve.make_protocol(20, 20, 2)) as address:
    with socket.create_connection(address, 20) as first, socket.create_connection(address, 20):
      with socket.create_connection(address, 20) as third:
        third.sendall(request)
        head, _, body = read_all(third).partition(b"\r\n\r\n")
      assert head.startswith(b"HTTP/1.1 503") and b"\r\nretry-after: 1\r\n" in head.lower()
      error = json.loads(body)["error"]["message"]
      assert error == "2 connections are open already; try again soon"
      first.sendall(request)  # and those that are open are served
      assert read_all(first).startswith(b"HTTP/1.1 200")
    with socket.create_connection(address, 20) as client:  # a large body is refused without a reset
      client.sendall(post_bytes("/embed", b"x" * 2**23))
      answer = read_all(client)
  assert answer.startswith(b"HTTP/1.1 413") and b"larger than 1,048,576 bytes" in answer


def read_all(client):
  """What a server sends until it closes the connection."""
  return b"".join(iter(lambda: client.recv(2**16), b""))


@pytest.mark.parametrize(
  "path, body",
  [
    ("/classify", {"texts": ["the cat"]}),
    ("/v1/completions", {"prompt": "the cat", "n": 3}),
    ("/v1/completions", {"prompt": "the cat", "stream": True}),
  ],
)
def test_the_work_of_a_client_that_leaves_is_dropped(finetuned, path, body):
  from uvicorn.protocols.http.h11_impl import H11Protocol

  client = make_client(f"{finetuned.workdir}/seed_0")  # whose engine never starts

  def wait_for(count):
    deadline = time.monotonic() + 20
    while client.engine.waiting != count:
      assert time.monotonic() < deadline, client.engine.waiting
      time.sleep(0.01)

  with serving(client.http.app, H11Protocol) as (_, port):
    with socket.create_connection(("127.0.0.1", port)) as leaving:
      leaving.sendall(post_bytes(path, body))
      wait_for(body.get("n", 1))
    wait_for(0)


def test_a_text_whose_client_leaves_is_not_continued(language):
  seen = []

  def leave(text):
    seen.append(len(text.added))
    language.engine.drop([job])

  job = Job("complete", leave, text=Text([3, 4], Sampling(max_tokens=40)))
  language.engine.submit([job])
  answer = language.post("/v1/completions", {"prompt": "the", "max_tokens": 30})
  assert answer.json()["usage"]["completion_tokens"] == 30
  assert seen == [4] and len(job.text.added) == 4


# ------------------------------------------------------------------------------- A whole process


@contextlib.contextmanager
def process_of(checkpoint):
  """The program: .port, .pid, .wait(), .send_signal()."""
  flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
  command = [sys.executable, "launch/serve.py", f"--checkpoint={checkpoint}", "--port=0"]
  env = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
  process = subprocess.Popen(command, cwd=ROOT, env=env, **pipes)
  try:
    lines = []
    while not lines or "ready" not in lines[-1]:
      assert select.select([process.stdout], [], [], 300)[0], lines
      lines.append(process.stdout.readline())
      assert lines[-1], process.stderr.read()
    process.port = int(re.search(r":(\d+)/", lines[-1])[1])
    yield process
  finally:
    process.kill()
    process.communicate()


async def call(port, path, body, read=True):
  """POSTs and returns (status, body); without read, the open (reader, writer)."""
  reader, writer = await asyncio.open_connection("127.0.0.1", port)
  writer.write(post_bytes(path, body))
  if not read:
    return reader, writer
  answer = await asyncio.wait_for(reader.read(), 240)
  writer.close()
  head, _, rest = answer.partition(b"\r\n\r\n")
  return int(head.split()[1]), rest


def resident(pid):
  """Bytes of memory of a process."""
  return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid):
  return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.slow
def test_a_hundred_clients(finetuned, request):
  """Good requests among bad bodies, slow readers and clients that leave; then SIGTERM at work."""
  checkpoint = f"{finetuned.workdir}/seed_0"
  model = gpt_jax.load(checkpoint)
  texts = [f"the {'cat' if i % 3 else 'dog'}{' sat on the mat' * (i % 4)}" for i in range(12)]
  labels = model.classify(texts)
  continued = model.generate(texts[:4], max_tokens=12, seed=7)
  rounds = max(1, round(2 * request.config.getoption("--budget")))
  counts = {"equal": 0, "refused": 0, "left": 0, "busy": 0}

  async def client(port, rng):
    for _ in range(rounds):
      kind = rng.choice(("classify", "classify", "complete", "bad", "leave", "slow"))
      if kind == "classify":
        i = rng.randrange(10)
        status, body = await call(port, "/classify", {"texts": texts[i : i + 2]})
        if status == 200:
          found = [result["probabilities"] for result in json.loads(body)["results"]]
          assert found == [pytest.approx(row, abs=1e-4) for row in labels[i : i + 2]]
      elif kind == "complete":
        i = rng.randrange(4)
        settings = {"prompt": texts[i], "max_tokens": 12, "seed": 7 + i}
        status, body = await call(port, "/v1/completions", settings)
        if status == 200:
          assert texts[i] + json.loads(body)["choices"][0]["text"] == continued[i]
      elif kind == "bad":
        data = rng.choice((b"{", b"\xff" * 100, b'{"texts": [1e999]}', b'{"texts": ' + b"[" * 9999))
        status, body = await call(port, "/classify", data)
        assert status == 400 and json.loads(body)["error"]["message"]
        counts["refused"] += 1
        continue
      else:
        settings = {"prompt": "the cat", "max_tokens": 40, "stream": True}
        reader, writer = await call(port, "/v1/completions", settings, read=False)
        await asyncio.sleep(rng.random() / 4)
        if kind == "slow":
          while await reader.read(50):
            await asyncio.sleep(0.01)
        writer.close()
        counts["left"] += 1
        continue
      assert status in (200, 503)
      counts["equal" if status == 200 else "busy"] += 1

  async def crowd(port, seed):
    await asyncio.gather(*(client(port, random.Random(seed * 1000 + i)) for i in range(100)))

  with process_of(checkpoint) as process:
    asyncio.run(crowd(process.port, 0))
    before, open_before = resident(process.pid), open_files(process.pid)
    asyncio.run(crowd(process.port, 1))
    assert resident(process.pid) - before < 64 << 20, counts
    deadline = time.monotonic() + 20  # until those that left are forgotten
    while True:
      status, _ = asyncio.run(call(process.port, "/embed", {"texts": ["the cat"]}))
      if status == 200 or time.monotonic() > deadline:
        break
    assert status == 200 and process.poll() is None
    assert open_files(process.pid) <= open_before + 2  # this client's among them
    assert end_at_work(process, signal.SIGTERM) == 143
    assert "Traceback" not in process.stderr.read()
  assert counts["equal"] > 50 * rounds and counts["refused"] and counts["left"]


def end_at_work(process, number):
  """Sends a signal while clients wait for their streams; returns the exit code."""

  async def interrupt():
    body = {"prompt": ["the"] * 16, "max_tokens": 60, "stream": True}
    streams = [await call(process.port, "/v1/completions", body, read=False) for _ in range(5)]
    await streams[0][0].read(10)
    process.send_signal(number)
    return [await asyncio.wait_for(reader.read(), 30) for reader, _ in streams]

  # What runs may end; the rest is told.
  for answer in asyncio.run(interrupt()):
    assert b"[DONE]" in answer or b"the server is stopping" in answer
  return process.wait(30)


def reset_streams(port, count):
  """Clients that reset their connection while they receive a stream of many texts."""
  body = {"prompt": ["the"] * 16, "max_tokens": 60, "stream": True}
  linger = struct.pack("ii", 1, 0)  # so that close() resets
  for _ in range(count):
    with socket.create_connection(("127.0.0.1", port), 20) as client:
      client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
      client.sendall(post_bytes("/v1/completions", body))
      client.recv(10)


def test_ctrl_c_ends_the_server_while_it_works(finetuned):
  with process_of(finetuned.pretrained) as process:
    with urllib.request.urlopen(f"http://localhost:{process.port}/") as page:
      assert page.headers["X-Frame-Options"] == "DENY"
      assert page.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
      assert page.headers["X-Content-Type-Options"] == "nosniff"
    reset_streams(process.port, 20)
    assert end_at_work(process, signal.SIGINT) == 130
    assert process.stderr.read() == "interrupted\n"


def test_a_port_in_use_is_refused_and_a_missing_package_named(finetuned, monkeypatch):
  with socket.create_server(("127.0.0.1", 0)) as listener:
    port = listener.getsockname()[1]
    told = f"--port={port}: Address already in use; choose another"
    refused(told, serve.run, finetuned.pretrained, port)
  monkeypatch.setitem(sys.modules, "uvicorn", None)
  refused(r"needs uvicorn: pip install 'gpt_jax\[serve\]'", serve.run, finetuned.pretrained)
