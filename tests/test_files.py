"""Files that are written whole or not at all."""

import json
import os

import pytest

from gpt_jax.files import atomic_file, write_json


@pytest.mark.parametrize("mode, content", [("w", "café\r\n\n"), ("wb", b"\x00\xff")])
def test_what_is_written_takes_the_place_of_what_was_there(tmp_path, mode, content):
  path = tmp_path / "file"
  path.write_text("before")
  with atomic_file(str(path), mode) as file:
    file.write(content)
    file.flush()
    assert path.read_text() == "before"
  assert path.read_bytes() == (content if "b" in mode else content.encode())
  assert os.listdir(tmp_path) == ["file"]


def test_where_writing_fails_nothing_has_changed(tmp_path):
  path = tmp_path / "file"
  path.write_text("before")
  with pytest.raises(ValueError), atomic_file(str(path)) as file:
    file.write("half of")
    raise ValueError
  assert path.read_text() == "before" and os.listdir(tmp_path) == ["file"]


def test_a_folder_is_not_replaced(tmp_path):
  (tmp_path / "file").mkdir()
  with pytest.raises(OSError), atomic_file(str(tmp_path / "file")) as file:
    file.write("text")
  assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").is_dir()


def test_json_too(tmp_path):
  path = tmp_path / "value.json"
  write_json(str(path), {"a": 1})
  with pytest.raises(TypeError):
    write_json(str(path), {"a": object()})
  assert json.loads(path.read_text()) == {"a": 1} and os.listdir(tmp_path) == ["value.json"]
