"""Malformed official files: every reader answers with one line that names file and row."""

import re
from typing import NamedTuple

import pytest

from gpt_jax.errors import InputError, counted
from gpt_jax.tasks.task import all_tasks, find


class File(NamedTuple):
  """A file as published, with the same row twice; the tests break the second.

  Attributes:
    task, split: the reader.
    path: relative to the data folder.
    header: the cells of the first line; empty if the file has none.
    row: the cells of the row.
    texts: indices of the text columns.
    label: index of the label column; None if the file has none.
    extra: another file that the reader needs.
  """

  task: str
  split: str
  path: str
  header: tuple[str, ...]
  row: tuple[str, ...]
  texts: tuple[int, ...]
  label: int | None
  extra: str = ""

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
STORY = "x,One.,Two.,Three.,Four.,Good.,Bad.,1 | 1,2,3,4,5,6 | 7"

# The fields of a file; label is empty where the file has none.
PUBLISHED = f"""\
cola train glue/CoLA/train.tsv |  | gj04,1,,A cat sat. | 3 | 1
cola test glue/CoLA/test.tsv | index,sentence | 0,A cat sat. | 1 |
sst2 train glue/SST-2/train.tsv | sentence,label | fine,1 | 0 | 1
sst2 test glue/SST-2/test.tsv | index,sentence | 0,fine | 1 |
rte dev glue/RTE/dev.tsv | index,sentence1,sentence2,label | 0,A.,B.,entailment | 1,2 | 3
rte test glue/RTE/test.tsv | index,sentence1,sentence2 | 0,A.,B. | 1,2 |
wnli dev glue/WNLI/dev.tsv | index,sentence1,sentence2,label | 0,A.,B.,1 | 1,2 | 3
qnli dev glue/QNLI/dev.tsv | index,question,sentence,label | 0,A?,B.,entailment | 1,2 | 3
stsb dev glue/STS-B/dev.tsv | index,sentence1,sentence2,score | 0,A.,B.,3.5 | 1,2 | 3
qqp dev glue/QQP/dev.tsv | id,qid1,qid2,question1,question2,is_duplicate | 0,1,2,A?,B?,1 | 3,4 | 5
qqp test glue/QQP/test.tsv | id,question1,question2 | 0,A?,B? | 1,2 |
mrpc train glue/MRPC/msr_paraphrase_train.txt | {PARAPHRASE} | 1,1,2,A.,B. | 3,4 | 0
mrpc test glue/MRPC/msr_paraphrase_test.txt | {PARAPHRASE} | 1,1,2,A.,B. | 3,4 | 0
mrpc dev glue/MRPC/dev.tsv | {PARAPHRASE} | 1,1,2,A.,B. | 3,4 | 0
mnli train glue/MNLI/train.tsv | {INFERENCE} | 0,1,A.,B.,x,neutral | 2,3 | 5
mnli dev glue/MNLI/dev_matched.tsv | {INFERENCE} | 0,1,A.,B.,x,neutral | 2,3 | 5
mnli-mismatched dev glue/MNLI/dev_mismatched.tsv | {INFERENCE} | 0,1,A.,B.,x,neutral | 2,3 | 5
mnli test glue/MNLI/test_matched.tsv | index,promptID,sentence1,sentence2 | 0,1,A.,B. | 2,3 |
mnli-diagnostic test glue/AX/diagnostic.tsv | index,sentence1,sentence2 | 0,A.,B. | 1,2 |
snli train snli_1.0/snli_1.0_train.txt | gold_label,sentence1,sentence2 | neutral,A.,B. | 1,2 | 0
scitail test SciTailV1.1/tsv_format/scitail_1.0_test.tsv |  | A.,B.,neutral | 0,1 | 2
storycloze test story_cloze/cloze_test_test__spring2016 - x.csv | {CLOZE} | {STORY}
storycloze train story_cloze/cloze_test_val__spring2016 - x.csv | {CLOZE} | {STORY}
storycloze-2018 train story_cloze/cloze_test_val__winter2018.csv | {CLOZE} | {STORY}
"""


def parse(line):
  name, *cells, texts, label = (field.strip() for field in line.split("|"))
  header, row = (tuple(text.split(",")) if text else () for text in cells)
  texts = tuple(map(int, texts.split(",")))
  extra = "glue/MRPC/dev_ids.tsv" if "msr_paraphrase_train" in name else ""
  return File(*name.split(" ", 2), header, row, texts, int(label) if label else None, extra)


FILES = [parse(line) for line in PUBLISHED.splitlines()]


def identity(file):
  return f"{file.task}-{file.split}-{file.path}"


for_each_file = pytest.mark.parametrize("file", FILES, ids=identity)


def check_refused(file, root, message):
  """Reading fails with one line that begins with the file."""
  with pytest.raises(InputError) as caught:
    find(file.task).examples(str(root), file.split)
  assert re.match(re.escape(str(root / file.path)) + message, str(caught.value)), caught.value


def test_every_task_with_files_is_tested():
  # See test_official_files.py, test_span.py and test_tagged_files.py.
  others = {"race", "race-middle", "race-high", "squad", "squad-2", "trec", "ewt-tags"}
  generated = {task.name for task in all_tasks() if task.name.startswith("story-")}
  assert {task.name for task in all_tasks()} - others - generated == {file.task for file in FILES}


@for_each_file
def test_an_intact_file_is_read(tmp_path, file):
  file.write(tmp_path)
  examples = find(file.task).examples(str(tmp_path), file.split)
  locations = [example.location for example in examples]
  assert sorted(locations) == [
    f"{tmp_path / file.path}:{line}" for line in (file.line - 1, file.line)
  ]


@for_each_file
def test_a_missing_file_is_named(tmp_path, file):
  file.write(tmp_path)
  (tmp_path / file.path).unlink()
  if file.path.endswith(".csv"):
    with pytest.raises(
      InputError, match=r"story_cloze/?: 0 files cloze_test_\w+\*\.csv; there should be one"
    ):
      find(file.task).examples(str(tmp_path), file.split)
  else:  # of MRPC's two layouts, the message names Microsoft's
    path = "glue/MRPC/msr_paraphrase_train.txt" if file.path == "glue/MRPC/dev.tsv" else file.path
    check_refused(file._replace(path=path), tmp_path, ": No such file or directory")


@for_each_file
def test_a_truncated_row_is_refused(tmp_path, file):
  file.write(tmp_path, row=file.row[:-1])
  if file.task == "qqp" and file.label:
    with pytest.warns(UserWarning, match=r"dev\.tsv: 1 of 2 rows are broken and left out$"):
      assert len(find("qqp").examples(str(tmp_path), file.split)) == 1
  else:
    check_refused(file, tmp_path, rf":{file.line}: {counted(len(file.row) - 1, 'column')}\b")


@pytest.mark.parametrize("file", [file for file in FILES if file.label is not None], ids=identity)
def test_an_unknown_label_is_refused(tmp_path, file):
  file.write(tmp_path, row=file.replace_cell(file.label, "maybe"))
  check_refused(file, tmp_path, rf":{file.line}: label 'maybe': should be ")


@for_each_file
def test_an_empty_text_is_refused(tmp_path, file):
  for index, column in zip(file.texts, find(file.task).columns, strict=file.task != "storycloze"):
    for empty in ("", " \u00a0"):
      file.write(tmp_path, row=file.replace_cell(index, empty))
      if file.task == "qqp" and file.label:
        with pytest.warns(UserWarning, match=r"dev\.tsv: 1 of 2 rows are broken and left out$"):
          assert len(find("qqp").examples(str(tmp_path), file.split)) == 1
      else:
        check_refused(
          file, tmp_path, rf":{file.line}: column '{column}' is empty; fill it in or remove the row"
        )


@for_each_file
def test_a_file_that_is_not_utf8_is_refused(tmp_path, file):
  file.write(tmp_path, row=file.replace_cell(file.texts[0], "caf\udce9"))
  check_refused(
    file, tmp_path, rf":{file.line}: not UTF-8 \(byte 0xe9\); convert the file to UTF-8"
  )


@for_each_file
def test_a_wrong_header_is_refused(tmp_path, file):
  if file.header:
    column = file.header[file.texts[0]]
    file.write(tmp_path, header=tuple(name.replace(column, "text") for name in file.header))
    check_refused(
      file,
      tmp_path,
      rf":(1: should name the columns| no column '{column}'(; did you .*)? .the columns are '\w)",
    )
  else:  # a header although the official file has none
    file.write(tmp_path, header=tuple(f"column{n}" for n in range(len(file.row))))
    check_refused(file, tmp_path, rf":1: label 'column{file.label}': should be ")
