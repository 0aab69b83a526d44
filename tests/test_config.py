"""Configs: typed overrides by dotted name, files, JSON under registered names, helpful errors."""

import ast
import dataclasses
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from refused import refused, table

import gpt_jax
from gpt_jax.config import (
  difference,
  from_json,
  option,
  register,
  registered_modules,
  to_json,
  validate,
)
from gpt_jax.errors import InputError
from gpt_jax.programs.config_files import describe_config, load_config, override, override_all
from gpt_jax.tasks.table import TableTask


@register("toy_trunk")
@dataclasses.dataclass(frozen=True)
class Trunk:
  layers: int = option(12, "blocks", low=1, high=99)
  heads: int = option(12, "attention heads", low=1)
  width: int = option(768, "hidden size", low=1)
  dropout: float = option(0.1, "share dropped", low=0, high=1)
  dtype: str = option("float32", "compute type", choices=("float32", "bfloat16"))

  def __post_init__(self):
    validate(self)
    if self.width % self.heads:
      raise InputError(f"width {self.width} is not a multiple of heads {self.heads}")


@register("toy_other")
@dataclasses.dataclass(frozen=True)
class Other:
  units: int = option(2048, "cells", unit="units", low=1)


@register("toy_run")
@dataclasses.dataclass(frozen=True)
class Run:
  trunk: Trunk | Other = option(Trunk(), "the model")
  anything: Any = option(Other(), "an extension")
  nothing: Any | None = option(None, "another extension")
  steps: int = option(100, "updates", unit="steps", low=0)
  seed: int | None = option(None, "of everything random")
  packed: bool = option(True, "several a row")
  name: str = option("run", "what it is called")
  mesh: tuple[int, int] = option((1, 1), "devices", low=1)
  files: tuple[str, ...] = option((), "inputs")
  every: float | int = option(1, "how often")
  backend: str = option("jit", "how to run", choices=("jit", "pmap"))

  def __post_init__(self):
    validate(self)


@pytest.fixture(autouse=True)
def in_package(monkeypatch):
  """The classes above, as if a module of the package held them."""
  module = types.ModuleType("gpt_jax.toy_config")
  for kind in (Trunk, Other, Run):
    monkeypatch.setattr(kind, "__module__", module.__name__)
    setattr(module, kind.__name__, kind)
  vars(module).update(Any=Any)
  monkeypatch.setitem(sys.modules, module.__name__, module)


@dataclasses.dataclass(frozen=True)
class Dependent:
  kind: str = option("a", "one of two")
  units: int = option(0, "cells")
  only_a: bool = option(False, "of a alone", needs="kind=a")
  of_units: float | None = option(None, "of cells", needs="units")

  __post_init__ = validate


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"only_a": True, "kind": "b"}, "Dependent.only_a=true: needs kind=a, not kind=b"),
    ({"of_units": 0.5}, "Dependent.of_units=0.5: needs units, not units=0"),
  ],
)
def test_a_field_that_needs_another(fields, message):
  refused(message, Dependent, **fields)
  Dependent(only_a=True, of_units=0.5, units=1)
  Dependent(kind="b", of_units=0.0)


@pytest.mark.parametrize(
  "path, text, value",
  [
    ("steps", "7", 7),
    ("trunk.layers", "6", 6),
    ("trunk.dropout", "0", 0.0),  # an integer serves as a float
    ("trunk.dropout", "1e-2", 0.01),
    ("trunk.dtype", "bfloat16", "bfloat16"),
    ("anything.units", "3", 3),
    ("packed", "false", False),
    ("packed", "1", True),
    ("packed", "TRUE", True),
    ("name", "none", "none"),
    ("seed", "4", 4),
    ("seed", "none", None),
    ("nothing", "none", None),
    ("mesh", "2,4", (2, 4)),
    ("mesh", "(2, 4)", (2, 4)),
    ("files", "a,b", ("a", "b")),
    ("files", "", ()),
    ("files", "(a, b)", ("a", "b")),
    ("files", "a,question (en)", ("a", "question (en)")),
    ("backend", "pmap", "pmap"),
  ],
)
def test_override_reads_the_fields_type(path, text, value):
  changed = override(Run(), path, text)
  for name in path.split("."):
    changed = getattr(changed, name)
  assert (changed, type(changed)) == (value, type(value))


OVERRIDES = """\
trunk.layers=two => trunk.layers = 'two': must be an integer from 1 to 99
trunk.layers=2.5 => trunk.layers = '2.5': must be an integer from 1 to 99
trunk.layers=0 => trunk.layers = 0: must be an integer from 1 to 99
trunk.dropout=1.5 => trunk.dropout = 1.5: must be a number from 0 to 1
trunk.dropout=0,1 =>
    trunk.dropout = '0,1': must be a number from 0 to 1; did you mean 0.1? (with a decimal poin
steps=1,000 => steps = '1,000': must be an integer from 0 to 1,000,000,000; did you mean 1000?
trunk.dropout=nan => trunk.dropout = nan: must be a number from 0 to 1
trunk.dtype=float16 => trunk.dtype = 'float16': must be one of float32, bfloat16
steps=none => steps = None: must be an integer from 0 to 1,000,000,000
packed=yes => packed = 'yes': must be true or false
anything=none => anything = None: must be a group of fields, which is chosen in the con
seed=x => seed = 'x': must be an integer of at most 1,000,000,000, or none
mesh=2 => mesh = '2': must be 2 comma-separated values (an integer, an integer) from 1 to 1,000,000
mesh=0,2 => mesh = (0, 2): must be 2 comma-separated values (an integer, an integer) from 1 to 1,000
backend=vmap => backend = 'vmap': must be one of jit, pmap
trunk=lstm => trunk = 'lstm': must be a Trunk, which is chosen in the config file or a Other
anything=other => anything = 'other': must be a group of fields, which is chosen in the config file
trunk.layer=2 =>
    config has no field 'trunk.layer'; did you mean trunk.layers? (fields of trunk: layers,
layers=2 => config has no field 'layers'; did you mean trunk.layers? (fields of config: trunk,
trnk.layers=2 =>
    config has no field 'trnk.layers'; did you mean trunk.layers? (fields of config: trunk,
steps.more=2 => config has no field 'steps.more': steps is 100, not a group of fields
=2 => config has no field '' (fields of config: trunk,
"""


@pytest.mark.parametrize("given, message", table(OVERRIDES))
def test_override_says_what_would_be_right(given, message):
  path, _, text = given.partition("=")
  with pytest.raises(InputError) as error:
    override(Run(), path, text)
  assert str(error.value).startswith(message)


def test_names_may_have_commas_in_quotation_marks_and_line_breaks():
  pair, name = TableTask(transform="entailment"), "columns"
  task = override(pair, name, '"a, b",c')
  assert task.columns == ("a, b", "c")
  assert override(pair, name, "a\nb,c").columns == ("a\nb", "c")


def test_changes_made_together_need_only_agree_in_the_end():
  before = Run()
  changed = override_all(before, [("trunk.width", "10"), ("trunk.heads", "5")])
  assert (changed.trunk.width, changed.trunk.heads) == (10, 5) and before == Run()
  refused("width 10 is not a multiple of heads 12", lambda: override(Run(), "trunk.width", "10"))


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: Trunk(layers=0), "Trunk.layers = 0: must be an integer from 1 to 99"),
    (lambda: Trunk(layers=True), "Trunk.layers = True: must be an integer"),
    (lambda: Trunk(layers=2.0), "Trunk.layers = 2.0: must be an integer"),
    (lambda: Trunk(dropout=float("nan")), "Trunk.dropout = nan: must be a number"),
    (lambda: Trunk(dropout="0.1"), "Trunk.dropout = '0.1': must be a number"),
    (lambda: Run(trunk=Run()), "Run.trunk = Run: must be a Trunk"),
    (lambda: Run(files=["a"]), "Run.files = .* a comma-separated list, each text"),
    (lambda: Run(name=None), "Run.name = None: must be text"),
  ],
)
def test_validate_names_field_and_value(make, message):
  refused(message, make)


def test_json_round_trip():
  original = Run(
    Other(units=5), Trunk(layers=2), seed=3, mesh=(2, 4), files=("a", "b"), packed=False
  )
  tree = json.loads(json.dumps(to_json(original)))
  assert from_json(tree) == original
  assert (tree["type"], tree["trunk"]["type"], tree["mesh"]) == ("toy_run", "toy_other", [2, 4])
  assert from_json({"type": "toy_trunk", "layers": 3}) == Trunk(layers=3)  # newer fields: defaults


@pytest.mark.parametrize(
  "tree, message",
  [
    ({"type": "system"}, "'system': unknown; must be one of "),
    ({"type": "transfomer"}, "'transfomer': unknown; must be one of transformer$"),
    ({"type": ""}, "'': unknown; must be one of .*builtin_task, "),
    ({"type": 3}, "config type 3: must be the registered name of a config class"),
    ({"type": ["transformer"]}, "must be the registered name of a config class"),
    ({"layers": 3}, "config type None: must be the registered name of a config class"),
    (
      {"type": "gpt_jax.trunks.transformer:TransformerConfig"},
      "written by an earlier version of gpt_jax; use it with that version, or train again",
    ),
    ({"type": "os:system"}, "written by an earlier version of gpt_jax"),
    ({"type": "toy_trunk", "layer": 3}, "Trunk has no field 'layer'; its fields: layers, heads"),
    ({"type": "toy_trunk", "layers": 0}, "Trunk.layers = 0"),
    ({"type": "toy_run", "name": {"type": "toy_trunk"}}, "Run.name = Trunk"),
  ],
)
def test_json_of_a_stranger(tree, message):
  refused(message, from_json, tree)


def test_json_imports_nothing_outside_the_package():
  sys.modules.pop("antigravity", None)
  for name in ("antigravity:fly", "antigravity"):
    with pytest.raises(InputError):
      from_json({"type": name})
  assert "antigravity" not in sys.modules


def test_to_json_refuses_classes_that_could_not_be_read_back(monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Unregistered:
    pass

  monkeypatch.setattr(Unregistered, "__module__", "gpt_jax.toy_config")
  other = Run(anything=Unregistered())
  refused("class .*Unregistered of gpt_jax.toy_config cannot be saved", to_json, other)
  monkeypatch.setattr(Other, "__module__", "config_file")
  refused("class Other of config_file cannot be saved: only classes", lambda: to_json(Run()))


def test_a_name_belongs_to_one_class():
  with pytest.raises(ValueError, match="'toy_trunk' is taken: by gpt_jax.toy_config.Trunk, and"):
    register("toy_trunk")(Other)
  assert from_json({"type": "toy_trunk"}) == Trunk()
  assert register("toy_trunk")(Trunk) is Trunk  # reloading a module is no second class


def test_a_new_process_reads_json_without_imports_of_its_own():
  """And it imports only the modules that the JSON names."""
  script = """if True:
    import json, sys
    from gpt_jax.config import from_json, to_json
    tree = {"type": "windows", "length": 7}
    assert to_json(from_json(tree))["length"] == 7
    assert "jax" not in sys.modules and "gpt_jax.programs.pretrain" not in sys.modules
    tree = {"type": "pretrain", "trunk": {"type": "lstm", "vocab_size": 9}, "data": tree}
    print(json.dumps(to_json(from_json(tree))))
  """
  done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  config = from_json(json.loads(done.stdout))
  assert type(config).__name__ == "PretrainConfig"
  assert (config.trunk.vocab_size, config.data.length) == (9, 7)


def test_a_new_config_class_edits_no_other_file(tmp_path, monkeypatch):
  (tmp_path / "brand_new.py").write_text(
    "import dataclasses\nfrom gpt_jax.config import option, register\n\n"
    '@register("brand_new")\n@dataclasses.dataclass(frozen=True)\n'
    'class BrandNewConfig:\n  size: int = option(1, "size")\n'
  )
  monkeypatch.setattr(gpt_jax, "__path__", [*gpt_jax.__path__, str(tmp_path)])
  assert from_json({"type": "brand_new", "size": 2}).size == 2


def test_two_files_with_one_name_are_a_programming_error(tmp_path, monkeypatch):
  for name in ("first", "second"):
    (tmp_path / f"{name}.py").write_text('@register("twice")\nclass Config: ...\n')
  monkeypatch.setattr(gpt_jax, "__path__", [*gpt_jax.__path__, str(tmp_path)])
  with pytest.raises(ValueError, match="'twice' is taken: by gpt_jax.first and gpt_jax.second"):
    registered_modules()


def test_every_config_class_of_the_package_is_registered():
  folder = Path(gpt_jax.__file__).parent
  trees = {path: ast.parse(path.read_text()) for path in folder.rglob("*.py")}
  nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
  classes = [(path, node) for path, node in nodes if isinstance(node, ast.ClassDef)]
  parents = {ast.unparse(base) for _, node in classes for base in node.bases}
  for path, node in classes:
    if " = option(" in ast.unparse(node) and node.name not in parents:
      decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
      assert decorators[0].startswith("register("), f"{path}: {node.name}"
  assert {"transformer", "lstm", "causal", "pretrain", "windows"} <= registered_modules().keys()


def test_difference():
  assert difference(Run(), Run()) == []
  assert difference(Run(), override(Run(), "trunk.layers", "6")) == ["trunk.layers: 12 != 6"]
  lines = difference(Run(), Run(trunk=Other()))
  assert lines[0] == "trunk.type: 'toy_trunk' != 'toy_other'"
  assert "trunk.units: absent != 2048" in lines


def test_describe_shows_every_field_and_reads_back():
  changed = override(Run(), "anything.units", "5")
  lines = describe_config(changed).splitlines()
  heads = [line for line in lines if line.startswith("[")]
  groups = "[trunk: toy_trunk] the model", "[anything: toy_other] an extension"
  assert heads == ["[toy_run]", *groups]
  pairs = [
    (name.strip(), rest.split("  ")[0].strip())
    for name, rest in (line.split(" = ", 1) for line in lines if line and line not in heads)
  ]
  assert len(pairs) == 5 + 1 + 9
  assert any(line.endswith("compute type (float32 | bfloat16)") for line in lines)
  changes = [(name, "" if text == "()" else text) for name, text in pairs]
  assert override_all(Run(), changes) == changed


def test_describe_shows_other_values_of_the_file_and_the_class():
  def line(config, file, name):
    lines = describe_config(config, file).splitlines()
    return next(line for line in lines if line.startswith(f"{name} "))

  file = Run(Trunk(layers=6), Other(7), steps=100)
  changed = override_all(file, [("trunk.layers", "3"), ("anything.units", "2048")])
  assert line(file, file, "trunk.layers").endswith("(default 12)")
  assert line(changed, file, "trunk.layers").endswith("(in the file 6, default 12)")
  units = line(changed, file, "anything.units")
  assert units.split()[2:] == "2048 cells (units, in the file 7)".split()
  assert line(file, file, "steps").split()[2:] == "100 updates (steps)".split()
  assert line(override(file, "steps", "5"), file, "steps").endswith("(steps, in the file 100)")
  # A group's default values are those of the field that holds it, not those of its class.
  outer = Outer()
  assert line(outer, outer, "run.steps").endswith("updates (steps)")
  other = override(outer, "run.steps", "100")
  assert line(other, other, "run.steps").endswith("updates (steps, default 5)")


@dataclasses.dataclass(frozen=True)
class Outer:
  run: Run = option(Run(steps=5), "a run")


def write(folder, text):
  path = folder / "some.py"
  path.write_text(text)
  return str(path)


IMPORT = "from gpt_jax.toy_config import Run\n"


def test_load(tmp_path):
  path = write(tmp_path, IMPORT + "def get_config(): return Run(steps=3)")
  assert load_config(path) == Run(steps=3)
  refused("get_config takes no argument, 'cola' was given", load_config, f"{path}:cola")
  path = write(tmp_path, IMPORT + "def get_config(name='x'): return Run(name=name)")
  assert load_config(path).name == "x"
  assert load_config(path + ":cola").name == "cola"


@pytest.mark.parametrize(
  "text, message",
  [
    ("def get_config(:", ":2: SyntaxError: "),
    ("def get_config(): return 3", r": get_config\(\) returned int, not a config dataclass"),
    ("def get_config(): return Run", r": get_config\(\) returned type, not a config dataclass"),
    ("def get_config():\n  return Run(layer=3)", ":3: TypeError: .*unexpected keyword .*'layer'"),
    (
      "def get_config():\n  return Run(steps=-3)",
      r":3: Run\.steps = -3: must be an integer from 0",
    ),
    ("import absent_module", ":2: ModuleNotFoundError: No module named"),
    ("x = 1", r": defines no function get_config\(\)"),
    ("def get_config(task): return Run()", r": get_config needs the name of its task: .*\.py:TASK"),
  ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, message):
  refused(r"some\.py" + message, load_config, write(tmp_path, IMPORT + text))


def test_load_of_a_missing_file_names_its_neighbours(tmp_path):
  write(tmp_path, "")
  there = r"cannot read config file '.*sme\.py': No such file or directory; there: some\.py"
  refused(there, load_config, str(tmp_path / "sme.py"))
  refused(r"Is a directory; there: some\.py", load_config, str(tmp_path))
  refused("cannot read config file 'absent/x.py'.*; known names: ", load_config, "absent/x.py")
  refused("'gtp1': No such file .*; known names: gpt1", load_config, "gtp1")
  refused(r"; did you mean --config=gpt1:small\?$", load_config, "GPT1-small")
  (tmp_path / "gpt1_big.py").write_text("")
  refused(r"there: gpt1_big\.py$", load_config, str(tmp_path / "gpt1_bg.py"))
  (tmp_path / "sized.py").write_text("def get_config(size): pass")
  refused("needs the name of its size: .*:SIZE$", load_config, str(tmp_path / "sized.py"))


def test_a_config_by_its_old_name(capfd):
  assert load_config("configs/gpt1_small.py") == load_config("gpt1:small")
  assert "--config=configs/gpt1_small.py is now --config=gpt1:small\n" in capfd.readouterr().err
  refused("cannot read config file 'mine/gpt1_small.py'", load_config, "mine/gpt1_small.py")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_a_float_without_limits_is_finite(value):
  unlimited = Dependent(units=1)
  assert override(unlimited, "of_units", "-1e300").of_units == -1e300
  refused(f"= {value}: must be a number", override, unlimited, "of_units", value)
  refused("= 1000.*must be a number", Dependent, units=1, of_units=10**400)  # too large for a float
