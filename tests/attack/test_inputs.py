"""Inputs that nobody planned for: config overrides, JSON configs, tables, corpora, prompts. Each is
accepted or refused with one line.
"""

import dataclasses
import gzip
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from outcomes import outcome_of

import gpt_jax
from gpt_jax.apps.corpus.sources import parquet
from gpt_jax.config import from_json, to_json
from gpt_jax.data.sources import source, table, utf8
from gpt_jax.programs.config_files import override_all
from gpt_jax.programs.finetune import FinetuneConfig
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.programs.pretrain import PretrainConfig
from gpt_jax.tasks.readers import Table, read_table

pytestmark = pytest.mark.attack
texts = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates too
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([0, -1, 10**20, 1e308]))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
trees = st.recursive(
  scalars,
  lambda node: st.one_of(st.lists(node, max_size=4), st.dictionaries(texts, node)),
  max_leaves=12,
)


def attack(strategy, count, attempt):
  """The outcomes of attempt(value) for `count` values of the strategy."""
  outcomes = []

  @seed(0)
  @settings(
    max_examples=count,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
  )
  @given(strategy)
  def run(value):
    outcome = outcome_of(lambda: attempt(value), None, repr(value)[:200])
    # What is accepted has no expected value here.
    outcomes.append("harmless" if outcome.endswith("not noticed") else outcome)

  run()
  return outcomes


def names_of(config, prefix=""):
  for field in dataclasses.fields(config):
    yield prefix + field.name
    if dataclasses.is_dataclass(getattr(config, field.name)):
      yield from names_of(getattr(config, field.name), f"{prefix}{field.name}.")


@pytest.mark.parametrize("config", [PretrainConfig(), FinetuneConfig(), PrepareConfig()])
def test_overrides(config, attempts, ledger):
  name = st.one_of(st.sampled_from(sorted(names_of(config))), texts)
  value = st.one_of(texts, numbers.map(str), st.sampled_from(["none", "true", "1,2", "()"]))
  changes = st.lists(st.tuples(name, value), min_size=1, max_size=3)
  ledger("fuzzed overrides", attack(changes, attempts(150), lambda c: override_all(config, c)))


@pytest.mark.parametrize("config", [PretrainConfig(), FinetuneConfig()])
def test_json_configs(config, attempts, ledger):
  """A leaf or a group replaced by something else, or something else altogether."""
  whole = to_json(config)
  paths = [path for path in _paths(whole) if path]

  def changed(path, value):
    tree = json.loads(json.dumps(whole))
    node = tree
    for name in path[:-1]:
      node = node[name]
    node[path[-1]] = value
    return tree

  one = st.builds(changed, st.sampled_from(paths), st.one_of(trees, st.just(whole)))
  ledger("fuzzed JSON configs", attack(st.one_of(one, trees), attempts(150), from_json))


def _paths(node, path=()):
  yield path
  if isinstance(node, dict):
    for name, value in node.items():
      yield from _paths(value, (*path, name))


TABLES = {
  ".tsv": b"text\tlabel\nthe cat\tmeows\nthe dog\tbarks\n",
  ".csv": b'text,label\n"the ""cat""",meows\nthe dog,barks\n',
  ".jsonl": b'{"text": "the cat", "label": "meows"}\n{"text": "the dog", "label": 1}\n',
}


def mutated(content):
  """The content with a few pieces replaced by bytes, or by pieces of itself."""

  def apply(edits):
    result = content
    for where, length, piece in edits:
      at = where % (len(result) + 1)
      result = result[:at] + piece + result[at + length :]
    return result

  known = [b"\t", b"\n", b"\r", b'"', b",", b"{", b"\0", b"\xff", b"\xef\xbb\xbf", content]
  piece = st.one_of(st.binary(max_size=8), st.sampled_from(known))
  edit = st.tuples(st.integers(0, 10**6), st.integers(0, 20), piece)
  return st.one_of(st.lists(edit, min_size=1, max_size=5).map(apply), st.binary(max_size=200))


@pytest.mark.parametrize("suffix", TABLES)
def test_tables(suffix, attempts, ledger):
  def read(content):
    with tempfile.TemporaryDirectory() as folder:
      path = Path(folder, f"table{suffix}")
      path.write_bytes(content)
      list(Table(str(path)).rows(("text",), blanks=True))
      list(read_table(str(path), ("text",), "label"))

  ledger("fuzzed tables", attack(mutated(TABLES[suffix]), attempts(100), read))


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".txt.gz", ".jsonl.gz", ".parquet"])
def test_corpora(suffix, attempts, ledger):
  content = b'{"text": "the cat sat on the mat"}\n{"text": "the dog"}\n'
  if suffix == ".parquet":
    file, texts = io.BytesIO(), pytest.importorskip("pyarrow").table({"text": ["the cat", "sat"]})
    pytest.importorskip("pyarrow.parquet").write_table(texts, file, store_schema=False)
    content = file.getvalue()

  def read(content):
    with tempfile.TemporaryDirectory() as folder:
      path = Path(folder, f"corpus{suffix}")
      path.write_bytes(content)
      list(source.documents(str(path)))

  ledger("fuzzed corpora", attack(mutated(content), attempts(60), read))


def parquet_bomb(path):
  """One text for all rows of a file."""
  pyarrow = pytest.importorskip("pyarrow")
  texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 50), ["a" * 5000])
  pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": texts}), path)


def zstd_bomb(path):
  path.write_bytes(pytest.importorskip("zstandard").compress(b" " * 5000))


BOMBS = {
  "a.jsonl.gz": (
    lambda path: path.write_bytes(gzip.compress(b"[" * 5000)),
    ":1: the line has more",
  ),
  "a.jsonl.zst": (zstd_bomb, ":1: the line has more than 1,000 bytes"),
  "a.csv": (
    lambda path: path.write_text('text\n"' + "a\n" * 5000),
    ":2: the row has more than 1,000",
  ),
  "a.parquet": (parquet_bomb, ": row group 0, row 0: 5,000 bytes of text, more than the limit"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_of_much_content(name, tmp_path, launch, monkeypatch):
  for module, limit in ((utf8, "LINE"), (table, "LINE"), (parquet, "CELL")):
    monkeypatch.setattr(module, f"MAX_{limit}", 1000)
  write, fault = BOMBS[name]
  write(tmp_path / name)
  code, _, errors = launch("prepare", f"--source={tmp_path}/{name}", f"--out={tmp_path}/out")
  *_, line = errors.splitlines()
  assert (code, line.startswith(f"error: {tmp_path}/{name}{fault}")) == (2, True), errors
  assert [file.name for file in tmp_path.iterdir()] == [name]


def test_texts_are_encoded_and_decoded(tiny_tokenizer, attempts, ledger):
  def encode(text):
    ids = tiny_tokenizer.encode(text)
    assert ids.size == 0 or 0 <= ids.min() <= ids.max() < tiny_tokenizer.vocab_size
    tiny_tokenizer.decode(ids)

  ledger("fuzzed texts, tokenizer", attack(texts, attempts(200), encode))


def test_prompts(finetuned, attempts, ledger):
  model = gpt_jax.load(finetuned.pretrained)
  settings = st.fixed_dictionaries(
    {
      "prompts": st.one_of(texts, st.lists(texts, max_size=3)),
      "max_tokens": st.integers(-2, 8),
      "temperature": st.one_of(st.floats(), st.sampled_from([0.0, 1.0])),
      "top_k": st.integers(-1, 500),
      "top_p": st.floats(),
      "seed": st.integers(-(2**40), 2**40),
    }
  )
  ledger("fuzzed prompts", attack(settings, attempts(25), lambda s: model.generate(**s) and None))
  ledger("fuzzed prompts", attack(texts, attempts(25), lambda t: model.log_probs(t) and None))


def test_texts_are_classified(finetuned, attempts, ledger):
  model = gpt_jax.load(f"{finetuned.workdir}/seed_0")
  outcomes = attack(texts, attempts(25), lambda t: model.classify(t) and None)
  ledger("fuzzed texts, classifier", outcomes)
