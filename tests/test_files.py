"""JSON, read strictly, and atomic writes of files and folders."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from refused import refused

from gpt_jax import files
from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import (
  atomic_file,
  atomic_folder,
  open_regular,
  read_json,
  refuse_url,
  verified,
  with_checksum,
  write_json,
)
from gpt_jax.programs.outputs import check_out


@pytest.mark.parametrize("mode, content", [("w", "café\r\n\n"), ("wb", b"\x00\xff")])
def test_a_file_is_replaced_when_it_is_complete(tmp_path, mode, content):
  path = tmp_path / "file"
  path.write_text("before")
  with atomic_file(str(path), mode) as file:
    file.write(content)
    file.flush()
    assert path.read_text() == "before"
  assert path.read_bytes() == (content if "b" in mode else content.encode())
  assert os.listdir(tmp_path) == ["file"]


def test_after_an_error_nothing_has_changed(tmp_path):
  path = tmp_path / "file"
  path.write_text("before")
  with pytest.raises(ValueError), atomic_file(str(path)) as file:
    file.write("half of")
    raise ValueError
  assert path.read_text() == "before" and os.listdir(tmp_path) == ["file"]


def test_a_file_does_not_replace_a_folder(tmp_path):
  (tmp_path / "file").mkdir()
  with pytest.raises(OSError), atomic_file(str(tmp_path / "file")) as file:
    file.write("text")
  assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").is_dir()


@pytest.mark.parametrize("hard_links", [True, False])
def test_without_overwrite_a_new_file_is_written(tmp_path, monkeypatch, hard_links):
  if not hard_links:
    monkeypatch.setattr(os, "link", refuse_links)
  with atomic_file(str(tmp_path / "file"), overwrite=False) as file:
    file.write("text")
  assert (tmp_path / "file").read_text() == "text" and os.listdir(tmp_path) == ["file"]


def refuse_links(old, new):
  raise PermissionError(1, "Operation not permitted")


def test_without_overwrite_a_file_that_appears_late_is_kept(tmp_path):
  path = tmp_path / "file"
  with pytest.raises(FileExistsError), atomic_file(str(path), overwrite=False) as file:
    file.write("ours")
    path.write_text("theirs")
  assert path.read_text() == "theirs" and os.listdir(tmp_path) == ["file"]


def test_a_link_planted_as_the_partial_file_is_not_followed(tmp_path):
  (tmp_path / "victim").write_text("precious")
  (tmp_path / f"new.partial-{os.getpid()}").symlink_to("victim")
  with atomic_file(tmp_path / "new") as file:
    file.write("new")
  assert (tmp_path / "victim").read_text() == "precious"
  assert (tmp_path / "new").read_text() == "new" and not (tmp_path / "new").is_symlink()
  assert sorted(os.listdir(tmp_path)) == ["new", "victim"]


@pytest.mark.parametrize(
  ("text", "match"),
  [
    ("{", "Expecting"),
    ('{"a": 1, "b": {"c": 1, "c": 2}}', "two entries named 'c'"),
    ("[" * 100_000, "nested too deeply"),
    ('{"a":' * 100_000, "nested too deeply"),
  ],
)
def test_json_is_read_strictly(tmp_path, text, match):
  (tmp_path / "a.json").write_text(text)
  with pytest.raises(ValueError, match=match):
    read_json(str(tmp_path / "a.json"))


def test_json_is_read_from_small_regular_files(tmp_path):
  os.mkfifo(tmp_path / "fifo")
  for path in (tmp_path / "fifo", "/dev/zero"):
    with pytest.raises(ValueError, match="not a regular file"):
      read_json(str(path))
  with open(tmp_path / "large", "wb") as file:
    file.truncate(10**12)  # sparse
  with pytest.raises(ValueError, match="1,000,000,000,000 bytes, more than"):
    read_json(str(tmp_path / "large"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_with_contents_and_no_length_is_refused(tmp_path):
  """It may be as long as all that a process can address."""
  with pytest.raises(ValueError, match="not a regular file: it has contents and no length"):
    open_regular("/proc/self/pagemap")
  (tmp_path / "empty").touch()
  with open_regular(str(tmp_path / "empty")) as file:
    assert file.read() == b""


def test_a_checksum_tells_what_was_written():
  entries = {"b": [1, 2.5], "a": "x"}
  value = json.loads(json.dumps(with_checksum(entries)))
  assert verified(value) == entries
  for changed in (value | {"a": "y"}, value | {"c": 1}, {"a": "x"}, [], None, 3):
    with pytest.raises(ValueError, match="checksum does not match|no JSON object with a"):
      verified(changed)


def test_a_long_wait_is_announced(monkeypatch):
  """The outermost one, of the main thread, where a program listens; a library says nothing."""
  said, wait = [], lambda: time.sleep(0.2)
  monkeypatch.setattr(files, "PATIENCE", 0.05)

  def load(inner=wait):
    with files.announced("loading the model"), files.announced("waiting for its store"):
      inner()

  load()
  monkeypatch.setattr(files, "announce", said.append)
  thread = threading.Thread(target=load)
  thread.start()
  thread.join()
  load(lambda: None)
  assert said == []
  load()
  with pytest.raises(ZeroDivisionError):
    load(lambda: 1 / 0)
  store = types.SimpleNamespace(exists=lambda path: wait())
  monkeypatch.setattr(files, "_store", lambda path: store)
  files.exists("gs://bucket/folder/file")
  assert said == ["loading the model", "waiting for gs://bucket"]


def test_a_store_has_files_and_folders(store):
  folder = f"{store}/folder"
  assert not files.exists(folder) and not files.is_folder(folder)
  with pytest.raises(FileNotFoundError):
    files.list_folder(folder)
  assert files.list_existing(folder) == []
  with atomic_file(f"{folder}/text") as file:
    file.write("café\r\n")
  write_json(f"{folder}/inner/value.json", [1, 2])
  assert files.is_folder(folder) and sorted(files.list_folder(folder)) == ["inner", "text"]
  assert files.read_bytes(f"{folder}/text", 100) == "café\r\n".encode()
  assert files.read_range(f"{folder}/text", 1, 3) == b"af"
  assert files.size(f"{folder}/text") == 7
  assert read_json(f"{folder}/inner/value.json") == [1, 2]
  with files.open_regular(f"{folder}/text") as file:
    file.seek(2)
    assert file.read(1) == b"f"
  with pytest.raises(FileNotFoundError):
    read_json(f"{folder}/other.json")
  with pytest.raises(ValueError, match="more than 3"):
    files.read_bytes(f"{folder}/text", 3)
  files.rename_folder(folder, f"{store}/renamed")
  assert not files.exists(folder) and files.exists(f"{store}/renamed/inner/value.json")
  files.remove(f"{store}/renamed/text")
  assert files.list_folder(f"{store}/renamed") == ["inner"]
  files.remove_folder(f"{store}/renamed")
  assert not files.exists(f"{store}/renamed")


def test_an_object_is_written_when_it_is_complete(store):
  path = f"{store}/object"
  with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
    file.write("text")
    1 / 0  # noqa: B018
  assert not files.exists(path)
  write_json(path, 1, overwrite=False)
  with pytest.raises(FileExistsError):
    write_json(path, 2, overwrite=False)
  assert read_json(path) == 1
  write_json(path, 3)
  assert read_json(path) == 3


@pytest.mark.parametrize("content", [b"", b"\r", b"\n", b"a\r\n", b"\n\n--", bytes(range(256))])
def test_an_object_has_the_bytes_that_were_written(store, content):
  with files.atomic_file(f"{store}/object", "wb") as file:
    file.write(content)
  assert files.read_bytes(f"{store}/object", 1000) == content


def test_a_folder_of_a_store_is_marked_until_it_is_complete(store, monkeypatch):
  folder = f"{store}/folder"

  def write(upload):
    monkeypatch.setattr(files, "_upload", upload)
    with atomic_folder(folder) as partial:
      for name in ("a", "b"):
        (Path(partial) / name).write_text(name)

  upload, uploaded = files._upload, []

  def fails(local, path, *options):
    if len(uploaded) == 2:  # the marker and one file
      raise ConnectionError("gone")
    uploaded.append(path)
    upload(local, path, *options)

  refused("cannot write .*gone", write, fails)
  assert files.is_uploading(folder)
  write(upload)
  assert not files.is_uploading(folder)
  assert list(files.find_files(folder)) == [f"{folder}/a", f"{folder}/b"]
  assert sorted(files.list_folder(folder)) == ["a", "b"]
  refused("already", write, upload)


def test_a_link_is_uploaded_as_the_file_that_it_names(store, tmp_path):
  (tmp_path / "a").write_text("text")
  with atomic_folder(f"{store}/folder") as partial:
    os.symlink(tmp_path / "a", f"{partial}/a")
  assert files.read_bytes(f"{store}/folder/a", 10) == b"text"


def test_an_empty_folder_of_a_console_is_free(s3, stores):
  """Consoles show an empty folder by an empty object of its name and a slash."""
  boto3 = pytest.importorskip("boto3")
  client = boto3.client("s3", endpoint_url=stores["AWS_ENDPOINT_URL"])
  bucket, _, key = s3.removeprefix("s3://").partition("/")
  client.put_object(Bucket=bucket, Key=f"{key}/", Body=b"")
  assert files.is_folder(s3) and files.list_folder(s3) == []
  with atomic_folder(s3) as partial:
    (Path(partial) / "a").write_text("a")
  assert files.list_folder(s3) == ["a"]
  with pytest.raises(InputError, match="already"), atomic_folder(f"{s3}/a"):
    pass  # an object


def test_what_cannot_be_written_is_met_before_the_work(store, monkeypatch):
  check_out(f"{store}/out.json", overwrite=False)
  assert not files.exists(store)  # nothing is left of the test

  def refuse(local, path, *_):
    raise files.StoreError(errno.EACCES, "Forbidden", path)

  monkeypatch.setattr(files, "_upload", refuse)
  with pytest.raises(InputError, match=rf"out={store}/out.json: cannot be written \(Forbidden"):
    check_out(f"{store}/out.json", overwrite=False)


def test_a_local_copy_is_removed_and_errors_name_the_original(store):
  write_json(f"{store}/folder/inner/value.json", [1])
  with files.local_copy(f"{store}/folder") as copy:
    assert read_json(f"{copy}/inner/value.json") == [1]
  assert not Path(copy).exists()
  with files.local_copy(copy) as local:
    assert local == copy
  with (
    pytest.raises(MissingInput, match=f"^{store}/folder/x: missing$"),
    files.local_copy(f"{store}/folder/") as copy,
  ):
    raise MissingInput(f"{copy}/x: missing")


def test_local_paths_need_no_package_of_a_store(tmp_path):
  code = (
    "import sys; from gpt_jax import files; "
    f"files.write_json({str(tmp_path / 'x')!r}, 1); files.read_json({str(tmp_path / 'x')!r}); "
    "print(sorted({'fsspec', 'gcsfs', 's3fs', 'etils'} & set(sys.modules)))"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout == "[]\n"


def test_gcsfs_may_have_been_imported_before(gs):
  """By itself it asks for the kind of the bucket by gRPC, which no emulator has, for minutes."""
  code = f"import gcsfs; from gpt_jax import files; files.write_json({gs + '/x'!r}, 1)"
  environment = os.environ | {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "true"}
  subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
  assert files.read_json(f"{gs}/x") == 1


def test_a_missing_package_of_a_store_names_its_extra(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  refused(r"needs the package gcsfs: .*gpt_jax\[gcs\]", files.check_path, "gs://bucket/x")


@pytest.mark.parametrize("path", ["gs://a/b", "s3://a", "hf://a/b", "https://x"])
def test_what_a_store_has_not_is_asked_for_without_a_request(tmp_path, path):
  (tmp_path / "a").touch()
  assert files.modified_ns(f"{tmp_path}/a") > 0 == files.modified_ns(path)
  assert files.disk_folder(str(tmp_path), "test") == str(tmp_path)
  other = files.disk_folder(path, "test")
  assert other != files.disk_folder(path, "test") and not os.path.exists(other)
  assert files.open_to_append(path) is None
  with files.open_to_append(f"{tmp_path}/a") as file:
    file.write("text")
  assert (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize("path", ["gs://a/b", "s3://a", "hf://a/b", "https://x"])
def test_urls_are_refused_by_scheme(path):
  refused(path.partition("//")[0], refuse_url, path)
  if path.startswith("h"):
    refused("gs:// and s3:// and local paths are", files.check_path, path)
  for local in ("a/b", "tfds:dir", "C:/x", "/data//x", ""):
    refuse_url(local)


def test_long_values_are_cut_in_messages():
  shortened = f"x.json: {'a' * 100}…{'a' * 100} is no id"
  assert str(InputError(f"x.json: {'a' * 201} is no id")) == shortened
  assert str(InputError(f"/{'data/' * 60}file.tsv:12: no text")).endswith("/file.tsv:12: no text")
  text = str(InputError("word " * 100_000 + "end"))
  assert len(text) < 1010 and text.startswith("word word") and text.endswith("word end")
  assert str(InputError("as it is, " * 20)) == "as it is, " * 20
  assert str(InputError("two\nlines")) == "two lines"


def test_a_folder_appears_when_it_is_complete(tmp_path):
  with atomic_folder(str(tmp_path / "out")) as partial:
    Path(partial, "file").write_text("text")
    assert not (tmp_path / "out").exists()
  assert os.listdir(tmp_path) == ["out"] and os.listdir(tmp_path / "out") == ["file"]


def test_after_an_error_no_folder_is_left(tmp_path):
  with pytest.raises(ValueError), atomic_folder(str(tmp_path / "out")) as partial:
    Path(partial, "file").write_text("half of")
    raise ValueError
  with pytest.raises(InputError, match="cannot write .*out: disk"):
    with atomic_folder(str(tmp_path / "out")):
      raise OSError("disk")
  assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("late", [False, True])
def test_a_folder_with_files_is_not_replaced(tmp_path, late):
  out = tmp_path / "out"

  def fill():
    out.mkdir()
    (out / "thesis").write_text("mine")

  if not late:
    fill()
  with pytest.raises(InputError, match="is there already" if not late else "cannot write"):
    with atomic_folder(str(out)) as partial:
      Path(partial, "file").write_text("text")
      fill()
  assert os.listdir(tmp_path) == ["out"] and os.listdir(out) == ["thesis"]


def test_compare_decides_about_an_existing_folder(tmp_path):
  (tmp_path / "out").mkdir()
  compared = []
  with atomic_folder(str(tmp_path / "out"), lambda *folders: compared.append(folders)) as partial:
    pass
  assert compared == [(partial, str(tmp_path / "out"))] and os.listdir(tmp_path) == ["out"]

  def refuse(new, existing):
    raise InputError("another model")

  with (
    pytest.raises(InputError, match="another model"),
    atomic_folder(str(tmp_path / "out"), refuse),
  ):
    pass
  assert os.listdir(tmp_path) == ["out"]


def test_what_killed_processes_left_is_removed(tmp_path):
  """Of the same path, and of processes that are gone."""
  process = subprocess.Popen(["true"])
  process.wait()
  gone, at_work = process.pid, os.getppid()
  for name in (f"file.partial-{gone}", f"other.partial-{gone}", f"file.partial-{at_work}"):
    (tmp_path / name).touch()
  (tmp_path / f"folder.partial-{gone}" / "inside").mkdir(parents=True)
  with atomic_file(str(tmp_path / "file")) as file:
    file.write("x")
  with atomic_folder(str(tmp_path / "folder")):
    pass
  left = {path.name for path in tmp_path.iterdir()}
  assert left == {"file", "folder", f"other.partial-{gone}", f"file.partial-{at_work}"}


def test_a_folder_that_may_not_be_listed_is_one_line(tmp_path, monkeypatch):
  """Root may list all, so the system's answer stands for that of another user."""

  def refuse(path="."):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

  monkeypatch.setattr(os, "listdir", refuse)
  refused("run: cannot be listed .Permission denied.; chmod u", files.list_existing, "run")
  monkeypatch.undo()
  (tmp_path / "open").mkdir()
  (tmp_path / "open" / "text").touch()
  (tmp_path / "shut").mkdir()
  assert len(files.find_files(str(tmp_path))) == 1
  monkeypatch.setattr(os, "access", lambda path, _: not path.endswith("shut"))
  with pytest.raises(PermissionError, match="shut"):
    files.find_files(str(tmp_path))


@pytest.mark.parametrize("part, parts", [("a", 1300), ("long" * 20, 60)])
def test_a_folder_of_too_many_parts_has_too_long_a_name(tmp_path, part, parts):
  deep = os.path.join(tmp_path, *[part] * parts)
  with pytest.raises(OSError, match="File name too long"):
    files.make_folders(deep)
  with pytest.raises(InputError, match="File name too long"), atomic_folder(deep):
    pass
  assert list(tmp_path.iterdir()) == []
