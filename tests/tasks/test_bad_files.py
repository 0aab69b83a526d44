"""Malformed official files: every reader answers with one line that names file and row."""

import re
from typing import NamedTuple

import pytest
from refused import refused

from gpt_jax.errors import counted
from gpt_jax.tasks.task import all_tasks, find


class File(NamedTuple):
  """A file as published, with the same row twice; the tests break the second."""

  task: str
  split: str
  path: str  # relative to the data folder
  header: tuple[str, ...]  # empty if the file has none
  row: tuple[str, ...]
  texts: tuple[int, ...]  # indices of the text columns
  label: int | None  # index of the label column; None if the file has none
  label_name: str  # what it means
  extra: str  # another file that the reader needs

  def __str__(self):
    return f"{self.task}-{self.split}-{self.path}"

  @property
  def line(self):
    return 3 if self.header else 2

  def write(self, root, row=None, header=None):
    separator = "," if self.path.endswith(".csv") else "\t"
    lines = [self.header if header is None else header, self.row, self.row if row is None else row]
    content = "".join(separator.join(cells) + "\n" for cells in lines if cells)
    for path, text in ((self.path, content), (self.extra, "7\t8\n")):
      if path:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode(errors="surrogateescape"))

  def replace_cell(self, index, cell):
    return (*self.row[:index], cell, *self.row[index + 1 :])


PARAPHRASE = "Quality,#1 ID,#2 ID,#1 String,#2 String"
INFERENCE = "index,promptID,sentence1,sentence2,label1,gold_label"
CLOZE = "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,"
CLOZE += "RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
STORY = "x,One.,Two.,Three.,Four.,Good.,Bad.,1 | 1,2,3,4,5,6 | 7 1"

# The fields of a file, of which the last are the index of the label and its name, if there is one.
PUBLISHED = f"""\
cola train glue/CoLA/train.tsv |  | gj04,1,,A "cat sat. | 3 | 1 acceptable
cola test glue/CoLA/test.tsv | index,sentence | 0,A cat sat. | 1 |
sst2 train glue/SST-2/train.tsv | sentence,label | a "joy,1 | 0 | 1 positive
sst2 test glue/SST-2/test.tsv | index,sentence | 0,fine | 1 |
rte dev glue/RTE/dev.tsv | index,sentence1,sentence2,label | 0,A "b.,B.,entailment | 1,2 | 3 entailment
rte test glue/RTE/test.tsv | index,sentence1,sentence2 | 0,A.,B. | 1,2 |
wnli test glue/WNLI/test.tsv | index,sentence1,sentence2 | 0,A.,B. | 1,2 |
wnli dev glue/WNLI/dev.tsv | index,sentence1,sentence2,label | 0,A.,B.,1 | 1,2 | 3 entailment
qnli test glue/QNLI/test.tsv | index,question,sentence | 0,A?,B. | 1,2 |
qnli dev glue/QNLI/dev.tsv | index,question,sentence,label | 0,A?,B.,entailment | 1,2 | 3 entailment
stsb test glue/STS-B/test.tsv | index,sentence1,sentence2 | 0,A.,B. | 1,2 |
stsb dev glue/STS-B/dev.tsv | index,sentence1,sentence2,score | 0,A.,B.,3.500 | 1,2 | 3 3.5
qqp dev glue/QQP/dev.tsv | id,qid1,qid2,question1,question2,is_duplicate | 0,1,2,A?,B?,1 | 3,4 | 5 duplicate
qqp test glue/QQP/test.tsv | id,question1,question2 | 0,A?,B? | 1,2 |
mrpc train glue/MRPC/msr_paraphrase_train.txt | {PARAPHRASE} | 1,1,2,A.,B. | 3,4 | 0 equivalent
mrpc test glue/MRPC/msr_paraphrase_test.txt | {PARAPHRASE} | 0,1,2,A.,B. | 3,4 | 0 not_equivalent
mrpc dev glue/MRPC/dev.tsv | {PARAPHRASE} | 1,1,2,A.,B. | 3,4 | 0 equivalent
mnli train glue/MNLI/train.tsv | {INFERENCE} | 0,1,A.,B.,x,neutral | 2,3 | 5 neutral
mnli dev glue/MNLI/dev_matched.tsv | {INFERENCE} | 0,1,A.,B.,x,neutral | 2,3 | 5 neutral
mnli-mismatched dev glue/MNLI/dev_mismatched.tsv | {INFERENCE} | 0,1,A.,B.,x,neutral | 2,3 | 5 neutral
mnli test glue/MNLI/test_matched.tsv | index,promptID,sentence1,sentence2 | 0,1,A.,B. | 2,3 |
mnli-mismatched test glue/MNLI/test_mismatched.tsv | index,promptID,sentence1,sentence2 | 0,1,A.,B. | 2,3 |
mnli-diagnostic test glue/AX/diagnostic.tsv | index,sentence1,sentence2 | 0,A.,B. | 1,2 |
snli train snli_1.0/snli_1.0_train.txt | gold_label,sentence1,sentence2 | neutral,A.,B. | 1,2 | 0 neutral
snli dev snli_1.0/snli_1.0_dev.txt | gold_label,sentence1,sentence2 | neutral,A.,B. | 1,2 | 0 neutral
scitail dev SciTailV1.1/tsv_format/scitail_1.0_dev.tsv |  | A.,B.,neutral | 0,1 | 2 neutral
scitail test SciTailV1.1/tsv_format/scitail_1.0_test.tsv |  | A.,B.,neutral | 0,1 | 2 neutral
storycloze test story_cloze/cloze_test_test__spring2016 - x.csv | {CLOZE} | {STORY}
storycloze train story_cloze/cloze_test_val__spring2016 - x.csv | {CLOZE} | {STORY}
storycloze-2018 train story_cloze/cloze_test_val__winter2018.csv | {CLOZE} | {STORY}
"""  # noqa: E501


def parse(line):
  name, *cells, texts, label = (field.strip() for field in line.split("|"))
  header, row = (tuple(text.split(",")) if text else () for text in cells)
  index, _, label_name = label.partition(" ")
  extra = "glue/MRPC/dev_ids.tsv" if "msr_paraphrase_train" in name else ""
  indices, label = tuple(map(int, texts.split(","))), int(index) if index else None
  return File(*name.split(" ", 2), header, row, indices, label, label_name, extra)


FILES = [parse(line) for line in PUBLISHED.splitlines()]
for_each_file = pytest.mark.parametrize("file", FILES, ids=str)


def examples_of(file, root):
  return find(file.task).examples(str(root), file.split)


def test_every_task_with_files_is_tested():
  # See test_official_files.py, test_span.py and test_tagged_files.py.
  others = {"race", "race-middle", "race-high", "squad", "squad-2", "trec", "imdb", "ewt-tags"}
  generated = {task.name for task in all_tasks() if task.name.startswith("story-")}
  assert {task.name for task in all_tasks()} - others - generated == {file.task for file in FILES}


@for_each_file
def test_an_intact_file_is_read(tmp_path, file):
  file.write(tmp_path)
  task, path = find(file.task), tmp_path / file.path
  sequences = task.transform(*(file.row[index] for index in file.texts))
  label = task.target_of(file.label_name, "") if file.label_name else None
  expected = [(sequences, label, f"{path}:{line}") for line in (file.line - 1, file.line)]
  assert sorted(examples_of(file, tmp_path)) == expected


@for_each_file
def test_a_missing_file_is_named(tmp_path, file):
  file.write(tmp_path)
  (tmp_path / file.path).unlink()
  # Of MRPC's two layouts, the message names Microsoft's.
  path = "glue/MRPC/msr_paraphrase_train.txt" if file.path == "glue/MRPC/dev.tsv" else file.path
  message = f"{re.escape(str(tmp_path / path))}: No such file or directory"
  if file.path.endswith(".csv"):
    message = r"story_cloze/?: 0 files cloze_test_\w+\*\.csv; there should be one"
  refused(message, examples_of, file, tmp_path)


def damages(file):
  """What is changed in a file, and what is said of it behind its path."""
  line, row = file.line, file.row
  if file.label is not None:
    yield {"row": file.replace_cell(file.label, "maybe")}, rf":{line}: label 'maybe': should be "
  cut = {"row": file.replace_cell(file.texts[0], "caf\udce9")}
  yield cut, rf":{line}: not UTF-8 \(byte 0xe9\); convert it"
  if file.header:
    column = file.header[file.texts[0]]
    header = tuple(name.replace(column, "text") for name in file.header)
    yield {"header": header}, rf": no column '{column}'(; did you .*)? .the columns are '\w"
  else:  # a header although the official file has none
    header = tuple(f"column{n}" for n in range(len(row)))
    yield {"header": header}, rf":1: label 'column{file.label}': should be "
  if file.task == "qqp" and file.label:  # leaves such rows out
    return
  yield {"row": row[:-1]}, rf":{line}: {counted(len(row) - 1, 'column')}\b"
  for index, column in zip(file.texts, find(file.task).columns, strict=True):
    for empty in ("", " \u00a0"):
      message = rf":{line}: column '{column}' is empty; fill it in or remove the row"
      yield {"row": file.replace_cell(index, empty)}, message


@for_each_file
def test_a_damaged_file_is_refused(tmp_path, file):
  """In one line that begins with the file."""
  for changes, message in damages(file):
    file.write(tmp_path, **changes)
    refused(f"^{re.escape(str(tmp_path / file.path))}{message}", examples_of, file, tmp_path)
