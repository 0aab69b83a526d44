"""Which file imports which, read from their source: for the rules of test_layers.py, and to choose
the tests that a change can have broken (bash launch/test.sh --changed).
"""

import ast
import functools
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path


def imports(path: Path, everywhere: bool = True) -> set[str]:
  """Dotted names that a file imports: all of them, or only those its own import executes."""
  nodes: list[ast.AST] = [_parsed(path)]
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


def _parsed(path: Path) -> ast.Module:
  return _tree(path.read_text(encoding="utf-8"))


_tree = functools.cache(ast.parse)  # by content: each file is asked for several times


def _is_deferred(node: ast.AST) -> bool:
  """Whether importing the file skips the body of this node."""
  if isinstance(node, ast.If):
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
  return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def changed_files(root: Path, commit: str) -> list[str]:
  """The files that differ from a commit, and the new ones that git does not ignore.

  Raises ValueError with what git says of a commit that is none.
  """
  names: list[str] = []
  for command in (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"]):
    done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
      raise ValueError(done.stderr.strip().partition("\n")[0])
    names += done.stdout.splitlines()
  return names


def changed_tests(root: Path, changed: Iterable[str]) -> set[Path]:
  """The test files that a change of these files can have broken; see Tree.tests_of."""
  return Tree(root).tests_of(changed)


class Tree:
  """The Python files of a checkout, and who uses whom."""

  def __init__(self, root: Path):
    folders = ("gpt_jax", "launch", "configs", "tests")
    files = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    self._root = root
    self._texts = {path: path.read_text(encoding="utf-8") for path in files}
    self._programs = {path.stem for path in (root / "launch").glob("*.py")}
    self.tests = [path for path in files if path.name.startswith("test_")]
    self._fixtures = self._fixture_imports(root / "tests" / "conftest.py")
    self._registered = {
      name: path
      for path, text in self._texts.items()
      for name in re.findall(r'^@register\("(\w+)"\)', text, re.MULTILINE)
    }
    self._importers: dict[Path, set[Path]] = {}
    for path in files:
      for target in self._targets(path):
        self._importers.setdefault(target, set()).add(path)

  def tests_of(self, changed: Iterable[str]) -> set[Path]:
    """The test files that a change of these files, relative to the root, can have broken.

    A test reaches what it and its helpers import, what its fixtures import, and the programs that
    it names ("launch/plan.py", or a string that begins with "plan "). What nobody imports (a page,
    a notebook, a config, a task that is found by its place) belongs to those that mention its name:
    tests, and for a file of the package also the modules beside it. conftest.py belongs to all
    tests.
    """
    changed = set(changed)
    if "tests/conftest.py" in changed:
      return set(self.tests)
    reached = {self._root / name for name in changed}
    for path in set(reached):
      if not self.importers(path):
        reached |= self.mentioning(path)
    waiting = list(reached)
    while waiting:
      new = self.importers(waiting.pop()) - reached
      reached |= new
      waiting.extend(new)
    return reached & set(self.tests)

  def importers(self, path: Path) -> set[Path]:
    """The files that use a file, one step away."""
    return self._importers.get(path, set())

  def mentioning(self, path: Path) -> set[Path]:
    """The tests and the modules beside it that mention a file's name, or its folder's in quotes."""
    name = path.stem if path.suffix == ".py" else path.name
    words = re.compile(rf"\b{re.escape(name)}\b|[\"']{re.escape(path.parent.name)}[\"']")
    beside = [file for file in self._texts if file.parent == path.parent and file != path]
    if self._root / "gpt_jax" not in path.parents:
      beside = []
    return {file for file in (*self.tests, *beside) if words.search(self._texts[file])}

  def _targets(self, path: Path) -> set[Path]:
    """The files whose change can change what this one does, one step away."""
    targets = {file for name in imports(path) for file in self._resolve(path, name)}
    if self._root / "gpt_jax" in path.parents:  # a default that is named
      names = re.findall(r'from_json\(\{"type": "(\w+)"\}\)', self._texts[path])
      targets |= {self._registered[name] for name in names if name in self._registered}
    for program in re.findall(r'\bcommand_line\.program\(\s*"(\w+)"', self._texts[path]):
      for folder in ("programs", "apps/*"):
        targets |= set((self._root / "gpt_jax").glob(f"{folder}/{program}.py"))
    if self._root / "tests" in path.parents and path.name != "conftest.py":
      nodes = list(ast.walk(_parsed(path)))
      arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
      values = {node.value for node in nodes if isinstance(node, ast.Constant)}
      strings = {value for value in values if isinstance(value, str)}
      for fixture in (arguments | strings) & self._fixtures.keys():
        targets |= self._fixtures[fixture]
      names = {string.partition(" ")[0] for string in strings}
      names |= set(re.findall(r"launch/(\w+)\.py", self._texts[path]))
      targets |= {self._root / "launch" / f"{name}.py" for name in names & self._programs}
    return targets - {path}

  def _resolve(self, importer: Path, name: str) -> list[Path]:
    """The files that an import executes: a module, or the module of an object, and packages."""
    parts = name.split(".")
    folders = [self._root]
    if parts[0] != "gpt_jax":  # scripts find their own folder first, and tests that of conftest.py
      folders = [importer.parent, self._root / "tests"]
    result = []
    for folder in folders:
      for length in range(len(parts), 0, -1):
        stem = folder.joinpath(*parts[:length])
        files = (stem.with_suffix(".py"), stem / "__init__.py")
        result += [file for file in files if file in self._texts]
    return result

  def _fixture_imports(self, path: Path) -> dict[str, set[Path]]:
    """Name of a fixture of conftest.py -> the files that it and its own fixtures import."""
    if path not in self._texts:
      return {}
    functions = {
      node.name: node for node in _parsed(path).body if isinstance(node, ast.FunctionDef)
    }

    def files_of(name: str) -> set[Path]:
      inside = [node for node in ast.walk(functions[name]) if isinstance(node, ast.ImportFrom)]
      names = {f"{node.module}.{alias.name}" for node in inside for alias in node.names}
      result = {file for module in names for file in self._resolve(path, module)}
      for argument in functions[name].args.args:
        if argument.arg in functions:
          result |= files_of(argument.arg)
      return result

    return {name: files_of(name) for name in functions}
