"""The workdir of a study: results of other calls and damaged ones, arrays that are kept."""

import json
import os

import numpy as np
from refused import refused

from gpt_jax.apps.study import Study, table
from gpt_jax.files import upload_folder


def test_results_of_another_identity_and_damaged_ones_are_refused(tmp_path):
  study, identity, empty = Study(str(tmp_path), "results.json"), {"sizes": (1, 2)}, {"runs": {}}
  results = study.results(identity, empty)
  assert results == {"sizes": [1, 2], "runs": {}}
  study.save(results | {"runs": {"full": 1}}, "page")
  assert (tmp_path / "results.md").read_text() == "page"
  more = identity | {"model": "a"}
  assert study.results(more, empty) == {"sizes": [1, 2], "model": "a", "runs": {"full": 1}}
  study.save({"sizes": [1, 2], "model": "a"})
  told = r"the result of another command \(model: a != b\)"
  refused(told, study.results, {"sizes": (1, 2), "model": "b"}, empty)
  changed = json.loads((tmp_path / "results.json").read_text()) | {"model": "b"}
  for content in (json.dumps(changed), '{"model": "a"}', "[]", '{"runs": '):
    (tmp_path / "results.json").write_text(content)
    refused("results.json: cannot be read .*; remove it", study.results, more, empty)


def test_what_was_measured_is_found_and_measured_again_where_it_is_damaged(tmp_path, capsys):
  (tmp_path / "measured").mkdir()
  for _ in range(2):
    study, calls = Study(str(tmp_path), "diagnosis.json", ("measured",)), []
    for _ in range(2):
      measure = lambda calls=calls: calls.append(1) or {"loss": 2.0}
      assert study.part("measured/width_8", {"width": 8}, measure) == {"loss": 2.0}
    assert len(calls) == 1
    path = tmp_path / "measured" / "width_8.json"
    path.write_text(path.read_text().replace("2.0", "0.1"))
  assert capsys.readouterr().err.count("damaged; measured again") == 1


def test_a_study_on_a_store(store):
  for _ in range(2):
    study = Study(store, "diagnosis.json", ("measured",))
    assert study.part("measured/width_8", {}, lambda: {"loss": 2.0}) == {"loss": 2.0}
  upload_folder(os.path.dirname(__file__), f"{store}/foreign")
  told = f"--workdir={store}/foreign holds .* but no diagnosis.json"
  refused(told, Study, f"{store}/foreign", "diagnosis.json")


def test_arrays_are_computed_once_and_again_where_they_are_damaged(tmp_path, capsys):
  study, calls = Study(str(tmp_path), "label.json"), []

  def compute():
    calls.append(1)
    return {"group": np.arange(3)}

  for _ in range(2):
    assert study.arrays("work/groups", compute)["group"].tolist() == [0, 1, 2]
  assert len(calls) == 1
  (tmp_path / "work" / "groups.npz").write_bytes(b"PK")
  study.arrays("work/groups", compute)
  assert len(calls) == 2 and "groups.npz: damaged; computed again" in capsys.readouterr().err


def test_a_table_is_markdown():
  assert table(["", "a"], [["x", "1"]]) == ["|  | a |", "|---|---|", "| x | 1 |"]
