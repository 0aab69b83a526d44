"""Back-translation: pairs of translations and the lines they are of, and training on them."""

import dataclasses
import random

import pytest
from refused import refused
from shared_trainers import one_device  # noqa: F401
from tiny_runs import DICTIONARY, write_translations

from gpt_jax.apps.backtranslate import backtranslate
from gpt_jax.apps.backtranslate.backtranslate import noised, why_left_out
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.models.encoder_decoder import T5Config
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import finetune
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.tasks.named import task_named
from gpt_jax.tasks.pairs import PairsTask
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.optimizer import OptimConfig

pytest.importorskip("sacrebleu")
CONFIG = FinetuneConfig(
  task=PairsTask(source="de", target="en"),
  batch_size=16,
  trunk=T5Config(0, 48, 1, 32, 2, 16, 64, version="1.1", residual_dropout=0.0),
  optim=OptimConfig("adafactor", 0.05, "linear", warmup_steps=4, clip_norm=0.0),
  train=TrainConfig(epochs=32, log_every=64, evaluate_every=256, keep_checkpoints=2),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Pairs, word for word by a dictionary, and a text of the target language."""
  folder, rng = tmp_path_factory.mktemp("pairs"), random.Random(0)
  write_translations(folder, rng)
  lines = [" ".join(rng.choices(list(DICTIONARY), k=4)) for _ in range(12)]
  (folder / "text.de").write_text("\n".join([*lines[:5], "", *lines[5:]]))
  return folder


@pytest.fixture(scope="module")
def checkpoint(folder, tiny_tokenizer):
  """Of a model that translates from the text's language, and fairly well."""
  tiny_tokenizer.save(str(folder / "tokenizer"))
  workdir, tokenizer = str(folder / "run"), str(folder / "tokenizer")
  finetune.run(CONFIG, str(folder), "none", workdir, tokenizer=tokenizer)
  return f"{workdir}/best"


@pytest.fixture(scope="module")
def other_way(folder, checkpoint):
  del checkpoint  # has saved the tokenizer
  config = dataclasses.replace(CONFIG, task=PairsTask())
  finetune.run(config, str(folder), "none", f"{folder}/back", tokenizer=f"{folder}/tokenizer")
  return f"{folder}/back/best"


def pairs_of(path):
  header, *rows = [line.split("\t") for line in path.read_text().splitlines()]
  assert header == ["en", "de"]
  return rows


def test_pairs_of_a_text(folder, checkpoint, tmp_path):
  """The target side is the text, in order; the source side a translation after the tag."""
  out = tmp_path / "synthetic.tsv"
  counts = backtranslate.run(checkpoint, f"{folder}/text.de", str(out))
  assert counts["read"] == 13 and counts["blank"] == 1
  assert sum(counts.values()) == 2 * counts["read"]
  rows = pairs_of(out)
  assert len(rows) == counts["kept"] > 6
  lines = [line for line in (folder / "text.de").read_text().splitlines() if line]
  assert [line for line in lines if line in {text for _, text in rows}] == [b for _, b in rows]
  back, right = {b: a for a, b in DICTIONARY.items()}, 0
  for translation, text in rows:
    tag, *words = translation.split()
    assert tag == "<BT>"
    right += words == [back[word] for word in text.split()]
  assert right > len(rows) / 3


def test_a_file_is_a_function_of_the_seed(folder, checkpoint, tmp_path):
  def written(**settings):
    out = tmp_path / f"{len(list(tmp_path.iterdir()))}.tsv"
    backtranslate.run(checkpoint, f"{folder}/text.de", str(out), ratio=9, **settings)
    return out.read_text()

  sampled = written(temperature=2.0, seed=1)
  assert sampled == written(temperature=2.0, seed=1)
  assert len({sampled, written(temperature=2.0, seed=99), written()}) == 3
  assert written(noise=0.2) == written(noise=0.2) != written(noise=0.2, seed=1)
  assert "<BT>" not in written(tag="")
  (folder / "same.de").write_text("sea barn cat mat\n" * 8)
  backtranslate.run(checkpoint, f"{folder}/same.de", f"{tmp_path}/same.tsv", temperature=2, ratio=9)
  assert len({translation for translation, _ in pairs_of(tmp_path / "same.tsv")}) > 1
  assert len(written(beams=2).splitlines()) > 6


def test_training_reads_real_and_synthetic_pairs(folder, checkpoint):
  backtranslate.run(checkpoint, f"{folder}/text.de", f"{folder}/synthetic.tsv", overwrite=True)
  synthetic = pairs_of(folder / "synthetic.tsv")
  task = PairsTask(synthetic="synthetic.tsv", upsample=3)
  examples = task.build("").examples(str(folder), "train")
  assert len(examples) == 3 * 128 + len(synthetic)
  assert examples[:128] == examples[128:256] == PairsTask().build("").examples(str(folder), "train")
  assert [[pair.text, pair.label] for pair in examples[384:]] == synthetic
  assert len(task.build("").examples(str(folder), "dev")) == 24


@pytest.mark.slow
def test_paraphrases_of_a_table(folder, checkpoint, other_way, tmp_path):
  """Rows keep their other columns; what comes back as it was is left out."""
  rng, out = random.Random(1), tmp_path / "paraphrases.tsv"
  rows = [(str(n), " ".join(rng.choices(list(DICTIONARY), k=4)), "yes") for n in range(40)]
  table = "".join("\t".join(row) + "\n" for row in [("id", "sentence", "label"), *rows])
  (tmp_path / "table.tsv").write_text(table)
  paths = f"{tmp_path}/table.tsv", str(out)
  settings = {"back": checkpoint, "column": "sentence", "temperature": 1.5, "ratio": 9}
  counts = backtranslate.run(other_way, *paths, **settings)
  header, *written = [line.split("\t") for line in out.read_text().splitlines()]
  assert header == ["id", "sentence", "label"] and len(written) == counts["kept"] > 3
  assert counts["read"] == 40 and sum(counts.values()) == 80
  for number, text, label in written:
    assert (
      label == "yes"
      and text
      and text == text.strip()
      and text != rows[int(number)][1]
      and "<BT>" not in text
    )
  lines = table.splitlines(keepends=True)
  (tmp_path / "table.tsv").write_text(
    "".join([*lines[:9], "\n", *lines[9:20], "\t \t\n", *lines[20:]])
  )
  again = backtranslate.run(other_way, *paths, **settings, original="text", overwrite=True)
  header, *pairs = [line.split("\t") for line in out.read_text().splitlines()]
  assert again == counts and header == ["id", "sentence", "label", "text"]
  assert [row[:3] for row in pairs] == written
  assert all(row[3] == rows[int(row[0])][1] for row in pairs)
  greedy = backtranslate.run(other_way, *paths, **settings | {"temperature": 0.0}, overwrite=True)
  assert greedy["copied"] > 5  # both models know some of the dictionary
  for changes, message in (
    ({"back": other_way}, "back=.*: translates from en to de, and the way back is from de to en"),
    ({"column": "sentense"}, "no column 'sentense'; did you mean sentence"),
    ({"column": ""}, "back and column: paraphrases need both"),
    ({"original": "label"}, "original=label: is a column of .*table.tsv; name another"),
    ({"original": "x", "back": "", "column": ""}, "original=x: paraphrases alone"),
  ):
    refused(message, backtranslate.run, other_way, *paths, **settings | changes, overwrite=True)
  (tmp_path / "pandas.csv").write_text(",sentence\n0,the cat\n")  # whose index has no name
  assert backtranslate._table(f"{tmp_path}/pandas.csv", "sentence", "")[0]["sentence"] == "the cat"
  lines = tmp_path / "rows.jsonl"
  for second, message in (
    ('{"sentence": "b"}', "row 2: has the columns sentence, not sentence, label"),
    ('{"sentence": "b", "label": null}', "row 2: label = None: must be text"),
    ('{"sentence": 3, "label": 1}', "row 2: sentence = 3: must be text"),
  ):
    lines.write_text('{"sentence": "a", "label": 0}\n' + second + "\n")
    refused(message, backtranslate.run, other_way, str(lines), str(out), **settings, overwrite=True)


@pytest.mark.parametrize(
  "text, translation, problem",
  [
    ("a b c", "d e", ""),
    ("a b c d", "e e", "of unequal length"),
    ("a", "b c", "of unequal length"),
    ("a b c d e f g", "a b c d e f h", "too long"),
    ("a b", "a b", "copied"),
    ("a", "", "empty"),
    ("a", None, "without an end"),
  ],
)
def test_filters(text, translation, problem):
  assert why_left_out(text, translation, longest=6, ratio=1.5) == problem


def test_noise():
  words = [str(n) for n in range(2000)]
  assert noised(words, 0.0, 0, 0) == words
  changed = noised(words, 0.1, 0, 0)
  assert abs(len(changed) - 1800) < 60 and abs(changed.count("_") - 180) < 60
  left = [int(word) for word in changed if word != "_"]
  assert len(set(left)) == len(left) and left != sorted(left)
  # No word is further than 3 of the words that are left from its place among them.
  places = [place for _, place in sorted((word, place) for place, word in enumerate(left))]
  assert 1 <= max(abs(a - b) for a, b in enumerate(places)) <= 3
  assert noised(["a"], 0.49, 0, 1) and noised(words, 0.1, 0, 0) != noised(words, 0.1, 0, 1)


@pytest.mark.parametrize(
  "settings, message",
  [
    ({"beams": 2, "temperature": 1.0}, "temperature=1: a search of beams=2 does not sample"),
    ({"beams": 0}, "beams=0: must be from 1 to 256"),
    ({"temperature": -1.0}, "temperature=-1.0: must be at least 0"),
    ({"noise": 0.7}, "noise=0.7: must be from 0 to 0.5"),
    ({"seed": 2**32}, "seed=4294967296: must be from 0 to 2147483648"),
    ({"ratio": 0.5}, "ratio=0.5: must be from 1 to 100"),
    ({"tag": "B T"}, "tag='B T': must be one word, or empty"),
    ({"out": "a.csv"}, "out=a.csv: should be a .tsv file"),
    ({"source": "missing.de"}, "missing.de"),
    ({"ratio": 1.0, "longest": 1}, "no pair can be kept: 13 read, 1 blank"),
  ],
)
def test_errors(folder, checkpoint, tmp_path, settings, message):
  paths = {"source": f"{folder}/text.de", "out": f"{tmp_path}/out.tsv"}
  refused(message, backtranslate.run, checkpoint, **paths | settings)
  assert not (tmp_path / "out.tsv").exists()


def test_other_checkpoints(folder, make_run, tmp_path, tiny_tokenizer):
  trunk = TransformerConfig(context=16, layers=1, width=16, heads=2)
  spec = ModelConfig(trunk.with_vocabulary(tiny_tokenizer))
  labels = {"task": to_json(task_named("cola"))}
  for name, meta, message in (
    ("language", {}, "a language model without a"),
    ("labels", labels, "a model of cola"),
  ):
    run = make_run(tmp_path / name, spec, **meta)
    with pytest.raises(InputError, match=f"{message}.*; it should be fine-tuned on text pairs"):
      backtranslate.run(run, f"{folder}/text.de", f"{tmp_path}/out.tsv")
