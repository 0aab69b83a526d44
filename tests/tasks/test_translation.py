"""Text pairs: how they are read, refused, encoded and batched; BLEU as sacrebleu computes it."""

import dataclasses
import sys

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from refused import refused

from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.programs.finetune import WholeBatches
from gpt_jax.tasks.pairs import PairsTask

TEXTS, TRANSLATIONS = ("the cat sat", "a dog ran"), ("le chat", "un chien court")


def write_lines(folder, **files):
  for name, lines in files.items():
    (folder / name.replace("_", ".")).write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("name", ["train", "train.tsv"])
def test_files_and_tables_hold_the_same_pairs(name, tmp_path):
  table = ["de\ten", *map("\t".join, zip(TRANSLATIONS, TEXTS, strict=True))]
  write_lines(tmp_path, train_en=TEXTS, train_de=TRANSLATIONS, train_tsv=table)
  pairs = PairsTask(train=name).build("").examples(str(tmp_path), "train")
  assert [(pair.text, pair.label) for pair in pairs] == list(zip(TEXTS, TRANSLATIONS, strict=True))
  back = PairsTask(train=name, source="de", target="en").build("")
  assert [pair.text for pair in back.examples(str(tmp_path), "train")] == list(TRANSLATIONS)


def test_long_pairs_are_left_out_of_training_alone(tmp_path):
  for split in ("train", "val"):
    write_lines(tmp_path, **{f"{split}_en": ("a b c d", "a"), f"{split}_de": ("a", "a b")})
  task = PairsTask(longest=3).build("")
  assert len(task.examples(str(tmp_path), "train")) == 1
  assert len(task.examples(str(tmp_path), "dev")) == 2


def test_a_test_set_may_lack_its_translations(tmp_path):
  write_lines(tmp_path, test_en=TEXTS)
  pairs = PairsTask(test="test").build("").examples(str(tmp_path), "test")
  assert [pair.label for pair in pairs] == [None, None]


@pytest.mark.parametrize(
  "source, target, message",  # of which each letter is a line
  [
    (
      "ab",
      "c",
      r"train\.de: 1 lines, and .*train\.en has 2; line n of one should translate line n",
    ),
    ("ab", "c d", r"train\.de: 3 lines, and .* has 2"),
    ("ab", " c", r"train\.de:1: the translation is empty"),
    ("  b", "cde", r"train\.en: 2 rows cannot be used: the text is empty; .*\(line 1, 2\)"),
  ],
)
def test_bad_pairs_are_one_line(source, target, message, tmp_path):
  write_lines(tmp_path, train_en=source, train_de=target)
  refused(message, PairsTask().build("").examples, str(tmp_path), "train")


def test_missing_translations_are_one_line(tmp_path):
  write_lines(tmp_path, train_en="a", train_tsv=("en\tfr", "a\tb"), dev_tsv=("a text", "another"))
  for train, message in (
    ("train", r"train\.de: No such file"),
    ("train.tsv", "no column 'de'"),
    ("dev.tsv", "no column 'en'"),
  ):
    refused(message, PairsTask(train=train).build("").examples, str(tmp_path), "train")


def test_a_language_cannot_translate_to_itself():
  refused("PairsTask.target: 'en' is the source, too", PairsTask, target="en")


@pytest.fixture
def encoded(tmp_path, tiny_tokenizer):
  words = "the cat sat on mat dog ran old red barn".split()
  texts = [" ".join(words[: 1 + n % 10]) for n in range(50)]
  write_lines(tmp_path, train_en=texts, train_de=texts[::-1])
  task = PairsTask(prompt="the ").build("")
  tokenizer = tiny_tokenizer.with_special("pad", "sep")
  return task.encode(task.examples(str(tmp_path), "train"), tokenizer, 48), tokenizer


def test_an_encoded_pair_is_both_texts_with_their_ends(encoded):
  pairs, tokenizer = encoded
  end = tokenizer.special["sep"]
  assert pairs.source(1).tolist() == [*tokenizer.encode("the the cat"), end]
  assert pairs.targets[0].tolist() == [*tokenizer.encode(pairs.truth[0]), end][:24]
  assert all(len(target) <= 24 for target in pairs.targets)  # half the context


def test_batches_have_pairs_of_similar_length_and_all_of_them(encoded):
  pairs, _ = encoded
  batches = pairs.batches(5, seed=3, epochs=2)
  widths, seen = [], []
  for step in range(20):
    batch = batches(step)
    assert batch.source.inputs.shape == batch.rows.inputs.shape
    lengths = batch.source.segments.sum(axis=1), batch.rows.segments.sum(axis=1)
    assert batch.rows.inputs.shape[1] == -(-max(map(max, lengths)) // 8) * 8
    widths.append(batch.rows.inputs.shape[1])
    kept = batch.predictions.weights > 0
    seen.append([tuple(row[mask]) for row, mask in zip(batch.predictions.targets, kept)])  # noqa: B905
  assert len(set(widths)) > 1 and seen[:10] != seen[10:]
  assert widths[batches.largest] == max(widths)  # by which a run is planned
  for epoch in (seen[:10], seen[10:]):
    assert sorted(sum(epoch, [])) == sorted(tuple(target) for target in pairs.targets)


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_each_host_reads_its_rows_of_one_batch(encoded, monkeypatch, hosts):
  """Simulated: a host has an equal part of the devices, and of the rows of two microbatches."""
  pairs, _ = encoded
  mesh, read = make_mesh(MeshConfig()), []
  for devices in mesh.devices.reshape(hosts, -1):

    def local(sharding, shape, own=frozenset(devices)):
      indices = sharding.devices_indices_map(shape).items()
      return {device: index for device, index in indices if device in own}

    monkeypatch.setattr(NamedSharding, "addressable_devices_indices_map", local)
    batches = pairs.batches(16, seed=3, epochs=2)  # each host plans all of them
    of_host = WholeBatches(batches, batches.shape, mesh, microbatches=2)
    read.append([of_host.at(step) for step in range(6)])
  whole = pairs.batches(16, seed=3, epochs=2)
  for step, parts in enumerate(zip(*read, strict=True)):
    together = jax.tree.map(lambda *rows: np.hstack([np.split(x, 2) for x in rows]), *parts)
    expected = jax.tree.map(lambda x: np.stack(np.split(x, 2)), whole(step))
    jax.tree.map(np.testing.assert_array_equal, together, expected)


def test_other_translations_are_another_data_set(encoded):
  pairs, _ = encoded
  other = dataclasses.replace(pairs, targets=pairs.targets[::-1])
  assert checksum(pairs.content) != checksum(other.content)


def test_bleu_and_chrf_are_sacrebleus_with_their_signatures():
  sacrebleu = pytest.importorskip("sacrebleu")
  task = PairsTask().build("")
  truth = ["The cat sat on the mat.", "A dog ran to the old barn."]
  written = ["the cat sat on the mat.", "A dog ran to the barn."]
  scores = task.score(written, truth)
  assert scores["bleu"] == sacrebleu.corpus_bleu(written, [truth]).score
  assert scores["chrf"] == sacrebleu.corpus_chrf(written, [truth]).score
  assert task.score([None, written[1]], truth) == task.score(["", written[1]], truth)
  folded = PairsTask(lowercase=True).build("")
  assert folded.score(written, truth)["bleu"] > scores["bleu"]
  assert "case:lc" in folded.details(written, truth)["bleu_signature"]
  signature = task.details(written, truth)["bleu_signature"]
  assert "nrefs:1|case:mixed|eff:no|tok:13a" in signature and "version:" in signature


def test_a_row_without_a_translation_says_why():
  task = PairsTask().build("")
  problems = [task.result(written, "").get("problem") for written in ("le chat", None, "")]
  assert problems == [None, "a translation without an end", "the model wrote nothing"]


def test_without_sacrebleu_it_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
  message = r"BLEU needs sacrebleu: pip install 'gpt_jax\[translation\]'"
  refused(message, PairsTask().build("").check_metrics)


def test_room_for_a_translation_fits_beside_its_source(encoded):
  pairs, _ = encoded
  rooms = np.array([pairs.room(n) for n in range(len(pairs))])
  assert ((rooms + pairs.source_lengths) < 48).all() and len(set(rooms)) > 1
