"""The notebooks: that they run from top to bottom, resume, show what they promise, and are kept clean."""

import base64
import importlib.util
import io
import json
import os
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "launch" / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> dict[str, str]:
  """id -> source of the cells of a kind."""
  found = json.loads(path.read_text(encoding="utf-8"))["cells"]
  return {cell["id"]: "".join(cell["source"]) for cell in found if cell["cell_type"] == kind}


def test_there_are_three():
  assert [path.stem for path in NOTEBOOKS] == ["finetune_your_own", "quickstart", "visualize"]


@each
def test_no_output_or_editor_metadata_is_kept(path):
  notebook = json.loads(path.read_text(encoding="utf-8"))
  assert notebook["metadata"] == {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
  }
  for cell in notebook["cells"]:
    assert cell["metadata"] == {}, cell["id"]
    if cell["cell_type"] == "code":
      assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]


@each
def test_only_public_names_are_used_and_no_code_is_hidden_in_functions(path):
  for cell, source in cells(path, "code").items():
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    names = [token.string for token in tokens if token.type == tokenize.NAME]
    assert not [name for name in names if name.startswith("_")], cell
    assert not {"def", "lambda", "class"} & set(names), cell


def test_what_notebooks_share_is_the_same_in_all():
  """So that in one folder a model is trained once."""
  own, quickstart, visualize = (cells(path, "code") for path in NOTEBOOKS)
  for shared in ("install", "prepare", "pretrain"):
    assert own[shared] == quickstart[shared] == visualize[shared]
  assert quickstart["finetune"] == visualize["finetune"]


class Execution:
  """A notebook that has been run in a folder, in a kernel as a user's: none of the tests' own settings of JAX."""

  def __init__(self, path: Path, work: Path):
    import nbclient
    import nbformat

    ours = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**ours, "JAX_PLATFORMS": "cpu", "GPT_JAX_WORK": str(work / "files"), "PYTHONPATH": search}
    self.notebook = nbformat.read(path, as_version=4)
    nbformat.validate(self.notebook)
    client = nbclient.NotebookClient(
      self.notebook, timeout=1500, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    )
    client.execute(env=env)  # raises CellExecutionError, with the cell and its traceback
    self.work = work / "files"

  def outputs(self, cell: str) -> list:
    return next(found for found in self.notebook.cells if found.id == cell).outputs

  def text(self, cell: str) -> str:
    """What a cell prints, on either stream."""
    return "".join(output.text for output in self.outputs(cell) if output.output_type == "stream")

  def data(self, cell: str, kind: str) -> list[str]:
    return [output.data[kind] for output in self.outputs(cell) if kind in output.get("data", {})]

  def written(self) -> dict[str, int]:
    """When each result of training was written."""
    names = ("prepare.json", "result.json", "config.json", "_CHECKPOINT_METADATA")
    return {str(path): path.stat().st_mtime_ns for path in self.work.rglob("*") if path.name in names}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
  """executed(name): the notebook, run twice in one folder: (the first execution, its files, the second)."""
  for package in ("nbclient", "nbformat", "ipykernel"):
    if not importlib.util.find_spec(package):
      pytest.skip(f"needs {package}: pip install -e '.[test]'")
  done = {}

  def execute(name):
    if name not in done:
      work = tmp_path_factory.mktemp(name)
      path = ROOT / "launch" / "notebooks" / f"{name}.ipynb"
      first = Execution(path, work)
      done[name] = first, first.written(), Execution(path, work)
    return done[name]

  return execute


@pytest.mark.slow
@each
def test_runs_with_bars_and_plots_and_trains_nothing_twice(executed, path):
  first, written, second = executed(path.stem)
  assert "step 800  valid_loss" in first.text("pretrain") and "800/800" in first.text("pretrain")
  assert "unigram" in first.text("pretrain") and "%|" in first.text("pretrain")  # a bar
  codes = cells(path, "code")
  images = [image for cell in codes for image in first.data(cell, "image/png")]
  assert len(images) == sum("plt.show()" in source for source in codes.values()) > 0
  assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
  assert second.written() == written and len(written) > 5
  assert "valid_loss" not in second.text("pretrain") and "dev_accuracy" not in second.text("finetune")
  assert "already prepared" in second.text("prepare") and "done already" in second.text("finetune")


@pytest.mark.slow
def test_the_quickstart_tells_and_learns(executed):
  first, _, _ = executed("quickstart")
  assert "one morning anna went to the" in first.text("stories")
  accuracies = {
    name: json.loads((first.work / name / "result.json").read_text())["best"]["dev_accuracy"]
    for name in ("story-ending", "story-ending-from-scratch")
  }
  assert accuracies["story-ending"] > accuracies["story-ending-from-scratch"] + 0.1
  assert len(first.text("classify").splitlines()) == 2 and "'badly': " in first.text("classify")


@pytest.mark.slow
def test_a_table_becomes_labels_and_arrays(executed):
  first, _, _ = executed("finetune_your_own")
  labels = (first.work / "mine" / "labels.tsv").read_text().splitlines()
  assert labels[0] == "prediction\tp(bad)\tp(good)" and len(labels) == 6
  assert (first.work / "mine" / "exported" / "weights.npz").exists()
  assert json.loads((first.work / "mine" / "run" / "result.json").read_text())["best"]["dev_accuracy"] > 0.6


@pytest.mark.slow
def test_pages_are_shown_inline(executed):
  first, _, _ = executed("visualize")
  for cell in ("page", "labels"):
    (shown,) = first.data(cell, "text/html")
    assert shown.startswith("<iframe srcdoc=") and "gpt_jax visualize" in shown
