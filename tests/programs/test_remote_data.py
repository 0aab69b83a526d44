"""Text, vocabularies and task rows on gs:// and s3://: what is on a disk, from a store."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from refused import refused
from tiny_runs import PRETRAIN, changed, entries

from gpt_jax.apps.paper import quickstart
from gpt_jax.apps.report import visualize
from gpt_jax.data.sources.source import documents, find
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file, exists, list_folder, read_bytes
from gpt_jax.programs import evaluate, finetune, predict, prepare, pretrain
from gpt_jax.programs.outputs import check_out
from gpt_jax.programs.prepare import PrepareConfig
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.loop import TrainConfig

WORDS = "the a sea ship captain sailed slowly to harbour old grey storm night lantern rope".split()
CONFIG = changed(
  PRETRAIN, train=TrainConfig(steps=8, log_every=1, evaluate_every=4, checkpoint_every=4)
)


def put(url: str, content: bytes | str) -> None:
  with atomic_file(url, "wb") as file:
    file.write(content.encode() if isinstance(content, str) else content)


def copy(folder, url: str) -> str:
  """Copies a local folder to a store."""
  for parent, _, files in os.walk(folder):
    for name in files:
      path = os.path.join(parent, name)
      with open(path, "rb") as file:
        put(f"{url}/{os.path.relpath(path, folder)}", file.read())
  return url


@pytest.fixture
def books(tmp_path):
  """Texts of every kind of source, at two depths."""
  folder, rng = tmp_path / "books", np.random.default_rng(0)
  (folder / "more").mkdir(parents=True)

  def prose(n):
    return " ".join(rng.choice(WORDS, n)) + f". The end of {n}."

  for i in range(6):
    (folder / f"{i}.txt").write_text(prose(30 + 40 * i))
  (folder / "more" / "last.txt.gz").write_bytes(gzip.compress(prose(300).encode()))
  rows = [json.dumps({"text": prose(50 + i)}) for i in range(5)]
  (folder / "more" / "rows.jsonl").write_text("\n".join(rows))
  (folder / "more" / "table.csv").write_text("text\n" + "\n".join(prose(20) for _ in range(3)))
  return folder


def measured(workdir) -> list[dict[str, float]]:
  exact = ("step", "loss", "valid_loss", "dev_accuracy")
  return [{name: row[name] for name in exact if name in row} for row in entries(workdir)]


@pytest.mark.filterwarnings("ignore:.*without . file")
def test_sources(books, store):
  copy(books, store)
  for pattern in ("*.txt", "", "**/*.jsonl", "more/table.csv", "3.txt", "[0-2].txt", "more"):
    local, remote = (os.path.join(folder, pattern).rstrip("/") for folder in (books, store))
    assert [*documents(remote)] == [*documents(local)]
    assert [(name.removeprefix(store), size) for name, size in find(remote)] == [
      (name.removeprefix(str(books)), size) for name, size in find(local)
    ]


def test_parquet_and_zstd(books, store):
  pyarrow = pytest.importorskip("pyarrow")
  from pyarrow import parquet

  zstandard = pytest.importorskip("zstandard")
  texts = [" ".join(np.random.default_rng(i).choice(WORDS, 400)) for i in range(300)]
  parquet.write_table(pyarrow.table({"text": texts}), books / "rows.parquet", row_group_size=70)
  rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
  (books / "rows.jsonl.zst").write_bytes(zstandard.compress(rows.encode()))
  copy(books, store)
  for name in ("rows.parquet", "rows.jsonl.zst"):
    assert [*documents(f"{store}/{name}")] == texts
    put(f"{store}/{name}", read_bytes(f"{store}/{name}", 1 << 30)[:-20])
    with pytest.raises(InputError, match=rf"{store}/{name}: .*(cannot be read|truncated)"):
      [*documents(f"{store}/{name}")]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.txt", "rows.csv"])
def test_a_store_that_breaks_off_is_one_line(store, monkeypatch, name):
  aiohttp, spec = pytest.importorskip("aiohttp"), pytest.importorskip("fsspec.spec")
  put(f"{store}/{name}", "PAR1" * 1000)

  def gone(*_):
    raise aiohttp.ServerDisconnectedError()

  monkeypatch.setattr(spec.AbstractBufferedFile, "read", gone)
  with pytest.raises(InputError, match=rf"{store}/{name}: cannot be read .*Server disconnected"):
    [*documents(f"{store}/{name}")]


def test_missing_sources_are_one_line(store):
  put(f"{store}/a.bin", "x")
  for name, message in {
    "gone.txt": "no such file or folder; a source is a file",
    "*.txt": "no file matches; a source is a file",
    "": "no .*.txt.* file in this folder; give a glob",
  }.items():
    with pytest.raises(InputError, match=message):
      find(f"{store}/{name}".rstrip("/"))


def test_prepare_writes_the_same_folder_to_a_store(books, store, tmp_path, capsys):
  """From and to a store; again, nothing is done; other settings are refused."""
  copy(books, f"{store}/books")
  config = PrepareConfig(source=f"{books}/*.txt", vocab_size=300, valid_share=0.2, sentences=True)
  local, out = str(tmp_path / "out"), f"{store}/out"
  prepare.run(config, local)
  remote = PrepareConfig(**vars(config) | {"source": f"{store}/books/*.txt"})
  prepare.run(remote, out)
  assert sorted(list_folder(out)) == sorted(os.listdir(local))
  for name in ("train.bin", "valid.documents.npy", "valid.sentences.npy"):
    with open(f"{local}/{name}", "rb") as file:
      assert read_bytes(f"{out}/{name}", 1 << 30) == file.read()
  theirs, ours = TokenFile(local, "train"), TokenFile(out, "train")
  assert ours.digest == theirs.digest
  np.testing.assert_array_equal(ours.sentences, theirs.sentences)
  capsys.readouterr()
  prepare.run(remote, out)
  assert "already prepared" in capsys.readouterr().out
  with pytest.raises(InputError, match=r"was prepared with other settings \(vocab_size 300, now"):
    prepare.run(PrepareConfig(**vars(remote) | {"vocab_size": 310}), out)
  # The vocabulary is taken from there, too.
  again = PrepareConfig(
    source=f"{books}/*.txt", tokenizer=f"{out}/tokenizer", valid_share=0.2, sentences=True
  )
  prepare.run(again, str(tmp_path / "again"))
  assert TokenFile(str(tmp_path / "again"), "train").digest == theirs.digest
  assert load_tokenizer(f"{out}/tokenizer").hash == load_tokenizer(f"{local}/tokenizer").hash


def test_an_upload_that_ends_early_is_not_taken_for_a_text(books, gs, monkeypatch, tmp_path):
  """What was prepared is kept, the folder is refused, and the same command makes it."""
  from gpt_jax import files

  config, out = PrepareConfig(source=f"{books}/*.txt", vocab_size=300, valid_share=0.2), f"{gs}/out"
  upload, uploads = files._upload, []

  def fail(local, path, overwrite=True):
    uploads.append(path)
    if len(uploads) > 4:
      raise OSError("503 Service Unavailable")
    upload(local, path, overwrite)

  monkeypatch.setattr(files, "_upload", fail)
  monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
  raised = refused("503 Service Unavailable; what .* is kept in ", prepare.run, config, out)
  monkeypatch.undo()
  kept = raised.rpartition(" ")[2]
  assert TokenFile(kept, "train").n_tokens
  refused("upload is not finished", TokenFile, out, "train")
  prepare.run(config, out)
  assert TokenFile(out, "train").digest == TokenFile(kept, "train").digest


def test_a_folder_of_something_else_is_not_replaced(books, gs):
  put(f"{gs}/notes.txt", "mine")
  config = PrepareConfig(source=f"{books}/*.txt", vocab_size=300)
  refused("not empty, and not made by prepare; choose another --out", prepare.run, config, gs)
  assert list_folder(gs) == ["notes.txt"]


def test_pretraining_has_the_losses_of_the_disk(prepared, store, tmp_path):
  """Bit for bit, and evaluation as well."""
  text = copy(prepared, f"{store}/text")
  results = {}
  for name, data in {"disk": prepared, "store": text}.items():
    result = pretrain.run(CONFIG, data, str(tmp_path / name))
    results[name] = (result, measured(tmp_path / name))
  assert results["store"] == results["disk"]
  assert len(results["disk"][1]) >= 8
  measures = [evaluate.run(str(tmp_path / "disk"), data) for data in (prepared, text)]
  assert measures[0] == measures[1]


def test_finetuning_has_the_losses_of_the_disk(finetuned, gs, tmp_path):
  data = gs + "/rows"
  for name in ("train.tsv", "dev.tsv"):
    with open(os.path.join(finetuned.data_dir, name), "rb") as file:
      put(f"{data}/{name}", file.read())
  finetune.run(finetuned.config, data, finetuned.pretrained, str(tmp_path / "run"))
  assert measured(tmp_path / "run") == measured(f"{finetuned.workdir}/seed_0")
  checkpoint = f"{finetuned.workdir}/seed_0"
  measures = [evaluate.run(checkpoint, folder, "dev") for folder in (data, finetuned.data_dir)]
  assert measures[0] == measures[1]


def test_missing_tables_are_one_line(gs):
  put(f"{gs}/train.csv", "text,label\na,b\n")
  with pytest.raises(InputError, match=rf"^{gs}/train.tsv: No such file .*; there: train.csv"):
    TableTask().build(gs).examples(gs, "train")


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_an_unknown_bucket_is_one_line(stores, scheme, prepared):
  missing = f"{scheme}://nothing/here"
  with pytest.raises(InputError, match=f"{missing}.* cannot be written .no such file or bucket"):
    pretrain.run(CONFIG, prepared, missing)
  with pytest.raises(InputError, match=f"{missing}.* cannot be written .no such file or bucket"):
    check_out(missing, overwrite=False)


def test_an_unknown_bucket_of_inputs_is_one_line(stores):
  refused(r"gs://nothing/here/train\.json: missing", TokenFile, "gs://nothing/here", "train")
  refused("gs://nothing/here: no such folder; a tok", load_tokenizer, "gs://nothing/here")
  assert not exists("gs://nothing/here")


def test_what_reads_fine_tuned_runs(finetuned, gs, tmp_path):
  """Both seeds as an ensemble, a page, and outputs that would replace their input."""
  workdir, rows = copy(finetuned.workdir, f"{gs}/run"), f"{gs}/data/dev.tsv"
  copy(finetuned.data_dir, f"{gs}/data")
  before = read_bytes(rows, 1 << 20)
  for given in ({"source": rows}, {"data": f"{gs}/data", "split": "dev"}):
    refused("name another file", predict.run, workdir, output=rows, overwrite=True, **given)
  assert read_bytes(rows, 1 << 20) == before
  local = predict.run(finetuned.workdir, f"{finetuned.data_dir}/dev.tsv", str(tmp_path / "a.tsv"))
  assert predict.run(workdir, rows, f"{gs}/a.tsv") == local
  assert read_bytes(f"{gs}/a.tsv", 1 << 20) == (tmp_path / "a.tsv").read_bytes()
  visualize.run(f"{workdir}/seed_0", f"{gs}/page.html", ["the cat meows"])
  assert b"meows" in read_bytes(f"{gs}/page.html", 1 << 24)


def test_quickstart_needs_a_disk(gs):
  refused("gs:// is not supported here", quickstart.run, f"{gs}/quickstart", short=True)
  assert not exists(f"{gs}/quickstart")


def test_local_text_needs_no_package_of_a_store(prepared):
  code = """
import sys
from gpt_jax.data.sources.source import find
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.windows import Windows, WindowsConfig
Windows(TokenFile(sys.argv[1], "train"), WindowsConfig(2, 16))(0)
find(sys.argv[1] + "/tokenizer/*")
print([name for name in ("fsspec", "gcsfs", "s3fs", "etils") if name in sys.modules])
"""
  result = subprocess.run(
    [sys.executable, "-c", code, prepared], capture_output=True, text=True, check=True
  )
  assert result.stdout == "[]\n"
