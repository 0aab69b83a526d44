"""prepare: a folder whole or not at all, documents kept apart, one line for each mistake."""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from refused import refused

from gpt_jax.data import passes, pieces, splits, storyworld
from gpt_jax.data.cleaning import clean, cleaner
from gpt_jax.data.passes import Encoded
from gpt_jax.data.sources import text as text_source
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.files import lock_folder
from gpt_jax.programs import prepare
from gpt_jax.programs.prepare import PrepareConfig, run

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
WORDS = (
  "the a sea ship captain sailed slowly to harbour old grey and storm night nobody spoke of "
  "lantern rope"
).split()


def prose(seed: int, words: int) -> str:
  draw = random.Random(seed)
  text = [draw.choice(WORDS) + (".\n" if draw.random() < 0.05 else "") for _ in range(words)]
  return " ".join(text).replace("\n ", "\n") + f" End of {seed}."


@pytest.fixture
def books(tmp_path) -> Path:
  """Twelve documents of very different lengths."""
  folder = tmp_path / "books"
  folder.mkdir()
  for i in range(12):
    (folder / f"{i:02}.txt").write_text(prose(i, 20 + 40 * i * i), encoding="utf-8")
  return folder


def settings(source, /, **changes) -> PrepareConfig:
  vocab_size = 0 if "tokenizer" in changes else 320
  defaults = {"source": str(source), "vocab_size": vocab_size, "valid_share": 0.1}
  return PrepareConfig(**defaults | changes)


def documents(file: TokenFile) -> list[list[int]]:
  """The ids of each document."""
  return [file.read(a, b - a).tolist() for a, b in itertools.pairwise(file.offsets.tolist())]


def texts(out) -> dict[str, list[str]]:
  """The documents of each split, decoded."""
  decode = load_tokenizer(out / "tokenizer").decode
  splits = "train", "valid"
  return {split: [*map(decode, documents(TokenFile(out, split)))] for split in splits}


def contents(folder: Path) -> dict[str, bytes]:
  return {
    str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
  }


def read_in_pieces(monkeypatch, size: int) -> None:
  monkeypatch.setattr(pieces, "PIECE_SIZE", size)
  monkeypatch.setattr(text_source, "BLOCK_SIZE", size)


def test_every_document_once_in_one_split_and_whole(books, tmp_path, capsys):
  out = tmp_path / "out"
  run(settings(books), out)
  got = texts(out)
  originals = [clean(path.read_text()).lower() for path in sorted(books.iterdir())]
  assert sorted(got["train"] + got["valid"]) == sorted(originals)
  assert 1 <= len(got["valid"]) <= 6
  share = sum(map(len, got["valid"])) / sum(map(len, originals))
  assert 0.05 < share <= 0.1
  shown = capsys.readouterr().out
  labels = "documents, tokens per word, unigram entropy, spelled in bytes"
  for label in (*labels.split(", "), "MB of memory"):
    assert label in shown
  tokenizer = load_tokenizer(out / "tokenizer")
  assert tokenizer.vocab_size == 320
  sources = [[str(path), path.stat().st_size] for path in sorted(books.iterdir())]
  for split in ("train", "valid"):
    file = TokenFile(out, split)
    share = np.bincount(file.read(0, file.n_tokens)) / file.n_tokens
    assert file.unigram_entropy == pytest.approx(-sum(p * np.log(p) for p in share if p))
    assert file.n_bytes == sum(len(text.encode()) for text in got[split])
    assert file.n_words == sum(len(text.split()) for text in got[split])
    assert file.vocab_size == 320 and file.tokenizer_hash == tokenizer.hash
    expected = {"normalizer": tokenizer.normalizer, "cleaner": cleaner()}
    assert file.header.items() >= {**expected, "sources": sources, "unknown_share": 0}.items()


def run_each_way(config, tmp_path, monkeypatch):
  """Three runs that give one folder: in this process, by two workers, and in small pieces."""
  monkeypatch.setattr(os, "cpu_count", lambda: 2)
  for name, small, size in (
    ("one", passes.SMALL, pieces.PIECE_SIZE),
    ("two", 0, pieces.PIECE_SIZE),
    ("three", 1 << 22, 700),
  ):
    monkeypatch.setattr(passes, "SMALL", small)
    read_in_pieces(monkeypatch, size)
    run(config, tmp_path / name)
  assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "three")


def test_workers_and_pieces_change_nothing(books, tmp_path, monkeypatch):
  run_each_way(settings(books), tmp_path, monkeypatch)


@pytest.mark.parity("released")
def test_openais_vocabulary(books, tmp_path, monkeypatch, openai_tokenizer):
  vocabulary = tmp_path / "vocabulary"
  openai_tokenizer.save(vocabulary)
  (vocabulary / "tokenizer.json").unlink()  # as it was released
  run_each_way(settings(books, tokenizer=str(vocabulary)), tmp_path, monkeypatch)
  assert load_tokenizer(tmp_path / "one" / "tokenizer").hash == openai_tokenizer.hash
  found = []
  for split in ("train", "valid"):
    found += documents(TokenFile(tmp_path / "one", split))
  cleaned = [clean(path.read_text()) for path in sorted(books.iterdir())]
  assert sorted(found) == sorted(openai_tokenizer.encode(text).tolist() for text in cleaned)
  assert any(openai_tokenizer.line_id in ids for ids in found)


def test_a_missing_package_is_met_before_the_reading(
  books, tmp_path, monkeypatch, openai_tokenizer
):
  openai_tokenizer.save(tmp_path / "vocabulary")
  monkeypatch.setattr(prepare, "take_survey", None)
  monkeypatch.setitem(sys.modules, "tokenizers", None)
  monkeypatch.setitem(sys.modules, "ftfy", SimpleNamespace(fix_text=None))
  config = settings(books, tokenizer=str(tmp_path / "vocabulary"))
  refused("needs tokenizers: pip install", run, config, tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_several_sources_and_json_lines(books, tmp_path, monkeypatch):
  monkeypatch.setattr(storyworld, "documents", lambda: iter([prose(i, 200) for i in range(8)]))
  rows = tmp_path / "rows.jsonl"
  rows.write_text("\n".join(json.dumps({"story": prose(100 + i, 30)}) for i in range(30)))
  run(settings(f"{books}/*.txt,{rows},embedded", text_column="story"), tmp_path / "out")
  got = texts(tmp_path / "out")
  assert len(got["train"]) + len(got["valid"]) == 50
  assert any("end of 129." in text for text in got["train"] + got["valid"])


def test_a_vocabulary_is_reused(books, tmp_path):
  one, two, other = (tmp_path / name for name in ("one", "two", "other.txt"))
  run(settings(books), one)
  tokenizer = str(one / "tokenizer")
  other.write_text("The SEA spoke of zebras.\n\nOld ropes — and “storms”.\n" * 20)
  run(settings(other, tokenizer=tokenizer), two)
  before, after = TokenFile(one, "train"), TokenFile(two, "train")
  assert before.tokenizer_hash == after.tokenizer_hash
  cleaned = 'the sea spoke of zebras.\nold ropes - and "storms".\n'
  assert texts(two)["train"][0].startswith(cleaned)
  assert 0 < after.header["unknown_share"] < 0.2  # no z, no dash in the first text
  refused("no tokenizer here", run, settings(books, tokenizer=str(books)), tmp_path / "three")
  # Its size is not for the user to choose.
  wrong = settings(books, tokenizer=tokenizer, vocab_size=300)
  refused(r"--vocab_size=300: the tokenizer in .* has 320 ids; leave", run, wrong, tmp_path / "no")
  assert not (tmp_path / "no").exists()
  run(settings(books, tokenizer=tokenizer, vocab_size=320), tmp_path / "four")
  run(settings(books, tokenizer=tokenizer), tmp_path / "four")  # the same settings
  assert contents(one / "tokenizer") == contents(tmp_path / "four" / "tokenizer")


@pytest.mark.parametrize(("line_id", "expected"), [(1, [3, 1, 4, 5]), (None, [3, 4, 5])])
def test_a_line_break_joins_paragraphs_if_the_tokenizer_has_one(tmp_path, line_id, expected):
  tokenizer = SimpleNamespace(vocab_size=9, line_id=line_id, hash="h", normalizer="n")
  tokenizer.byte_fallback = np.zeros(9, bool)
  writer = splits.SplitWriter(str(tmp_path), "train", tokenizer)
  for ids, joint, last in (([3], "\n", False), ([4], " ", False), ([5], "", True)):
    piece = pieces.Piece("x", None, joint, last)
    writer.add(piece, Encoded(np.array(ids), n_bytes=1, n_words=1))
  writer.close([])
  file = TokenFile(tmp_path, "train")
  assert file.read(0, file.n_tokens).tolist() == expected
  assert (file.n_documents, file.n_bytes) == (1, 5)


def test_a_share_far_from_that_asked_for_is_told_of(tmp_path, launch):
  for name, size in (("long", 8000), ("short", 4000)):
    (tmp_path / f"{name}.txt").write_text(prose(0, size))
  flags = f"--source={tmp_path}/*.txt", "--vocab_size=320"
  code, shown, _ = launch("prepare", *flags, "--valid_share=0.05", f"--out={tmp_path}/far")
  (share,) = re.findall(
    r"held out for validation: (0\.\d+) of the text, not 0\.05 as --valid_share says: "
    "of 2 documents none is cut;",
    shown,
  )
  assert code == 0 and float(share) == pytest.approx(1 / 3, abs=0.02)
  code, shown, _ = launch("prepare", *flags, "--valid_share=0.3", f"--out={tmp_path}/near")
  assert code == 0 and "held out" not in shown


def test_blank_documents_and_small_shares_of_a_vocabulary(tmp_path, launch):
  (tmp_path / "a.txt").write_text(prose(0, 3000))
  (tmp_path / "b.txt").write_text("\x0c\u00a0\n")  # not blank to SentencePiece
  flags = f"--source={tmp_path}/*.txt", "--vocab_size=290", f"--out={tmp_path}/out"
  code, shown, errors = launch("prepare", *flags, "--vocabulary_share=0.0001")
  assert code == 2 and "--vocabulary_share=0.0001: draws no words from 1 document; use" in errors
  code, shown, errors = launch("prepare", *flags)
  assert code == 0 and "one document only" in shown


@pytest.mark.parametrize("size", [1 << 19, 3000])
def test_one_document_gives_its_tail(tmp_path, monkeypatch, capsys, size):
  read_in_pieces(monkeypatch, size)
  (tmp_path / "book.txt").write_text(prose(0, 8000))
  run(settings(tmp_path / "book.txt"), tmp_path / "out")
  assert "one document only" in capsys.readouterr().out
  got = texts(tmp_path / "out")
  whole = clean(prose(0, 8000)).lower()
  (train,), (valid,) = got["train"], got["valid"]
  assert f"{train}\n{valid}" == whole
  assert 0.1 <= len(valid) / len(whole) < 0.13


def test_a_giant_paragraph_in_pieces_is_one_paragraph(tmp_path, monkeypatch):
  line = prose(0, 3000).replace("\n", " ")
  for name in ("a", "b", "c"):
    (tmp_path / f"{name}.txt").write_text(line)
  read_in_pieces(monkeypatch, 1000)
  run(settings(f"{tmp_path}/*.txt"), tmp_path / "out")
  assert set(texts(tmp_path / "out")["train"]) == {line.lower()}


def test_many_documents_are_drawn_one_by_one(tmp_path, monkeypatch):
  monkeypatch.setattr(passes, "FEW", 100)
  rows = tmp_path / "rows.jsonl"
  rows.write_text("\n".join(json.dumps({"text": f"ship {i} sailed to sea"}) for i in range(3000)))
  run(settings(rows), tmp_path / "out")
  got = texts(tmp_path / "out")
  assert len(got["train"]) + len(got["valid"]) == 3000
  assert 230 < len(got["valid"]) < 370
  rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:300]))
  run(settings(rows, vocab_size=290, valid_share=0.0001), tmp_path / "few")
  assert len(texts(tmp_path / "few")["valid"]) == 1


def test_held_out_documents_that_are_in_the_training_text_are_told(tmp_path, capsys):
  texts = [f"the cat number {n} sat on the mat" for n in range(8)]
  source = tmp_path / "x.jsonl"
  for repeats, told in ((1, False), (3, True)):
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) * repeats)
    run(settings(source, vocab_size=290, valid_share=0.2), tmp_path / str(repeats))
    assert ("held-out documents are in the training text, too" in capsys.readouterr().out) == told


def test_other_settings_lose_nothing(books, tmp_path, capsys):
  out = tmp_path / "out"
  run(settings(books), out)
  before = contents(out)
  capsys.readouterr()
  run(settings(books), out)
  assert capsys.readouterr().out == f"{out}: already prepared with these settings\n"
  os.utime(
    books / "00.txt", ns=(0, max(path.stat().st_mtime_ns for path in books.iterdir()) + 10**9)
  )
  run(settings(books), out)
  assert f"{out}: a source was modified since" in capsys.readouterr().out
  changed = settings(books, vocab_size=300)
  refused("other settings \\(vocab_size 320, now 300\\)", run, changed, out)
  (books / "more.txt").write_text("more")
  refused("its sources have changed", lambda: run(settings(books), out))
  assert contents(out) == before
  (books / "more.txt").unlink()
  (out / "train.bin").write_bytes(before["train.bin"][:-2])
  refused(r"train\.bin: truncated", lambda: run(settings(books), out))
  (out / "train.bin").write_bytes(bytes(len(before["train.bin"])))
  refused(r"train\.bin: wrong checksum of the bytes from 0 on", lambda: run(settings(books), out))
  (out / "train.bin").write_bytes(before["train.bin"])
  model = out / "tokenizer" / "tokenizer.model"
  model.write_bytes(model.read_bytes()[:-1])
  refused("tokenizer", lambda: run(settings(books), out))


def test_what_is_not_ours_is_left_alone(books, tmp_path, monkeypatch):
  refused("not empty, and not made by prepare", lambda: run(settings(books), books))
  refused(
    "is a file; --out names the folder to make", lambda: run(settings(books), books / "00.txt")
  )
  (tmp_path / "empty").mkdir()
  (tmp_path / "link").symlink_to("empty")
  run(settings(books), tmp_path / "link")
  assert (tmp_path / "empty" / "train.bin").exists() and (tmp_path / "link").is_symlink()
  (tmp_path / "mounted").mkdir()
  monkeypatch.setattr(os.path, "ismount", lambda path: os.path.basename(path) == "mounted")
  refused("mounted: is a mounted folder", lambda: run(settings(books), tmp_path / "mounted"))


@pytest.mark.parametrize(
  ("changes", "fault"),
  [
    ({"vocab_size": 30_000}, r"30000 is more than this text supports; the most is vocab_size=\d+"),
    ({"vocab_size": 20}, "vocab_size 20 is too small"),
    ({"valid_share": 0.9}, "valid_share = 0.9: must be"),
  ],
)
def test_bad_settings(books, tmp_path, changes, fault):
  refused(fault, lambda: run(settings(books, **changes), tmp_path / "out"))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["books"]


def test_several_sources_are_one_corpus(books, tmp_path, launch, monkeypatch):
  monkeypatch.chdir(tmp_path)
  first, second, *others = "books/0?.txt", "books/1?.txt", "--vocab_size=320", "--valid_share=0.1"
  others.append("--shard_tokens=20000")
  several = "prepare", f"--source={first}", f"--source={second}", *others
  with monkeypatch.context() as patch:
    patch.setattr(prepare, "_write_splits", raise_interrupt)
    assert launch(*several, "--out=out")[0] == 130
  code, shown, errors = launch(*several, "--out=out")
  assert code == 0 and "taking over the vocabulary" in shown, errors
  run(settings("books", shard_tokens=20_000), "at once")
  made, at_once = contents(tmp_path / "out"), contents(tmp_path / "at once")
  listed = json.loads(made.pop("prepare.json"))
  assert listed["source"] == f"{first},{second}"
  assert listed["sources"] == json.loads(at_once.pop("prepare.json"))["sources"]
  assert made == at_once and "train-00001.bin" in made

  for again in (several, ("prepare", f"--source={first},{second}", *others)):
    code, shown, errors = launch(*again, "--out=out")
    assert code == 0 and "already prepared with these settings" in shown, errors
  for changed in (second, first), (second,):
    sources = (f"--source={name}" for name in changed)
    code, _, errors = launch("prepare", *sources, *others, "--out=out")
    assert code == 2 and "was prepared with other settings (source " in errors


def is_running(process: int) -> bool:
  try:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
  except FileNotFoundError:
    return False


def wait_until(condition) -> None:
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_and_nothing_is_left(books, tmp_path, number):
  """After an interrupt at once; after a kill the next run cleans up."""
  text = prose(0, 200_000)
  (books / "0.txt").write_text(text)
  (books / "long").write_text(text * 40)  # more than the run comes to
  program = subprocess.Popen(
    [sys.executable, ROOT / "launch" / "prepare.py", f"--source={books}/*.txt"]
    + [f"--source={books}/long", f"--out={tmp_path}/out", "--vocab_size=320"],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
  try:
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    partial = tmp_path / "out.partial"
    wait_until(lambda: partial.exists() and len(children.read_text().split()) >= 2)
    time.sleep(0.5)
    workers = [int(child) for child in children.read_text().split()]
    if number == signal.SIGINT:
      os.killpg(program.pid, number)  # as Ctrl-C does: everybody gets it
    else:
      program.kill()
    _, errors = program.communicate(timeout=30)
    wait_until(lambda: not any(map(is_running, workers)))
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(program.pid, signal.SIGKILL)
  if number == signal.SIGINT:
    assert program.returncode == 130 and errors.endswith("interrupted\n")
    assert os.listdir(tmp_path) == ["books"]
  else:
    assert set(os.listdir(tmp_path)) == {"books", "out.partial"}
    run(settings(f"{books}/*.txt"), tmp_path / "out")
    assert set(os.listdir(tmp_path)) == {"books", "out"}


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_finished_vocabulary_is_taken_over(books, tmp_path, monkeypatch, capsys, end):
  """After Ctrl-C; other failures leave nothing."""
  out = tmp_path / "out"

  def stop(*_):
    raise end

  with monkeypatch.context() as patch, pytest.raises(end):
    patch.setattr(splits.SplitWriter, "close", stop)
    run(settings(books), out)
  if end is SystemExit:
    assert not list(tmp_path.glob("out*"))
    return
  left = tmp_path / "out.partial"
  assert sorted(os.listdir(left)) == ["lock", "stages"]
  finished = ["key.json", "removed.npy", "survey.json", "tokenizer"]
  assert sorted(os.listdir(left / "stages")) == finished
  assert "the vocabulary is kept; the same command uses it" in capsys.readouterr().err
  with monkeypatch.context() as patch:
    patch.setattr(prepare, "take_survey", lambda *_, **__: pytest.fail("counted again"))
    run(settings(books), out)
  assert "taking over the vocabulary of 320 ids" in capsys.readouterr().out
  run(settings(books), tmp_path / "at once")
  assert contents(out) == contents(tmp_path / "at once")
  assert not list(tmp_path.glob("out.partial*"))


@pytest.mark.parametrize("change", ["settings", "text", "damage"])
def test_a_vocabulary_of_something_else_is_not(books, tmp_path, monkeypatch, capsys, change):
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(prepare, "_write_splits", raise_interrupt)
    run(settings(books), tmp_path / "out")
  left, again = tmp_path / "out.partial", settings(books)
  if change == "settings":
    again = settings(books, vocab_size=330)
  elif change == "text":  # of the same size
    path = books / "03.txt"
    path.write_text(path.read_text().swapcase())
  else:
    os.truncate(left / "stages" / "tokenizer" / "tokenizer.model", 100)
  run(again, tmp_path / "out")
  assert "taking over" not in capsys.readouterr().out
  assert not list(tmp_path.glob("out.partial*"))


def raise_interrupt(*_):
  raise KeyboardInterrupt


def test_one_run_at_a_time_makes_a_folder(books, tmp_path):
  out = tmp_path / "out"
  with lock_folder(f"{out}.partial", ""):
    refused("out.partial: another prepare is making .*out; wait", run, settings(books), out)
  (tmp_path / "out.partial" / "train-00007.bin").write_bytes(b"of a killed run, or not")
  refused("out.partial: is not of a killed prepare", run, settings(books), out)
  (tmp_path / "out.partial" / "stages").mkdir()
  (tmp_path / "out.partial" / "stages" / "key.json").write_text("{}")
  run(settings(books), out)
  assert {path.name for path in tmp_path.iterdir()} == {"books", "out"}
  assert not {"lock", "train-00007.bin"} & set(os.listdir(out))


def test_what_prepare_has_not_made_stays(books, tmp_path):
  (tmp_path / "mine").mkdir()
  (tmp_path / "a.partial").symlink_to(tmp_path / "mine")
  (tmp_path / "b.partial").mkdir()
  (tmp_path / "b.partial" / "mine.txt").write_text("mine")
  for name in ("a", "b"):
    refused(f"{name}.partial: is not of a killed prepare", run, settings(books), tmp_path / name)
  assert not os.listdir(tmp_path / "mine") and os.listdir(tmp_path / "b.partial") == ["mine.txt"]


def test_a_lock_that_its_owner_removes_is_not_free(tmp_path, monkeypatch):
  def removed(file, _):
    os.remove(file.name)  # between opening and locking

  monkeypatch.setattr("fcntl.flock", removed)
  refused("is taken", lock_folder, str(tmp_path / "a"), "is taken")
