"""The notebooks run from top to bottom, resume, show their results, and hold no output.

They train for a few steps here. GPT_JAX_WHOLE_NOTEBOOKS=1 runs them as they stand, minutes on two
cores, and tests what they learn: for a change of their settings.
"""

import base64
import copy
import importlib.util
import io
import json
import os
import re
import sys
import tokenize
from pathlib import Path

import pytest
from built_wheel import install_wheel

pytestmark = pytest.mark.app
ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "launch" / "notebooks").glob("*.ipynb"))
assert NOTEBOOKS, "the folder of the notebooks has moved"
WHOLE = bool(os.environ.get("GPT_JAX_WHOLE_NOTEBOOKS"))
# Cell -> what is replaced in it, so that training takes seconds. Other cells run as they are.
SMALLER = {
  "pretrain": {
    r"\blayers=\d+": "layers=1",
    r"\bwidth=\d+": "width=32",
    r"\bsteps=\d+": "steps=8",
    r"\blog_every=\d+": "log_every=4",
    r"\bevaluate_every=\d+": "evaluate_every=4",
    r"\bevaluation_batches=\d+": "evaluation_batches=1",
  },
  "finetune": {r"\bepochs=\d+": "epochs=1"},
}
STEPS, WIDTH = (800, 96) if WHOLE else (8, 32)
for_all_notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> dict[str, str]:
  """id -> source of the cells of a kind."""
  all_cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
  return {cell["id"]: "".join(cell["source"]) for cell in all_cells if cell["cell_type"] == kind}


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


def test_without_gpt_jax_the_first_cell_says_what_to_set(monkeypatch):
  source = cells(NOTEBOOKS[0], "code")["install"]
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ModuleNotFoundError) as raised:
    exec(source.partition("  %pip")[0], {})
  message = str(raised.value)
  assert sys.executable in message and "set REPOSITORY" in message
  (extras,) = re.findall(r"-e '\.\[([\w,]+)\]'", message)
  assert all(f'"{extra}": ' in (ROOT / "setup.py").read_text() for extra in extras.split(","))


class Execution:
  """A notebook executed in a folder, in a user's kernel: one device, no strict settings.

  `package`: where gpt_jax is found. `again`: all cells are executed twice, as by "Run all" in a
  notebook that has run; the attribute `again` is the second execution. `trained` has the results of
  training after each.
  """

  def __init__(self, path: Path, work: Path, package: Path, again: bool = False):
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    if not WHOLE:
      shrink(notebook)
    client = nbclient.NotebookClient(
      notebook, timeout=1500, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    )
    # Raises CellExecutionError, with the cell and its traceback.
    client.execute(env=environment(work, package), cleanup_kc=not again)
    self.work, self.sources = work / "files", cells(path, "code")
    self.notebook, self.trained = copy.deepcopy(notebook), trained(self.work)
    if again:
      client.execute()
      self.again = copy.copy(self)
      self.again.notebook, self.again.trained = notebook, trained(self.work)

  def outputs(self, cell: str) -> list:
    return next(candidate for candidate in self.notebook.cells if candidate.id == cell).outputs

  def text(self, cell: str, *streams: str) -> str:
    """The output of a cell to "stdout", "stderr" or both."""
    streams = streams or ("stdout", "stderr")
    return "".join(output.text for output in self.outputs(cell) if output.get("name") in streams)

  def data(self, cell: str, kind: str) -> list[str]:
    return [output.data[kind] for output in self.outputs(cell) if kind in output.get("data", {})]


def shrink(notebook) -> None:
  """Applies SMALLER; fails where a cell no longer has what is to be replaced."""
  for cell in notebook.cells:
    for pattern, replacement in SMALLER.get(cell.id, {}).items():
      cell.source, count = re.subn(pattern, replacement, cell.source)
      assert count == 1, (cell.id, pattern)


def environment(work: Path, package: Path) -> dict[str, str]:
  """The user's, without the tests' JAX settings but those that only make compiling cheaper."""
  users = {
    name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))
  }
  kept = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
  search = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
  return {
    **users,
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": os.environ["JAX_COMPILATION_CACHE_DIR"],
    "XLA_FLAGS": "" if WHOLE else " ".join(kept),
    "GPT_JAX_WORK": str(work / "files"),
    "PYTHONPATH": search,
  }


def trained(work: Path) -> dict[str, int]:
  """The modification times of all results of training below a folder."""
  names = ("prepare.json", "config.json", "result.json", "_CHECKPOINT_METADATA")
  return {str(path): path.stat().st_mtime_ns for path in work.rglob("*") if path.name in names}


@pytest.fixture(scope="module")
def execute(tmp_path_factory):
  """execute(name, package, again=False): the notebook, executed in a folder that all share."""
  for package in ("nbclient", "nbformat", "ipykernel"):
    if not importlib.util.find_spec(package):
      pytest.skip(f"needs {package}: pip install -e '.[test]'")
  work = tmp_path_factory.mktemp("notebooks")
  folder = ROOT / "launch" / "notebooks"
  return lambda name, package, **more: Execution(folder / f"{name}.ipynb", work, package, **more)


@pytest.fixture(scope="module")
def quickstart(execute):
  return execute("quickstart", ROOT)


# Of a clone and of a wheel: the quickstart's cells that use gpt_jax are in the others, too.
@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  return install_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def own(execute, quickstart, wheel):
  return execute("finetune_your_own", wheel, again=True)


@pytest.fixture(scope="module")
def visualize(execute, quickstart, wheel):
  return execute("visualize", wheel)


@pytest.mark.slow
def test_the_quickstart_trains_and_reports(quickstart):
  log = quickstart.text("pretrain")
  assert "devices 1 x" in log and f"step {STEPS}  valid_loss" in log
  assert f"step {STEPS // 2}/{STEPS}" in log
  assert "one morning anna went to the" in quickstart.text("stories")
  assert len(quickstart.text("surprise").splitlines()) == 3
  pretrained, from_scratch = (
    dev_accuracy(quickstart.work / name) for name in ("story-ending", "story-ending-from-scratch")
  )
  assert not WHOLE or pretrained > from_scratch + 0.1
  assert len(quickstart.text("classify").splitlines()) == 2 and "'badly': " in quickstart.text(
    "classify"
  )


@pytest.mark.slow
def test_a_table_becomes_labels_and_arrays(own):
  labels = (own.work / "mine" / "labels.tsv").read_text().splitlines()
  assert labels[0] == "prediction\tp(bad)\tp(good)" and len(labels) == 6
  assert (own.work / "mine" / "exported.zip").exists()
  assert f"head/kernel ({WIDTH}, 2)" in own.text("export")
  accuracy = dev_accuracy(own.work / "mine" / "run")
  assert accuracy > 0.6 if WHOLE else 0 <= accuracy <= 1


def dev_accuracy(run: Path) -> float:
  return json.loads((run / "result.json").read_text())["best"]["dev_accuracy"]


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
def test_finished_steps_are_skipped(quickstart, own, visualize):
  assert len(own.trained) > 10 and own.again.trained == own.trained
  for execution in (own, visualize):  # another notebook on the quickstart's folder
    assert quickstart.trained.items() <= execution.trained.items()
  for execution in (own, own.again, visualize):
    assert "already prepared" in execution.text("prepare")
    assert f"resumed at step {STEPS}" in execution.text("pretrain")
    assert "valid_loss" not in execution.text("pretrain")
  for execution in (own.again, visualize):
    assert "finished already" in execution.text("finetune")
    assert "dev_accuracy" not in execution.text("finetune")
