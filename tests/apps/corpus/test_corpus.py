"""prepare without duplicates and evaluation rows: the ledger, what is left, and mistakes."""

import json
import random

import pytest
from refused import refused

from gpt_jax.apps.corpus import removal
from gpt_jax.apps.corpus.contamination import evaluation_rows
from gpt_jax.apps.corpus.corpus import CorpusConfig, run
from gpt_jax.apps.corpus.removal import RemovingPasses
from gpt_jax.data.token_file import TokenFile
from gpt_jax.programs import prepare
from gpt_jax.tasks.task import find

pytest.importorskip("datasketch")
ROW = "nobody had told the keeper of the lantern that the grey ship would sail before the storm"


def settings(source, /, **changes) -> CorpusConfig:
  return CorpusConfig(**{"source": str(source), "vocab_size": 320, "valid_share": 0.1} | changes)


@pytest.fixture
def corpus(tmp_path):
  """20 documents; 20 to 22 are a copy, one with 5 % of its words changed, and one with a row."""
  rng = random.Random(0)
  words = [f"{a}{b}{c}" for a in "bdfg" for b in "aeio" for c in ("la", "men", "tor", "sk", "rin")]
  texts = [rng.choices(words, k=300) for _ in range(20)]
  near = list(texts[5])
  for position in rng.sample(range(300), 15):
    near[position] = "changed"
  row = [*texts[7][:50], *ROW.upper().split(), *texts[8][50:100]]
  documents = [" ".join(text) for text in [*texts, texts[3], near, row]]
  path = tmp_path / "corpus.jsonl"
  path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
  (tmp_path / "rows.txt").write_text(f"{ROW}\nshort one\n")
  return path


def n_documents(out):
  return sum(TokenFile(out, split).n_documents for split in ("train", "valid"))


def test_texts_without_words_are_duplicates_only_if_equal(tmp_path):
  (tmp_path / "marks.jsonl").write_text("".join(f'{{"text": "{t}"}}\n' for t in "😀🚀😀⛵"))
  with (tmp_path / "marks.jsonl").open("a") as file:
    file.write(json.dumps({"text": "the cat sat on the mat " * 90}) + "\n")
  run(settings(tmp_path / "marks.jsonl", vocab_size=280, deduplicate="near"), str(tmp_path / "out"))
  (removed,) = (tmp_path / "out" / "removed.jsonl").read_text().splitlines()
  assert json.loads(removed)["rule"] == "exact duplicate"


def test_the_ledger_and_what_is_left(corpus, tmp_path, capsys):
  changes = {"deduplicate": "near", "decontaminate": str(tmp_path / "rows.txt")}
  run(settings(corpus, **changes), str(tmp_path / "out"))
  lines = (tmp_path / "out" / "removed.jsonl").read_text().splitlines()
  copy, near, row = map(json.loads, lines)
  exact = {"document": f"{corpus}#20", "rule": "exact duplicate", "with": f"{corpus}#3"}
  assert copy == exact | {"score": 1.0}
  assert (near["document"], near["with"]) == (f"{corpus}#21", f"{corpus}#5")
  assert near["rule"] == "near-duplicate" and 0.5 < near["score"] < 0.8
  assert row["document"] == f"{corpus}#22" and row["with"] == f"{tmp_path / 'rows.txt'}:1"
  assert n_documents(tmp_path / "out") == 20
  shown = capsys.readouterr().out
  assert "rows.txt: 1 texts to look for; 1 of fewer than 5 words are not" in shown
  assert "removed 3 of 23 documents (13.04%)" in shown
  names = {f"{split}.{end}" for split in ("train", "valid") for end in ("bin", "json")}
  names |= {"train.documents.npy", "valid.documents.npy"}
  names |= {"prepare.json", "removed.jsonl", "tokenizer"}
  assert {path.name for path in (tmp_path / "out").iterdir()} == names
  # The text is the one of a corpus that never had them.
  kept = corpus.read_text().splitlines(keepends=True)[:20]
  corpus.write_text("".join(kept))
  run(settings(corpus), str(tmp_path / "clean"))
  assert not (tmp_path / "clean" / "removed.jsonl").exists()
  for name in ("train.bin", "valid.bin", "train.documents.npy"):
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "clean" / name).read_bytes()


def test_other_evaluation_rows_are_other_settings(corpus, tmp_path, capsys):
  config = settings(corpus, decontaminate=str(tmp_path / "rows.txt"))
  run(config, str(tmp_path / "out"))
  run(config, str(tmp_path / "out"))
  assert "already prepared" in capsys.readouterr().out
  (tmp_path / "rows.txt").write_text("these are other words of a row\n")
  refused("evaluation_rows", run, config, str(tmp_path / "out"))


def test_a_kill_after_the_first_pass_keeps_what_is_removed(corpus, tmp_path, monkeypatch, capsys):
  config = settings(corpus, deduplicate="near", decontaminate=str(tmp_path / "rows.txt"))
  run(config, str(tmp_path / "whole"))

  def killed(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(prepare, "_write_splits", killed)
    run(config, str(tmp_path / "out"))
  monkeypatch.setattr(RemovingPasses, "removed", None)
  run(config, str(tmp_path / "out"))
  assert "taking over the vocabulary" in capsys.readouterr().out
  for name in ("train.bin", "valid.bin", "removed.jsonl", "prepare.json"):
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_an_interrupt_of_the_comparison_leaves_nothing(corpus, tmp_path, monkeypatch, capsys):
  def interrupted(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(removal, "removals", interrupted)
  with pytest.raises(KeyboardInterrupt):
    run(settings(corpus, deduplicate="near"), str(tmp_path / "out"))
  assert not list(tmp_path.glob("out*")) and "is kept" not in capsys.readouterr().err


@pytest.mark.parametrize(
  "name, content, number",
  [
    ("rows.csv", f'id,text\n1,"short,\none"\n2,"{ROW}"\n', 4),
    ("rows.tsv", f'id\ttext\n1\t"short\n2\t{ROW}\n', 3),
    ("rows.jsonl", json.dumps({"id": 1, "texts": ["short", ROW]}), 1),
  ],
)
def test_rows_of_a_file(tmp_path, name, content, number):
  path = tmp_path / name
  path.write_text(content)
  assert evaluation_rows(str(path), "") == [(f"{path}:{number}", ROW)]
  if name == "rows.csv":
    path.write_text(f'id,text\n1,{ROW}\n2,"{ROW}\n')  # an open quote
    refused(r"rows\.csv:3: not CSV with commas", evaluation_rows, str(path), "")


def test_rows_of_tasks(corpus, tmp_path):
  """Of one in files, and of one of tagged words."""
  data = tmp_path / "tasks" / "glue" / "RTE"
  data.mkdir(parents=True)
  header = "index\tsentence1\tsentence2\tlabel\n"
  (data / "dev.tsv").write_text(f"{header}0\t{ROW}.\tNobody told him.\tentailment\n")
  (example, *_) = find("story-tags").examples("", "dev")
  corpus.write_text(corpus.read_text() + json.dumps({"text": " ".join(example.words)}) + "\n")
  changes = {"decontaminate": "rte,story-tags", "data": str(tmp_path / "tasks")}
  run(settings(corpus, **changes), str(tmp_path / "out"))
  entries = map(json.loads, (tmp_path / "out" / "removed.jsonl").read_text().splitlines())
  found = [(entry["document"], " ".join(entry["with"].split()[:2])) for entry in entries]
  assert found == [(f"{corpus}#22", "rte dev"), (f"{corpus}#23", "story-tags dev")]


@pytest.mark.parametrize(
  "changes, fault",
  [
    ({"decontaminate": "gone.txt"}, r"--decontaminate=gone\.txt: no such file"),
    ({"decontaminate": "rtee"}, r"no task 'rtee'; did you mean rte"),
    ({"decontaminate": "rte"}, r"--decontaminate=rte: .*--data names the folder of the tasks"),
    ({"deduplicate": "fuzzy"}, r"deduplicate"),
  ],
)
def test_mistakes_are_met_before_the_work(corpus, tmp_path, changes, fault):
  refused(fault, lambda: run(settings(corpus, **changes), str(tmp_path / "out")))
  assert not (tmp_path / "out").exists()


def test_nothing_is_left(tmp_path):
  rows, out = tmp_path / "rows.txt", str(tmp_path / "out")
  rows.write_text(ROW)
  refused("every document is removed", run, settings(rows, decontaminate=str(rows)), out)
  rows.write_text(" \n")
  refused("there is no text in it", run, settings(rows, deduplicate="near"), out)
