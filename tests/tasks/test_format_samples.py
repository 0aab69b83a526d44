"""Every reader on samples of the official files, compared with the csv module."""

import csv
import itertools
import shutil

import numpy as np
import pytest

from gpt_jax.tasks.task import find

FOLDERS = {  # folder of the samples -> folder in the official layout
  "glue/cola/CoLA": "glue/CoLA",
  "glue/mnli/MNLI": "glue/MNLI",
  "glue/qnli/QNLI": "glue/QNLI",
  "glue/qqp/QQP": "glue/QQP",
  "glue/rte/RTE": "glue/RTE",
  "glue/sst2/SST-2": "glue/SST-2",
  "glue/stsb/SST-B": "glue/STS-B",
  "glue/wnli/WNLI": "glue/WNLI",
  "scitail/tsv_format/SciTailV1.1": "SciTailV1.1",
  "snli/plain_text/snli_1.0": "snli_1.0",
  "story_cloze": "story_cloze",
}
FILES = {  # file of the samples -> file in the official layout
  "glue/ax/ax.tsv": "glue/AX.tsv",
  "glue/mrpc/MRPC/train": "glue/MRPC/msr_paraphrase_train.txt",
  "glue/mrpc/MRPC/test": "glue/MRPC/msr_paraphrase_test.txt",
  "glue/mrpc/MRPC/dev_ids": "glue/MRPC/dev_ids.tsv",
}


@pytest.fixture(scope="module")
def official(data_root, tmp_path_factory):
  """The samples in the official layout."""
  samples, root = data_root / "format_samples", tmp_path_factory.mktemp("official")
  if not samples.is_dir():
    pytest.skip(f"no format_samples in {data_root}")
  for source, target in FOLDERS.items():
    shutil.copytree(samples / source, root / target, copy_function=shutil.copyfile)
  for source, target in FILES.items():
    (root / target).parent.mkdir(exist_ok=True)
    content = (samples / source).read_bytes()
    (root / target).write_bytes(
      content.replace(b"BOM", b"\xef\xbb\xbf", 1) if content.startswith(b"BOM") else content
    )
  return root


def read(path, names=None):
  """Reads [(line, {column: cell})] by the csv module."""
  quoting = csv.QUOTE_MINIMAL if path.suffix == ".csv" else csv.QUOTE_NONE
  with open(path, newline="", encoding="utf-8-sig") as file:
    reader = csv.DictReader(
      file, names, delimiter="," if path.suffix == ".csv" else "\t", quoting=quoting
    )
    return [(reader.line_num, row) for row in reader]


def check(name, root, split, rows, columns, label=None, meanings=()):
  """Texts, label names and line numbers of the examples are those of the rows, in order."""
  task = find(name)
  examples = task.examples(str(root), split)
  assert len(examples) == len(rows) > 0
  for example, (line, row) in zip(examples, rows, strict=True):
    assert example.sequences == task.transform(*(row[column] for column in columns))
    assert example.location.endswith(f":{line}")
    if label is None:
      assert example.label is None
    elif label == "score":
      assert np.dot(example.label, range(6)) == pytest.approx(float(row[label]))
    else:
      meaning = meanings[int(row[label])] if meanings else row[label]
      assert example.label == tuple(float(name == meaning) for name in task.labels)


ASKED = ("question1", "question2")
TWO, SCITAIL = ("sentence1", "sentence2"), ("premise", "hypothesis")
# Task: files, text columns, label column, what its numbers mean (gluebenchmark.com and the papers
# of the data sets); glue's test sets have no labels.
TASKS = {
  "cola": ("glue/CoLA/{}", ("sentence",), "label", ("unacceptable", "acceptable")),
  "sst2": ("glue/SST-2/{}", ("sentence",), "label", ("negative", "positive")),
  "qqp": ("glue/QQP/{}", ASKED, "is_duplicate", ("not_duplicate", "duplicate")),
  "stsb": ("glue/STS-B/{}", TWO, "score", ()),
  "mnli": ("glue/MNLI/{}_matched", TWO, "gold_label", ()),
  "mnli-mismatched": ("glue/MNLI/{}_mismatched", TWO, "gold_label", ()),
  "qnli": ("glue/QNLI/{}", ("question", "sentence"), "label", ()),
  "rte": ("glue/RTE/{}", TWO, "label", ()),
  "wnli": ("glue/WNLI/{}", TWO, "label", ("not_entailment", "entailment")),
  "snli": ("snli_1.0/snli_1.0_{}", TWO, "gold_label", ()),
  "scitail": ("SciTailV1.1/tsv_format/scitail_1.0_{}", SCITAIL, "label", ()),
  "mnli-diagnostic": ("glue/AX", TWO, None, ()),
}
NO_HEADER = {"cola": ("source", "label", "mark", "sentence"), "scitail": (*SCITAIL, "label")}


SPLITS = [*itertools.product([*TASKS][:-1], ("train", "dev", "test")), ("mnli-diagnostic", "test")]


@pytest.mark.parametrize("name, split", SPLITS)
def test_files(official, name, split):
  (path, columns, label, meanings), is_glue = TASKS[name], TASKS[name][0].startswith("glue")
  if split == "train":
    path = path.partition("_m")[0]
  names = None if (name, split) == ("cola", "test") else NO_HEADER.get(name)
  rows = read(official / f"{path.format(split)}.{'txt' if name == 'snli' else 'tsv'}", names)
  label = None if is_glue and split == "test" else label
  check(name, official, split, rows, columns, label, meanings)


MRPC = (("#1 String", "#2 String"), "Quality", ("not_equivalent", "equivalent"))


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_mrpc_files(official, split):
  folder = official / "glue/MRPC"
  rows = read(folder / f"msr_paraphrase_{'test' if split == 'test' else 'train'}.txt")
  if split != "test":
    dev = (folder / "dev_ids.tsv").read_text().splitlines()
    rows = [
      (line, row)
      for line, row in rows
      if (f"{row['#1 ID']}\t{row['#2 ID']}" in dev) == (split == "dev")
    ]
  check("mrpc", official, split, rows, *MRPC)


CLOZE = [f"InputSentence{n}" for n in (1, 2, 3, 4)]
CLOZE += ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"]


@pytest.mark.parametrize("name, year", [("storycloze", 2016), ("storycloze-2018", 2018)])
def test_storycloze_files(official, name, year):
  (divided,) = official.glob(f"story_cloze/{year}/*_val__*.csv")
  for path in official.glob(f"story_cloze/{year}/*_test__*.csv"):
    check(name, official, "test", read(path), CLOZE, "AnswerRightEnding")
  rows, used = dict(read(divided)), []
  for split in ("train", "dev"):
    examples = find(name).examples(str(official), split)
    lines = [int(example.location.rpartition(":")[2]) for example in examples]
    check(name, official, split, [(line, rows[line]) for line in lines], CLOZE, "AnswerRightEnding")
    used += lines
  assert sorted(used) == sorted(rows)
