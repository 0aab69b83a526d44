"""The order of the layers, read from the import statements: nothing imports what stands below
it.
"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The rooms, top to bottom: a room imports only from those above it, or within itself without a
# cycle.
LAYERS = [
  {"errors", "config", "files", "batch"},
  {"data"},
  {"tasks", "objectives"},
  {"parallel"},
  {"ops"},
  {"models"},
  {"checkpoints"},
  {"training"},
  {"inference"},
  {"paper"},
  {"programs"},
]
NUMPY_ONLY = set.union(*LAYERS[:3])
CORE = {
  "jax",
  "flax",
  "optax",
  "orbax",
  "numpy",
  "absl",
  "sentencepiece",
  "gpt_jax",
} | sys.stdlib_module_names


def imports(path: Path, everywhere: bool = True) -> set[str]:
  """Dotted names that a file imports: anywhere in it, or only where its import executes them."""
  nodes = [ast.parse(path.read_text(encoding="utf-8"))]
  names = set()
  while nodes:
    node = nodes.pop()
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path}:{node.lineno}: a relative import"
      names.update(f"{node.module}.{alias.name}" for alias in node.names)
    if everywhere or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
      nodes.extend(ast.iter_child_nodes(node))
  return names


def modules(root: Path) -> dict[str, Path]:
  """Dotted name, below the package, of every file in it."""
  files = sorted((root / "gpt_jax").rglob("*.py"))
  names = [path.relative_to(root / "gpt_jax").with_suffix("").parts for path in files]
  return {
    ".".join(part for part in name if part != "__init__"): path
    for name, path in zip(names, files, strict=True)
  }


def graph(root: Path) -> dict[str, set[str]]:
  """Module -> the modules of the package that it imports."""
  files = modules(root)
  edges = {}
  for module, path in files.items():
    inside = [
      name.removeprefix("gpt_jax").lstrip(".")
      for name in imports(path)
      if name.split(".")[0] == "gpt_jax"
    ]
    # `from gpt_jax.data import tokens` names a module, `from gpt_jax.errors import InputError`
    # something in one.
    edges[module] = {name if name in files else name.rpartition(".")[0] for name in inside}
  return edges


def layer_of(module: str) -> int:
  found = [number for number, layer in enumerate(LAYERS) if module.split(".")[0] in layer]
  assert found, f"gpt_jax/{module}: which layer is it in? Add it to LAYERS"
  return found[0]


def faults(root: Path) -> list[str]:
  """Every import that breaks a rule."""
  edges, files = graph(root), modules(root)
  found = []
  if "" in files:
    found += [
      f"gpt_jax imports {name} at its top" for name in sorted(imports(files[""], everywhere=False))
    ]
    edges.pop("")  # what its functions import, all stands above
  for module, targets in edges.items():
    for target in targets:
      if not target:
        found.append(f"{module} imports the package itself")
      elif layer_of(target) > layer_of(module):
        found.append(f"{module} imports {target}, which stands below it")
  for module, path in files.items():
    roots = {name.split(".")[0] for name in imports(path)}
    if module.split(".")[0] in NUMPY_ONLY:
      found += [
        f"{module} imports {name}" for name in sorted(roots & {"jax", "flax", "optax", "orbax"})
      ]
    found += [
      f"{module} reads flags"
      for name in imports(path)
      if name.startswith(("absl.flags", "absl.app"))
    ]
    heavy = {name.split(".")[0] for name in imports(path, everywhere=False)} - CORE
    found += [f"{module} imports {name} at its top" for name in sorted(heavy)]
  return found + [f"cycle: {' -> '.join(cycle)}" for cycle in cycles(edges)]


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
  """The import cycles that a depth-first walk meets."""
  done, found = set(), []

  def walk(module, path):
    if module in path:
      found.append([*path[path.index(module) :], module])
    elif module not in done:
      for target in sorted(edges.get(module, ())):
        walk(target, [*path, module])
      done.add(module)

  for module in edges:
    walk(module, [])
  return found


def test_layers():
  assert faults(ROOT) == []


@pytest.mark.parametrize(
  "files, fault",
  [
    (
      {"config": "from gpt_jax.training import loop", "training.loop": ""},
      "config imports training.loop, which stands below it",
    ),
    ({"data.tokens": "import jax.numpy as jnp"}, "data.tokens imports jax"),
    ({"tasks.cola": "def f():\n  import jax"}, "tasks.cola imports jax"),
    ({"training": "from absl import flags"}, "training reads flags"),
    ({"tasks.metrics": "import sklearn.metrics"}, "tasks.metrics imports sklearn at its top"),
    (
      {"tasks.metrics": "try:\n  from scipy import stats\nexcept ImportError: pass"},
      "tasks.metrics imports scipy at its top",
    ),
    (
      {"config": "from gpt_jax.errors import E", "errors": "import gpt_jax.config"},
      "cycle: config -> errors -> config",
    ),
    (
      {"": "from gpt_jax import training", "training": ""},
      "gpt_jax imports gpt_jax.training at its top",
    ),
  ],
)
def test_a_broken_rule_is_found(tmp_path, files, fault):
  for module, text in files.items():
    path = tmp_path / "gpt_jax" / f"{module.replace('.', '/') or '__init__'}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  assert faults(tmp_path) == [fault]


def test_optional_packages_may_be_imported_where_they_are_used(tmp_path):
  (tmp_path / "gpt_jax" / "tasks").mkdir(parents=True)
  (tmp_path / "gpt_jax" / "tasks" / "metrics.py").write_text(
    "def f1(x):\n  from sklearn import metrics"
  )
  assert faults(tmp_path) == []


def test_a_file_of_no_layer_is_asked_about(tmp_path):
  (tmp_path / "gpt_jax").mkdir()
  (tmp_path / "gpt_jax" / "helpers.py").write_text("from gpt_jax import config")
  (tmp_path / "gpt_jax" / "config.py").write_text("")
  with pytest.raises(AssertionError, match="helpers: which layer is it in"):
    faults(tmp_path)


def test_scripts_hide_no_module():
  """The folder of a script comes first on the import path."""
  scripts = {path.stem for path in (ROOT / "launch").glob("*.py")}
  assert not scripts & (
    sys.stdlib_module_names | {"jax", "flax", "optax", "orbax", "numpy", "absl", "gpt_jax"}
  )


def test_the_top_level_stays_small():
  allowed = {"setup.py", "gpt_jax", "launch", "configs", "tests", "README.md"}
  ours = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
  outputs = {"build", "dist", "runs", "quickstart", "gpt_jax.egg-info"}
  assert ours <= allowed | outputs
