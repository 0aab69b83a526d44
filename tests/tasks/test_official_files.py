"""The official data sets: small files in their formats, and the real ones if present."""

import itertools
import json
import shutil
import tarfile

import numpy as np
import pytest
from refused import refused
from sklearn import model_selection

from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.tasks.glue import bins, expectation
from gpt_jax.tasks.packing import PackedBatches
from gpt_jax.tasks.task import SPLITS, find


def passage(article, answers):
  """A file of RACE: questions with their answers, and options a to d."""
  options = [list("abcd")] * len(answers)
  tree = {"article": article, "questions": [*answers], "options": options}
  return json.dumps({**tree, "answers": [*answers.values()]})


MRPC_HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"

# Small files with the quirks of the published ones.
FILES = {
  "glue/RTE/train.tsv": (
    'index\tsentence1\tsentence2\tlabel\n0\tHe "ran.\tHe moved.\tentailment\n'
    "1\tA.\tB.\tnot_entailment\n"
  ),
  "trec/train_5500.label": "DESC:def What is it ?\n" * 9 + "HUM:ind Who was she ?\n",
  "trec/TREC_10.label": "LOC:city Where ?\n",
  "glue/AX/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tE.\tF.\n1\tG.\tH.\n",
  "glue/MNLI/dev_matched.tsv": (
    "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA.\tB.\tneutral\tentailment\n"
  ),
  "glue/MNLI/dev_mismatched.tsv": (
    "index\tsentence1\tsentence2\tgold_label\n0\tC.\tD.\tcontradiction\n"
  ),
  "glue/QQP/train.tsv": (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWho?\tWhat man?\t1\n"
    "2\t4\t5\tbroken\n3\t6\t7\tA?\tB?\t0\n4\t8\t9\tC?\t \t1\n"
  ),
  "glue/QQP/test.tsv": "id\tquestion1\tquestion2\n0\tC?\tD?\n",
  "snli_1.0/snli_1.0_train.txt": (
    "gold_label\tsentence1\tsentence2\tlabel1\tlabel2\nneutral\tA dog.\tA cat.\tneutral\n"
    "-\tE.\tF.\tneutral\tentailment\n"
  ),
  "glue/STS-B/train.tsv": (
    "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA.\tB.\t3.400\n1\tx\tC.\tD.\t5.000\n"
  ),
  "glue/MRPC/msr_paraphrase_train.txt": MRPC_HEADER
  + '1\t1\t2\tA "b.\tC.\r\n0\t4\t3\tD.\tE.\r\n1\t3\t4\tF.\tG.\r\n',
  "glue/MRPC/msr_paraphrase_test.txt": MRPC_HEADER + "0\t5\t6\tH.\tI.\r\n",
  "glue/MRPC/dev_ids.tsv": "4\t3\n",
  "race/dev/middle/10.txt": passage("Late.", {"Q?": "A"}),
  "race/dev/middle/9.txt": passage("One.\nTwo.", {"Q1 _ .": "C", "Q2?": "D"}),
}


@pytest.fixture
def small(tmp_path):
  for name, content in FILES.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode())
  return tmp_path


def read(root, name, split):
  """The sequences, the label and the line of each example."""
  examples = find(name).examples(str(root), split)
  return [(e.sequences, e.label, int(e.location.rpartition(":")[2])) for e in examples]


def test_every_tenth_question_of_trec_is_held_out(small):
  examples, path = find("trec").examples, small / "trec" / "train_5500.label"
  train, dev, test = (examples(str(small), split) for split in ("train", "dev", "test"))
  assert len(train) == 9 and train[0].location == f"{path}:1"
  assert train[0][:2] == ((("What is it ?",),), (0, 1, 0, 0, 0, 0))
  assert dev == [((("Who was she ?",),), (0, 0, 0, 1, 0, 0), f"{path}:10")]
  assert [example.sequences for example in test] == [(("Where ?",),)]
  # The published file has the byte 0xf0 for a space; ours may have letters beyond ASCII.
  for written, read in (
    (b"sister\xf0city", "sister city"),
    ("\u0141ód\U0001f600".encode(), "Łód😀"),
  ):
    path.write_bytes(b"DESC:def " + written + b" ?\n")
    (question,) = examples(str(small), "train")
    assert question.sequences == ((f"{read} ?",),)
  path.write_text("DESC:def What ?\nDESC What ?\n")
  message = r"train_5500\.label:2: should be LABEL:fine, a space and"
  refused(message, examples, str(small), "train")


def test_every_tenth_review_of_imdb_is_held_out_in_the_tree_and_in_its_archive(tmp_path):
  for half, number in itertools.product(("train", "test"), range(11)):
    for label in ("pos", "neg"):
      path = tmp_path / "tree" / "imdb" / "aclImdb" / half / label / f"{number}_7.txt"
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(f"{half} {label} {number}<br />It ends.")
  (tmp_path / "imdb").mkdir()
  with tarfile.open(tmp_path / "imdb" / "aclImdb_train.tar.xz", "w:xz") as archive:
    archive.add(tmp_path / "tree" / "imdb" / "aclImdb", "aclImdb")

  def texts(root):
    return {split: [e[:2] for e in find("imdb").examples(str(root), split)] for split in SPLITS}

  of_tree, of_archive = texts(tmp_path / "tree"), texts(tmp_path)
  assert of_tree == of_archive and [len(of_tree[split]) for split in SPLITS] == [20, 2, 22]
  assert of_tree["dev"][1] == ((("train pos 9 It ends.",),), (0.0, 1.0))
  (tmp_path / "imdb" / "aclImdb_train.tar.xz").write_bytes(b"damaged")
  refused(r"aclImdb_train\.tar\.xz: cannot be read to its end", read, tmp_path, "imdb", "train")
  path.rename(path.with_name("seven.txt"))
  refused("neg/seven.txt: the file should be named ID_", read, tmp_path / "tree", "imdb", "test")
  (tmp_path / "imdb" / "aclImdb_train.tar.xz").unlink()
  refused("aclImdb/train/pos: no reviews here, nor in an archive", read, tmp_path, "imdb", "train")


def test_storycloze_divides_the_validation_set(tmp_path):
  header = "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,"
  header += "RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2"
  (tmp_path / "story_cloze" / "2016").mkdir(parents=True)
  for name, label, numbers in (
    ("val__spring2016 - val", ",AnswerRightEnding", range(20)),
    ("test__spring2016", ",AnswerRightEnding", [30]),
    ("val__winter2018", ",AnswerRightEnding", range(40, 50)),
    ("test__winter2018", "", [60]),
  ):
    lines = [f"{header}{label}"]
    for n in numbers:
      answer = f",{1 + n % 2}" if label else ""
      lines.append(f"s{n},One {n}.,Two.,Three.,Four.,Good {n}.,Bad.{answer}")
    (tmp_path / f"story_cloze/2016/cloze_test_{name}.csv").write_text("\n".join(lines))

  def numbers(name, split):
    return [int(e.sequences[0][1][5:-1]) for e in find(name).examples(str(tmp_path), split)]

  expected = model_selection.train_test_split(range(20), test_size=4, random_state=3535999445)
  assert [numbers("storycloze", split) for split in ("train", "dev")] == expected
  story = "One 30. Two. Three. Four."
  expected = [(((story, "Good 30."), (story, "Bad.")), (1, 0), 2)]
  assert read(tmp_path, "storycloze", "test") == expected
  later = [numbers("storycloze-2018", split) for split in ("train", "dev")]
  assert list(map(len, later)) == [8, 2] and sorted(sum(later, [])) == list(range(40, 50))
  ((sequences, label, _),) = read(tmp_path, "storycloze-2018", "test")
  assert "One 60." in sequences[0][0] and label is None


def test_the_diagnostic_set_is_another_test_set_of_mnli(small):
  task, name = find("mnli-diagnostic"), "mnli-diagnostic"
  rows = [((("E.", "F."),), None, 2), ((("G.", "H."),), None, 3)]
  assert read(small, name, "test") == read(small / "glue", name, "test") == rows
  assert task.examples(str(small), "dev") == find("mnli").examples(str(small), "dev")
  assert task.labels == find("mnli").labels
  (small / "glue/AX").rename(small / "glue/diagnostic")  # as GLUE's download script names it
  assert read(small, name, "test") == rows
  (small / "glue/diagnostic/diagnostic.tsv").rename(small / "glue/AX.tsv")  # as published
  assert read(small, name, "test") == rows
  (small / "glue/AX.tsv").unlink()
  refused(r"glue/AX/diagnostic\.tsv: No such file", task.examples, str(small), "test")


def test_qqp_leaves_out_the_rows_that_are_malformed_as_published(small):
  left_out = "train.tsv: left out: 2 broken of 4 rows, the first at .*train.tsv:3$"
  with pytest.warns(UserWarning, match=left_out):
    rows = read(small, "qqp", "train")
  assert rows == [
    ((("Who?", "What man?"), ("What man?", "Who?")), (0, 1), 2),
    ((("A?", "B?"), ("B?", "A?")), (1, 0), 4),
  ]
  with open(small / "glue/QQP/train.tsv", "a", encoding="utf-8") as file:
    file.write("4\t8\t9\tbroken\n" * 2)
  refused("4 broken of 6 rows", read, small, "qqp", "train")


def test_snli_leaves_out_pairs_without_a_gold_label(small):
  with pytest.warns(UserWarning, match="1 of 2 rows has no gold label and is left out"):
    assert read(small, "snli", "train") == [((("A dog.", "A cat."),), (0, 1, 0), 2)]


def test_mrpc_divides_the_train_file_by_the_ordered_pairs_of_dev_ids(small):
  assert read(small, "mrpc", "train") == [
    ((('A "b.', "C."), ("C.", 'A "b.')), (0, 1), 2),
    ((("F.", "G."), ("G.", "F.")), (0, 1), 4),
  ]
  assert read(small, "mrpc", "dev") == [((("D.", "E."), ("E.", "D.")), (1, 0), 3)]
  (small / "glue/MRPC/test.tsv").write_text("index\t#1 String\t#2 String\n0\tJ.\tK.\n")
  assert read(small, "mrpc", "test") == [((("H.", "I."), ("I.", "H.")), (1, 0), 2)]
  # As GLUE's download script writes it: without labels.
  (small / "glue/MRPC/msr_paraphrase_test.txt").unlink()
  assert read(small, "mrpc", "test") == [((("J.", "K."), ("K.", "J.")), None, 2)]


def test_stsb_scores_become_distributions(small):
  first, second = find("stsb").examples(str(small), "train")
  assert first.sequences == (("A.", "B."), ("B.", "A."))
  np.testing.assert_allclose(first.label, [0, 0, 0, 0.6, 0.4, 0], atol=1e-9)
  assert second.label == (0, 0, 0, 0, 0, 1)


def test_the_mean_of_stsb_bins_is_the_score():
  scores = np.linspace(0, 5, 251)
  distributions = np.array([bins(str(score)) for score in scores])
  np.testing.assert_allclose(distributions.sum(axis=1), 1)
  np.testing.assert_allclose(expectation(distributions), scores, atol=1e-12)
  assert ((distributions > 0).sum(axis=1) <= 2).all()
  scores = find("stsb").score(distributions, distributions)
  assert scores == pytest.approx({"pearson": 1, "spearman": 1})


def test_race_has_one_example_per_question(small):
  examples = find("race-middle").examples(str(small), "dev")
  assert [example.location.removeprefix(f"{small}/race/dev/middle/") for example in examples] == [
    "9.txt:1: question 1",
    "9.txt:1: question 2",
    "10.txt:1: question 1",
  ]
  assert examples[0].sequences == tuple(("One.\nTwo.", "Q1 _ .", option) for option in "abcd")
  assert examples[0].label == (0, 0, 1, 0)
  assert find("race-middle").examples(str(small / "race"), "dev") == examples
  shutil.copytree(small / "race/dev/middle", small / "race/dev/high")
  assert len(find("race").examples(str(small), "dev")) == 6  # both schools


# The dev sets of these, damaged, and what is said of them.
STSB, MRPC, RACE = "glue/STS-B/dev.tsv", "glue/MRPC/dev_ids.tsv", "race/dev/middle/9.txt"
SCORES = "sentence1\tsentence2\tscore\nA.\tB.\t"
QUESTION = passage("A.", {"Q?": "A"})


@pytest.mark.parametrize(
  "name, content, message",
  [
    (STSB, SCORES + "5.1\n", r":2: label '5\.1': .* 0 to 5"),
    (STSB, SCORES + "nan\n", r":2: label 'nan': .* 0 to 5"),
    (STSB, SCORES + "x\n", r":2: label 'x': .* 0 to 5"),
    (MRPC, "3 4\n", r"dev_ids\.tsv:1: 1 column, but .* 2: #1 ID, #2 ID"),
    (RACE, "{", r"9\.txt:1: not JSON"),
    (RACE, "[]", r"9\.txt:1: should have an article"),
    (RACE, '{"article": "A."}', r"9\.txt:1: should have an article"),
    (RACE, QUESTION.replace(', "d"', ""), r"9\.txt:1: question 1: 3 options; should be 4"),
    (RACE, '{"article": "\udce9"}', r"9\.txt:1: not UTF-8 \(byte 0xe9\)"),
    (RACE, QUESTION.replace('"b"', '" "'), r"9\.txt:1: question 1: column 'B' is empty"),
    (RACE, QUESTION.replace("A.", ""), r"9\.txt:1: question 1: column 'article' is empty"),
    (RACE, QUESTION.replace('"A"', '"E"'), r"9\.txt:1: question 1: label 'E': should be one of A"),
  ],
)
def test_malformed_files_are_refused_with_file_and_line(small, name, content, message):
  (small / name).write_bytes(content.encode(errors="surrogateescape"))
  task = {"STS-B": "stsb", "MRPC": "mrpc", "dev": "race-middle"}[name.split("/")[1]]
  refused(message, read, small, task, "dev")


def test_missing_files_are_named(small):
  (small / "glue/MRPC/dev_ids.tsv").unlink()
  for task, message in (
    ("race-high", r"race/dev/high: no such folder"),
    ("mrpc", r"glue/MRPC/dev_ids\.tsv: No such file"),
  ):
    refused(message, find(task).examples, str(small), "dev")
  # An empty data_dir is not the current folder.
  refused("data_dir=: no folder", find("rte").examples, "", "dev")


# Numbers of examples, as sums of what the sources count; a label, and its share in percent.
PUBLISHED = {
  # 10,657 sentences, 1,063 of them the test set (Warstadt et al.)
  "cola": ({"train": 8551, "dev": 10657 - 8551 - 1063}, "acceptable", {"train": 70.4}),
  "sst2": ({"train": 67349, "dev": 872, "test": 1821}, "positive", {"train": 55.8, "dev": 50.9}),
  "qnli": ({"dev": 5463}, "not_entailment", {"dev": 50.5}),
  # the development sets of RTE-1, 2, 3 and 5
  "rte": (
    {"train": 567 + 800 + 800 + 600 - 277, "dev": 277},
    "entailment",
    {"train": 50.2, "dev": 52.7},
  ),
  # Dolan and Brockett 2005, with 3,900 paraphrases; GLUE's list of 408
  "mrpc": (
    {"train": 4076 - 408, "dev": 408, "test": 5801 - 4076},
    "equivalent",
    {"train": 67.4, "dev": 68.4, "test": 66.5},
  ),
  # news, captions, forums (Cer et al.)
  "stsb": (
    {"train": 3299 + 2000 + 450, "dev": 500 + 625 + 375, "test": 500 + 625 + 254},
    "",
    {},
  ),
  # 28,293 questions of middle schools (Lai et al.)
  "race-middle": ({"train": 28293 - 2 * 1436, "dev": 1436, "test": 1436}, "", {}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_splits_have_their_published_sizes_and_labels(data_root, name):
  collection = "race" if name.startswith("race") else "glue"
  if not (data_root / collection).is_dir():
    pytest.skip(f"no {collection} in {data_root}")
  task, (sizes, label, shares) = find(name), PUBLISHED[name]
  examples = {split: task.examples(str(data_root), split) for split in sizes}
  assert {split: len(of_split) for split, of_split in examples.items()} == sizes
  for split, share in shares.items():
    targets = np.array([example.label for example in examples[split]])
    assert round(100 * targets[:, task.labels.index(label)].mean(), 1) == share


@pytest.mark.parametrize("name", ["mrpc", "stsb"])
def test_a_real_training_set_is_encoded_and_packed(data_root, name):
  if not (data_root / "glue").is_dir():
    pytest.skip(f"no glue in {data_root}")
  task = find(name)
  examples = task.examples(str(data_root), "train")
  texts = itertools.chain.from_iterable(example.sequences[0] for example in examples)
  tokenizer = SentencePieceTokenizer.train(texts, 2000)
  encoded = task.encode(examples, tokenizer, 256)
  batches = PackedBatches(encoded, 32, seed=0, epochs=3)
  padded = 64 * encoded.lengths.max()
  assert np.prod(batches.shape) < 0.6 * padded
  batch = batches(0)
  text = batch.rows.inputs.reshape(-1)
  assert (text[batch.labels.anchors] == tokenizer.special.extract).all()
  np.testing.assert_allclose(batch.labels.distributions.sum(axis=1), 1, rtol=1e-6)
