"""The notebooks run from top to bottom, resume, show their results, and hold no output."""

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
for_all_notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> dict[str, str]:
  """id -> source of the cells of a kind."""
  all_cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
  return {cell["id"]: "".join(cell["source"]) for cell in all_cells if cell["cell_type"] == kind}


def test_there_are_three():
  assert [path.stem for path in NOTEBOOKS] == ["finetune_your_own", "quickstart", "visualize"]


@for_all_notebooks
def test_no_output_or_editor_metadata_is_stored(path):
  notebook = json.loads(path.read_text(encoding="utf-8"))
  assert notebook["metadata"] == {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
  }
  for cell in notebook["cells"]:
    assert cell["metadata"] == {}, cell["id"]
    if cell["cell_type"] == "code":
      assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]


@for_all_notebooks
def test_only_public_names_are_used_and_no_code_is_hidden_in_functions(path):
  for cell, source in cells(path, "code").items():
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    names = [token.string for token in tokens if token.type == tokenize.NAME]
    assert not [name for name in names if name.startswith("_")], cell
    assert not {"def", "lambda", "class"} & set(names), cell


def test_shared_cells_are_the_same_in_all_notebooks():
  """So that notebooks that share a folder train a model once."""
  own, quickstart, visualize = (cells(path, "code") for path in NOTEBOOKS)
  for shared in ("install", "prepare", "pretrain"):
    assert own[shared] == quickstart[shared] == visualize[shared]
  assert quickstart["finetune"] == visualize["finetune"]


class Execution:
  """A notebook executed in a folder, in a user's kernel without the tests' JAX settings."""

  def __init__(self, path: Path, work: Path):
    import nbclient
    import nbformat

    users = {
      name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))
    }
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {
      **users,
      "JAX_PLATFORMS": "cpu",
      "GPT_JAX_WORK": str(work / "files"),
      "PYTHONPATH": search,
    }
    self.notebook = nbformat.read(path, as_version=4)
    nbformat.validate(self.notebook)
    client = nbclient.NotebookClient(
      self.notebook,
      timeout=1500,
      kernel_name="python3",
      resources={"metadata": {"path": str(work)}},
    )
    client.execute(env=env)  # raises CellExecutionError, with the cell and its traceback
    self.work, self.sources = work / "files", cells(path, "code")

  def outputs(self, cell: str) -> list:
    return next(candidate for candidate in self.notebook.cells if candidate.id == cell).outputs

  def text(self, cell: str, *streams: str) -> str:
    """The output of a cell to "stdout", "stderr" or both."""
    streams = streams or ("stdout", "stderr")
    return "".join(output.text for output in self.outputs(cell) if output.get("name") in streams)

  def data(self, cell: str, kind: str) -> list[str]:
    return [output.data[kind] for output in self.outputs(cell) if kind in output.get("data", {})]


def trained(work: Path) -> dict[str, int]:
  """The modification times of all results of training below a folder."""
  names = ("prepare.json", "config.json", "result.json", "_CHECKPOINT_METADATA")
  return {str(path): path.stat().st_mtime_ns for path in work.rglob("*") if path.name in names}


@pytest.fixture(scope="module")
def execute(tmp_path_factory):
  """execute(name): the notebook, executed in a folder that all share."""
  for package in ("nbclient", "nbformat", "ipykernel"):
    if not importlib.util.find_spec(package):
      pytest.skip(f"needs {package}: pip install -e '.[test]'")
  work = tmp_path_factory.mktemp("notebooks")
  return lambda name: Execution(ROOT / "launch" / "notebooks" / f"{name}.ipynb", work)


@pytest.fixture(scope="module")
def quickstart(execute):
  return execute("quickstart")


@pytest.fixture(scope="module")
def own(execute, quickstart):
  return execute("finetune_your_own")


@pytest.fixture(scope="module")
def visualize(execute, quickstart):
  return execute("visualize")


@pytest.mark.slow
def test_the_quickstart_trains_and_reports(quickstart):
  log = quickstart.text("pretrain")
  assert "devices 1 x" in log and "step 800  valid_loss" in log and "step 20/800" not in log
  assert " 0/800 [" in "".join(
    [log, *quickstart.data("pretrain", "text/plain")]
  )  # a text bar or a widget
  assert "one morning anna went to the" in quickstart.text("stories")
  accuracies = {
    name: json.loads((quickstart.work / name / "result.json").read_text())["best"]["dev_accuracy"]
    for name in ("story-ending", "story-ending-from-scratch")
  }
  assert accuracies["story-ending"] > accuracies["story-ending-from-scratch"] + 0.1
  assert len(quickstart.text("classify").splitlines()) == 2 and "'badly': " in quickstart.text(
    "classify"
  )


@pytest.mark.slow
def test_a_table_becomes_labels_and_arrays(own):
  labels = (own.work / "mine" / "labels.tsv").read_text().splitlines()
  assert labels[0] == "prediction\tp(bad)\tp(good)" and len(labels) == 6
  assert (own.work / "mine" / "exported.zip").exists() and "head/kernel (96, 2)" in own.text(
    "export"
  )
  assert (
    json.loads((own.work / "mine" / "run" / "result.json").read_text())["best"]["dev_accuracy"]
    > 0.6
  )


@pytest.mark.slow
def test_pages_are_shown_inline(visualize):
  for cell in ("page", "labels"):
    (shown,) = visualize.data(cell, "text/html")
    assert "<iframe srcdoc=" in shown and "gpt_jax visualize" in shown
    assert not visualize.text(cell, "stderr")  # no warning


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart", "own", "visualize"])
def test_plots_are_shown_inline(name, request):
  execution = request.getfixturevalue(name)
  images = [image for cell in execution.sources for image in execution.data(cell, "image/png")]
  assert len(images) == sum("plt.show()" in source for source in execution.sources.values()) > 0
  assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)


@pytest.mark.slow
def test_finished_steps_are_skipped(execute, quickstart, own, visualize):
  before = trained(quickstart.work)
  again = [own, visualize, execute("finetune_your_own")]
  assert trained(quickstart.work) == before and len(before) > 10
  for execution in again:
    assert "already prepared" in execution.text(
      "prepare"
    ) and "resumed at step 800" in execution.text("pretrain")
    assert "valid_loss" not in execution.text("pretrain")
  for execution in again[1:]:
    assert "finished already" in execution.text(
      "finetune"
    ) and "dev_accuracy" not in execution.text("finetune")
