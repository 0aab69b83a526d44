"""Import rules: the order of the rooms, numpy-only rooms, no cycles, no flags, optional packages
imported where they are used; messages without flags; and which files may exist where.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Top to bottom: a room imports only from rooms above it, and within itself without a cycle.
ROOT_FILES = {"batch", "config", "errors", "extensions", "files"}
LAYERS = [
  ROOT_FILES,
  {"data"},
  {"tasks", "objectives"},
  {"parallel"},
  {"ops"},
  {"models"},
  {"checkpoints"},
  {"training"},
  {"inference"},
  {"programs"},
  {"apps"},
]
# Modules of apps that any app may import.
SHARED_APPS = ("report", "study", "timing", "topologies", "traffic", "probe_features")
NUMPY_ONLY = set.union(*LAYERS[:3])
JAX = {"jax", "flax", "optax", "orbax"}
REQUIRED = JAX | {"numpy", "absl", "sentencepiece", "gpt_jax"} | sys.stdlib_module_names

# The command line makes flags of arguments, and scripts of functions: usage.with_flags.
COMMANDS = re.compile(r"(?<!xprof )(?<!pip install )--[a-z]\w*|launch/\w+\.(?:py|sh)")

# Names that say nothing about their contents. Tokenizers have a base class.
NAMELESS = {"utils", "util", "common", "core", "helpers", "misc", "base"}
ALLOWED_NAMES = {"data.tokenizers.base"}


def modules(root: Path) -> dict[str, Path]:
  """Dotted name below the package -> file; "" is the package itself."""
  package = root / "gpt_jax"
  result = {}
  for path in sorted(package.rglob("*.py")):
    parts = path.relative_to(package).with_suffix("").parts
    result[".".join(part for part in parts if part != "__init__")] = path
  return result


def imports(path: Path, everywhere: bool = True) -> set[str]:
  """Dotted names that a file imports: all of them, or only those its own import executes."""
  nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
  names = set()
  while nodes:
    node = nodes.pop()
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path}:{node.lineno}: a relative import"
      names.update(f"{node.module}.{alias.name}" for alias in node.names)
    if not everywhere and _is_deferred(node):
      continue
    nodes.extend(ast.iter_child_nodes(node))
  return names


def _is_deferred(node: ast.AST) -> bool:
  """Whether importing the file skips the body of this node."""
  if isinstance(node, ast.If):
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
  return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def graph(root: Path) -> dict[str, set[str]]:
  """Module -> the modules of the package that it imports."""
  files = modules(root)
  edges = {}
  for module, path in files.items():
    inside = [name for name in imports(path) if name.split(".")[0] == "gpt_jax"]
    names = [name.removeprefix("gpt_jax").lstrip(".") for name in inside]
    # `from gpt_jax.data import windows` names a module, `from gpt_jax.errors import InputError` an
    # object in one.
    edges[module] = {name if name in files else name.rpartition(".")[0] for name in names}
  return edges


def layer_of(module: str) -> int:
  room = module.split(".")[0]
  for number, layer in enumerate(LAYERS):
    if room in layer:
      return number
  raise AssertionError(f"gpt_jax/{module}: no such room in LAYERS")


def app_of(module: str) -> str:
  """The app that a module is of; "" in the core."""
  parts = module.split(".")
  return parts[1] if parts[0] == "apps" and len(parts) > 1 else ""


def import_faults(root: Path) -> list[str]:
  """Every import that breaks a rule, as a sentence."""
  edges, files = graph(root), modules(root)
  result = []
  if "" in files:
    at_top = sorted(imports(files[""], everywhere=False) - {"typing.TYPE_CHECKING"})
    result += [f"gpt_jax imports {name} at its top" for name in at_top]
    edges.pop("")  # its functions may import any room
  for module, targets in edges.items():
    for target in targets:
      if not target:
        result.append(f"{module} imports the package itself")
      elif layer_of(target) > layer_of(module):
        result.append(f"{module} imports {target}, a lower room")
      elif app_of(target) not in ("", *SHARED_APPS, app_of(module)):
        result.append(f"{module} imports {target}, of another app")
  for module, path in files.items():
    result += _package_faults(module, path)
  return result + [f"cycle: {' -> '.join(cycle)}" for cycle in cycles(edges)]


def _package_faults(module: str, path: Path) -> list[str]:
  """Imports of JAX in a numpy-only room, of flags, and of optional packages at the top."""
  names = imports(path)
  result = []
  if module.split(".")[0] in NUMPY_ONLY:
    roots = {name.split(".")[0] for name in names}
    result += [f"{module} imports {name}" for name in sorted(roots & JAX)]
  flags = [name for name in names if name.startswith(("absl.flags", "absl.app"))]
  result += [f"{module} reads flags" for _ in flags]
  optional = {name.split(".")[0] for name in imports(path, everywhere=False)} - REQUIRED
  return result + [f"{module} imports {name} at its top" for name in sorted(optional)]


def message_faults(root: Path) -> list[str]:
  """The flags and scripts that strings of the core name; docstrings may."""
  result: dict[str, None] = {}
  for module, path in modules(root).items():
    if module.split(".")[0] not in ("programs", "apps"):
      for text in _strings(ast.parse(path.read_text("utf-8"))):
        result |= dict.fromkeys(f"{module} names {name}" for name in COMMANDS.findall(text))
  return list(result)


def _strings(tree: ast.AST) -> Iterator[str]:
  """Every string but docstrings; an f-string has x for each value."""
  nodes = list(ast.walk(tree))
  docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
  for node in nodes:
    if isinstance(node, ast.JoinedStr):
      yield "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
      yield node.value


def file_faults(root: Path) -> list[str]:
  """Files in the package root that belong in a room, rooms without a docstring, nameless names."""
  result = []
  for module, path in modules(root).items():
    if module and "." not in module and path.name != "__init__.py" and module not in ROOT_FILES:
      result.append(f"gpt_jax/{path.name}: belongs in a room")
    if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text("utf-8"))):
      result.append(f"gpt_jax/{module.replace('.', '/')}/__init__.py: no docstring")
    if module not in ALLOWED_NAMES and module.rpartition(".")[2] in NAMELESS:
      result.append(f"{module}: name it by its contents")
  return result


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
  """The import cycles met on a depth-first walk."""
  done: set[str] = set()
  result = []

  def walk(module: str, path: list[str]) -> None:
    if module in path:
      result.append([*path[path.index(module) :], module])
    elif module not in done:
      for target in sorted(edges.get(module, ())):
        walk(target, [*path, module])
      done.add(module)

  for module in edges:
    walk(module, [])
  return result


def write_package(root: Path, files: dict[str, str]) -> None:
  """Writes dotted module name -> source; "data." is gpt_jax/data/__init__.py."""
  for module, source in files.items():
    name = f"{module}__init__" if module.endswith(".") else module or "__init__"
    path = root / "gpt_jax" / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


def test_the_rooms_keep_their_order():
  assert import_faults(ROOT) == []


def test_files_are_in_their_rooms():
  assert file_faults(ROOT) == []


def test_messages_of_the_core_name_arguments():
  assert message_faults(ROOT) == []


FAULTY = {
  "": '"""All."""\nfrom gpt_jax import training',
  "config": "from gpt_jax.training import loop",
  "errors": "from gpt_jax import files",
  "files": "from gpt_jax import errors",
  "data.utils": 'raise E(f"--{name}={out}: see launch/predict.py")',
  "tasks.": "from gpt_jax.errors import E",
  "tasks.cola": "def f():\n  import jax",
  "tasks.metrics": "try:\n  from scipy import stats\nexcept ImportError: pass",
  "tokens": '"""As --out of launch/prepare.py."""',
  "training.loop": "from absl import flags",
  "apps.serve.app": "from gpt_jax.apps.label import page",
  "apps.label.page": 'raise E("--out: a folder")',
}


def test_every_fault_is_reported(tmp_path):
  write_package(tmp_path, FAULTY)
  assert import_faults(tmp_path) == [
    "gpt_jax imports gpt_jax.training at its top",
    "apps.serve.app imports apps.label.page, of another app",
    "config imports training.loop, a lower room",
    "tasks.cola imports jax",
    "tasks.metrics imports scipy at its top",
    "training.loop reads flags",
    "cycle: errors -> files -> errors",
  ]
  assert message_faults(tmp_path) == ["data.utils names --x", "data.utils names launch/predict.py"]
  assert file_faults(tmp_path) == [
    "data.utils: name it by its contents",
    "gpt_jax/tasks/__init__.py: no docstring",
    "gpt_jax/tokens.py: belongs in a room",
  ]


def test_scripts_hide_no_module():
  """A script's folder comes first on the import path."""
  scripts = {path.stem for path in (ROOT / "launch").glob("*.py")}
  assert not scripts & (sys.stdlib_module_names | JAX | {"numpy", "absl", "gpt_jax"})


def test_the_top_level_stays_small():
  allowed = {"setup.py", "gpt_jax", "launch", "configs", "tests", "README.md"}
  outputs = {"build", "dist", "runs", "data", "quickstart", "gpt_jax.egg-info"}
  entries = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
  assert entries <= allowed | outputs
