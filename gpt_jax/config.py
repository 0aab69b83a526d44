"""Run configuration: a tree of frozen dataclasses, written in Python files, changed by dotted
names on the command line, stored as JSON under registered names.
"""

import dataclasses
import difflib
import importlib
import importlib.abc
import importlib.util
import inspect
import math
import os
import pkgutil
import re
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpt_jax.errors import InputError
from gpt_jax.files import shipped_folder

_PACKAGE = __name__.partition(".")[0]
_OVERRIDDEN = "_overridden"  # attribute of a group, see overridden
_LARGEST = 10**9  # of integers without a limit of their own; more is a slip, and ends in a crash
_ELSEWHERE = {  # names of other libraries -> ours
  "lr": "learning_rate",
  "wd": "weight_decay",
  "bs": "batch_size",
  **dict.fromkeys(("num_epochs", "num_train_epochs"), "epochs"),
  **dict.fromkeys(("max_steps", "num_steps", "max_iters"), "steps"),
  **dict.fromkeys(("block_size", "seq_len", "seq_length", "max_length"), "length"),
  **dict.fromkeys(("n_layer", "num_layers", "depth"), "layers"),
  **dict.fromkeys(("n_head", "num_heads"), "heads"),
  **dict.fromkeys(("n_embd", "d_model", "hidden_size"), "width"),
}
_Class = TypeVar("_Class", bound=type)


# ---------------------------------------------------------------------------------------- Schema


_classes: dict[str, type] = {}  # registered name -> config class
_names: dict[type, str] = {}  # the inverse


def register(name: str) -> Callable[[_Class], _Class]:
  """Names a config class in JSON; goes above `@dataclasses.dataclass(frozen=True)`.

  The name is part of the file format: classes and files may move, names stay. Write it as a string
  literal, because `from_json` searches the package's source for it.

  Raises:
    ValueError: another class has this name.
  """

  def add(kind: _Class) -> _Class:
    known = _classes.get(name, kind)
    # By name and not by identity: a module that is loaded again makes its classes anew.
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
      raise ValueError(
        f"config name {name!r} is taken: by {known.__module__}.{known.__qualname__}, "
        f"and again by {kind.__module__}.{kind.__qualname__}"
      )
    _classes[name] = kind
    _names[kind] = name
    return kind

  return add


def option(
  default: Any,
  help: str,
  *,
  unit: str = "",
  low: float | None = None,
  high: float | None = None,
  choices: tuple | None = None,
  resumable: bool = False,
  runtime: bool = False,
) -> Any:
  """A field of a config dataclass.

  Args:
    default: a value, or a frozen dataclass for a group of fields.
    help: a few words on what the field does.
    unit: e.g. "tokens" or "steps".
    low: smallest allowed value.
    high: largest allowed value; None: 10^9 for an integer, any finite one for a float.
    choices: the allowed values.
    resumable: whether a run may resume with another value, since it does not affect the result.
    runtime: whether any value fits the parameters of a checkpoint, as dropout and dtype.
  """
  metadata = {
    "help": help,
    "unit": unit,
    "low": low,
    "high": high,
    "choices": choices,
    "resumable": resumable,
    "runtime": runtime,
  }
  return dataclasses.field(default=default, metadata=metadata)


def validate(node: Any) -> None:
  """Checks type and range of every field of a dataclass; call it in `__post_init__`.

  Converts integers in float fields to float.

  Raises:
    InputError: names the field, its value and the allowed values.
  """
  hints = typing.get_type_hints(type(node))
  for field, value in field_values(node):
    name = f"{type(node).__name__}.{field.name}"
    value = _check(name, value, hints[field.name], field.metadata)
    # The dataclass is frozen; this stores an integer of a float field as a float.
    object.__setattr__(node, field.name, value)


def field_values(node: Any) -> list[tuple[dataclasses.Field, Any]]:
  """Each field of a dataclass and its value, in their order."""
  return [(field, getattr(node, field.name)) for field in dataclasses.fields(node)]


# ---------------------------------------------------------------------------------- Config files


def load_config(spec: str) -> Any:
  """Runs a Python file and returns the config from its get_config().

  Args:
    spec: a file, "my/config.py", or the name of one in configs/, "gpt1"; with an argument
      "finetune:cola", for get_config("cola").

  Raises:
    InputError: names the file and the line of the error.
  """
  name, colon, argument = spec.partition(":")
  path, source = read_config_file(spec)
  try:
    config = _call_get_config(name, path, source, (argument,) if colon else ())
  except Exception as error:  # user code can raise anything
    raise InputError(f"{_location(path, error)}: {_one_line(error)}") from error
  if not _is_node(config):
    returned = type(config).__name__
    raise InputError(f"{path}: get_config() returned {returned}, not a config dataclass")
  return config


def read_config_file(spec: str) -> tuple[str, str]:
  """Path and source of the file of a spec, which is not run: that imports JAX.

  Raises:
    InputError: it cannot be read.
  """
  name = spec.partition(":")[0]
  path = name if os.path.isfile(name) else named_configs().get(name, name)
  try:
    with open(path, encoding="utf-8") as file:
      return path, file.read()
  except (OSError, UnicodeDecodeError) as error:
    reason = _one_line(error)
    raise InputError(f"cannot read config file {path!r}: {reason}{_neighbors(path)}") from error


def named_configs() -> dict[str, str]:
  """Name -> path of the files in configs/, which `load_config` takes by name from any folder."""
  folder = shipped_folder("configs")
  files = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
  return {file[:-3]: os.path.join(folder, file) for file in files if file.endswith(".py")}


def _call_get_config(name: str, path: str, source: str, arguments: tuple[str, ...]) -> Any:
  module = types.ModuleType("config_file")
  module.__file__ = os.path.abspath(path)
  # Not imported: no __pycache__ beside the user's file, and no name taken in sys.modules.
  exec(compile(source, path, "exec"), module.__dict__)
  get_config = module.__dict__.get("get_config")
  if not callable(get_config):
    raise InputError("defines no function get_config()")
  signature = inspect.signature(get_config)
  try:
    signature.bind(*arguments)
  except TypeError as error:
    names = ", ".join(signature.parameters)
    problem = f"needs the name of its {names}: {name}:{names.upper()}"
    if arguments:
      problem = f"takes no argument, {arguments[0]!r} was given"
    raise InputError(f"get_config {problem}") from error
  return get_config(*arguments)


def _one_line(error: Exception) -> str:
  if isinstance(error, InputError):
    return str(error)
  if isinstance(error, OSError):
    return error.strerror or str(error)
  message = error.msg if isinstance(error, SyntaxError) else str(error)
  return f"{type(error).__name__}: {message}".replace("\n", " ")


def _location(path: str, error: Exception) -> str:
  """path:line of the innermost frame in the config file."""
  if isinstance(error, SyntaxError) and error.filename == path:
    return f"{path}:{error.lineno}"
  frames = traceback.extract_tb(error.__traceback__)
  lines = [frame.lineno for frame in frames if frame.filename == path]
  return f"{path}:{lines[-1]}" if lines else path


def _neighbors(path: str) -> str:
  """Config files to choose from, nearest first: those in the same folder, those with a name."""
  is_name = not path.endswith(".py") and not os.path.dirname(path) and not os.path.isdir(path)
  folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
  entries = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
  files = [entry.removesuffix(".py") for entry in entries if entry.endswith(".py")]
  wanted = os.path.basename(path).removesuffix(".py")
  near = difflib.get_close_matches(wanted, files) or ([] if is_name else files)
  there = f"; there: {', '.join(name + '.py' for name in near)}" if near else ""
  if there and not is_name:
    return there
  known = list(named_configs())
  return f"{there}; known names: {', '.join(difflib.get_close_matches(wanted, known) or known)}"


# ------------------------------------------------------------------------------------- Overrides


def override(config: Any, path: str, text: str) -> Any:
  """A copy of config with one field, given by its dotted path, set to the value of text."""
  return override_all(config, [(path, text)])


def override_all(config: Any, changes: Iterable[tuple[str, str]]) -> Any:
  """A copy with several (dotted path, text) changes; only the final combination is validated.

  Raises:
    InputError: an unknown name, with the nearest valid names; a value of the wrong type or out of
      range.
  """
  tree: dict = {}
  for path, text in changes:
    *groups, last = path.split(".")
    node, branch = config, tree
    for depth, name in enumerate(groups):
      _field(config, path, node, groups[:depth], name)
      node, branch = getattr(node, name), branch.setdefault(name, {})
    metadata = _field(config, path, node, groups, last).metadata
    hint = typing.get_type_hints(type(node))[last]
    branch[last] = _check(path, _parse(path, text, hint, metadata), hint, metadata)
  # Each group is replaced once: its __post_init__ sees the final combination only.
  return _replace(config, tree)


def _field(
  config: Any, path: str, node: Any, groups: Sequence[str], name: str
) -> dataclasses.Field:
  """The field `name` of node. Raises InputError, with the nearest names of config, without one."""
  group = ".".join(groups)
  if not _is_node(node):
    raise InputError(
      f"config has no field {path!r}: {group} is {_text(node)}, not a group of fields"
    )
  fields = {field.name: field for field in dataclasses.fields(node)}
  if name in fields:
    return fields[name]
  wanted = path.rpartition(".")[2]
  paths = [path for path, _, _ in fields_of(config)]
  near = [f"{group}.{name}".lstrip(".") for name in difflib.get_close_matches(wanted, fields)]
  near = near or named_like(wanted, paths) or difflib.get_close_matches(path, paths)
  guess = f"; did you mean {' or '.join(near[:3])}?" if near else ""
  listing = f"fields of {group or 'config'}: {', '.join(fields)}"
  raise InputError(f"config has no field {path!r}{guess} ({listing})")


def named_like(name: str, paths: Iterable[str]) -> list[str]:
  """The dotted paths of the fields of a name, which may be that of another library: "lr"."""
  names = (name, _ELSEWHERE.get(name))
  return [path for path in paths if path.rpartition(".")[2] in names]


def declared_fields(kind: str) -> list[str]:
  """The dotted names of the fields of a config class, in its groups too.

  They are read from the source: importing the class may import JAX. A group that may be of several
  classes has the fields of the default.

  Args:
    kind: name of a class of this package, such as "PretrainConfig".
  """
  bodies: dict[str, str] = {}
  for folder, _, names in os.walk(os.path.dirname(os.path.abspath(__file__))):
    for name in names:
      if name.endswith(".py"):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
          bodies |= dict(_CONFIG_CLASS.findall(file.read()))

  def fields(kind: str, prefix: str) -> Iterator[str]:
    for name, hint, default in _OPTION.findall(bodies[kind]):
      group = next((word for word in (hint, default) if word in bodies), None)
      if group:
        yield from fields(group, f"{prefix}{name}.")
      else:
        yield prefix + name

  return list(fields(kind, ""))


# A registered class: its decorators, name and body, the lines that are indented or empty.
_CONFIG_CLASS = re.compile(
  r"^@(?:\w+\.)*register\(.*\)\n(?:@.*\n)*class (\w+).*\n((?:(?: .*)?\n)*)", re.MULTILINE
)
# A field: its name, its type, and the first word of its default, which may be a class.
_OPTION = re.compile(r"^  (\w+): (.+?) = option\(\s*(\w*)", re.MULTILINE)


def _replace(node: Any, tree: dict) -> Any:
  changes = {}
  for name, value in tree.items():
    changes[name] = _replace(getattr(node, name), value) if isinstance(value, dict) else value
  changed = dataclasses.replace(node, **changes)
  object.__setattr__(changed, _OVERRIDDEN, overridden(node) | changes.keys())
  return changed


def overridden(node: Any) -> frozenset[str]:
  """The fields of a group that `override_all` has set, be it to the value that they had.

  It is known of the object that it returned, not of copies of that.
  """
  return getattr(node, _OVERRIDDEN, frozenset())


# ------------------------------------------------------------------------------------------ JSON


def to_json(config: Any) -> Any:
  """The config as dicts, lists and scalars; every group of fields has its registered "type".

  Raises:
    InputError: a class that `from_json` could not find again.
  """
  if isinstance(config, tuple):
    return [to_json(value) for value in config]
  if not _is_node(config):
    return config
  kind = type(config)
  if kind not in _names or not _is_ours(kind.__module__):
    raise InputError(
      f"config class {kind.__qualname__} of {kind.__module__} cannot be saved: only classes of "
      f"{_PACKAGE} can, with @register above them"
    )
  fields = {field.name: to_json(value) for field, value in field_values(config)}
  return {"type": _names[kind], **fields}


def from_json(tree: Any) -> Any:
  """The config that `to_json` wrote; missing fields take their defaults.

  Safe for files from strangers: imports nothing outside this package and builds nothing but
  registered dataclasses.

  Raises:
    InputError: an unknown type or field, or a value that is not allowed.
  """
  if isinstance(tree, list):
    return tuple(from_json(value) for value in tree)
  if not isinstance(tree, dict):
    return tree
  kind = _registered_class(tree.get("type"))
  values = {name: from_json(value) for name, value in tree.items() if name != "type"}
  known = [field.name for field in dataclasses.fields(kind) if field.init]
  for name in values:
    if name not in known:
      raise InputError(f"{kind.__name__} has no field {name!r}; its fields: {', '.join(known)}")
  try:
    return kind(**values)
  except (TypeError, AttributeError) as error:  # a group of another class than the field's
    raise InputError(f"{kind.__name__}: {error}") from error


def registered_modules() -> dict[str, str]:
  """Registered name -> module, for every config class of the package; reads source, imports none.

  Raises:
    ValueError: two modules register the same name.
  """
  modules: dict[str, str] = {}
  package = importlib.import_module(_PACKAGE)
  for module in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
    for name in _REGISTER.findall(_source(module.name)):
      if name in modules:
        raise ValueError(f"config name {name!r} is taken: by {modules[name]} and {module.name}")
      modules[name] = module.name
  return modules


_REGISTER = re.compile(r"""^@(?:\w+\.)*register\(["']([^"']+)["']\)""", re.MULTILINE)


def _source(module: str) -> str:
  spec = importlib.util.find_spec(module)
  if spec is None or not isinstance(spec.loader, importlib.abc.InspectLoader):
    return ""
  return spec.loader.get_source(module) or ""


def _registered_class(name: Any) -> type:
  """The config class of a name, after importing its module if necessary."""
  if name in list(_classes):  # a list, because a stranger's name may not be hashable
    return _classes[name]
  if not isinstance(name, str):
    raise InputError(f"config type {name!r}: must be the registered name of a config class")
  if ":" in name:
    raise InputError(
      f"config type {name!r}: written by an earlier version of {_PACKAGE}; use it with that "
      "version, or train again with this one"
    )
  modules = registered_modules()
  if name not in modules:
    near = difflib.get_close_matches(name, modules) or sorted(modules)
    raise InputError(f"config type {name!r}: unknown; must be one of {', '.join(near)}")
  importlib.import_module(modules[name])
  return _classes[name]


def _is_ours(module: str) -> bool:
  return module.partition(".")[0] == _PACKAGE


# ------------------------------------------------------------------------ Description, difference


def difference(a: Any, b: Any) -> list[str]:
  """The fields that differ, one line per field: "trunk.layers: 4 != 6"."""
  left, right = _reprs(a), _reprs(b)
  lines = []
  for name in dict.fromkeys([*left, *right]):
    old, new = left.get(name, "absent"), right.get(name, "absent")
    if old != new:
      lines.append(f"{name}: {old} != {new}")
  return lines


def _reprs(config: Any, prefix: str = "") -> dict[str, str]:
  """Dotted name -> repr of every leaf, and of the type of every group."""
  kind = type(config)
  reprs = {f"{prefix}type": repr(_names.get(kind, kind.__qualname__))}
  for field, value in field_values(config):
    if _is_node(value):
      reprs |= _reprs(value, f"{prefix}{field.name}.")
    else:
      reprs[prefix + field.name] = repr(value)
  return reprs


def describe_config(config: Any, file: Any = None) -> str:
  """A section for each group of fields, with a line for each field: `NAME = VALUE  help (notes)`.

  The notes are unit, choices, and the file's value and the default where they differ.

  Args:
    file: the config as its file has it, without the command line's changes; None: the same.
  """
  in_file = {name: value for name, value, _ in fields_of(config if file is None else file)}
  return "\n\n".join(_sections(config, None, "", "", in_file))


def _sections(
  group: Any, default: Any, prefix: str, help: str, in_file: dict[str, Any]
) -> list[str]:
  """The sections of a group, whose default is None or a group of the same class."""
  rows: list[tuple[str, str, str]] = []
  inner: list[str] = []
  for field, value in field_values(group):
    name = prefix + field.name
    usual = _default(field) if default is None else getattr(default, field.name)
    if _is_node(value):
      usual = usual if type(usual) is type(value) else None
      about = field.metadata.get("help", "")
      inner += _sections(value, usual, f"{name}.", about, in_file)
    else:
      rows.append((name, _text(value), _about(field, value, in_file.get(name, value), usual)))
  kind, path = _names.get(type(group), type(group).__qualname__), prefix[:-1]
  head = f"[{kind}] {help}" if path in ("", kind) else f"[{path}: {kind}] {help}"
  name_width = max((len(name) for name, _, _ in rows), default=0)
  value_width = max((len(value) for _, value, _ in rows), default=0)
  lines = [f"{name:{name_width}} = {value:{value_width}}  {about}" for name, value, about in rows]
  return ["\n".join(line.rstrip() for line in [head, *lines]), *inner]


def fields_of(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, dataclasses.Field]]:
  """(dotted name, value, field) of every field that is not a group."""
  for field, value in field_values(config):
    if _is_node(value):
      yield from fields_of(value, f"{prefix}{field.name}.")
    else:
      yield prefix + field.name, value, field


def resumable_fields(config: Any, prefix: str = "") -> list[str]:
  """Dotted names of the fields that may differ when a run resumes.

  A group is named once, with a dot after it ("mesh."), for all fields below it.
  """
  names = []
  for field, value in field_values(config):
    if field.metadata.get("resumable"):
      names.append(f"{prefix}{field.name}{'.' if _is_node(value) else ''}")
    elif _is_node(value):
      names += resumable_fields(value, f"{prefix}{field.name}.")
  return names


def runtime_fields(config: Any) -> dict[str, Any]:
  """Name -> value of the fields that may differ from those of a checkpoint."""
  return {
    field.name: value for field, value in field_values(config) if field.metadata.get("runtime")
  }


def _default(field: dataclasses.Field) -> Any:
  if field.default_factory is not dataclasses.MISSING:
    return field.default_factory()
  return field.default


def _about(field: dataclasses.Field, value: Any, in_file: Any, default: Any) -> str:
  """help (unit, choices, other values)."""
  choices = field.metadata.get("choices") or ()
  notes = [field.metadata.get("unit", ""), " | ".join(map(_text, choices))]
  if in_file != value:
    notes.append(f"in the file {_text(in_file)}")
  if default not in (value, in_file, dataclasses.MISSING) and not _is_node(default):
    notes.append(f"default {_text(default)}")
  help = field.metadata.get("help", "")
  note = ", ".join(filter(None, notes))
  return f"{help} ({note})" if note else help


def _text(value: Any) -> str:
  """A value in the syntax of `override`."""
  if isinstance(value, tuple):
    return ",".join(map(_text, value)) or "()"
  if value is None or isinstance(value, bool):
    return str(value).lower()
  return str(value)


def _is_node(value: Any) -> bool:
  """Whether a value is a group of fields."""
  return dataclasses.is_dataclass(value) and not isinstance(value, type)


# --------------------------------------------------------------------------------- Typed values


def _check(name: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
  """The value, converted to float if the hint says so. Raises InputError if it is not allowed."""
  fits, value = _fit(value, hint)
  low, high, choices = _limits(hint, metadata)
  numbers = [item for item in (value if isinstance(value, tuple) else (value,)) if _is_number(item)]
  for number in numbers:
    above = low is None or number >= low
    below = high is None or number <= high
    # Where there is no limit, nan and inf would pass.
    fits = fits and above and below and math.isfinite(number)
  if not fits or (choices is not None and value not in choices):
    shown = type(value).__name__ if _is_node(value) else repr(value)
    raise InputError(f"{name} = {shown}: must be {_allowed(hint, metadata)}")
  return value


def _limits(hint: Any, metadata: Mapping[str, Any]) -> tuple[Any, Any, Any]:
  """The smallest and largest value, and the choices; None where there is none."""
  low, high, choices = (metadata.get(key) for key in ("low", "high", "choices"))
  is_integer = hint is int or int in typing.get_args(hint)
  return low, _LARGEST if high is None and is_integer else high, choices


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
  """Whether a value has the hinted type, and the value, an integer converted to float."""
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if hint is Any:
    return value is not None, value
  if origin in (typing.Union, types.UnionType):
    for choice in arguments:
      fits, fitted = _fit(value, choice)
      if fits:
        return True, fitted
    return False, value
  if origin is typing.Literal:
    return value in arguments, value
  if origin is tuple or hint is tuple:
    if not isinstance(value, tuple):
      return False, value
    hints = _item_hints(arguments, len(value))
    items = [_fit(item, item_hint) for item, item_hint in zip(value, hints, strict=False)]
    fits = len(hints) == len(value) and all(fits for fits, _ in items)
    return fits, tuple(item for _, item in items)
  if hint is float:
    if not _is_number(value):
      return False, value
    try:
      return True, float(value)
    except OverflowError:  # an integer above 1e308
      return False, value
  if hint in (int, bool, str, type(None)):
    # Not isinstance: True is no integer here.
    return type(value) is hint, value
  return isinstance(hint, type) and isinstance(value, hint), value


def _parse(name: str, text: str, hint: Any, metadata: Mapping[str, Any]) -> Any:
  """The value of a command-line text. Raises InputError if it is none of the hinted type."""
  value = _parse_as(text.strip(), hint)
  # None means both "none" and a text that no type takes.
  if value is None and text.strip().lower() != "none":
    raise InputError(f"{name} = {text!r}: must be {_allowed(hint, metadata)}{_without_comma(text)}")
  return value


def _without_comma(text: str) -> str:
  """For the end of a message about a number: what 0,001 and 10,000 may stand for."""
  if re.fullmatch(r"\d{1,3}(,\d{3})+", text) and text[0] != "0":
    return f"; did you mean {text.replace(',', '')}?"
  if re.fullmatch(r"\d+,\d+(e-?\d+)?", text):
    return f"; did you mean {text.replace(',', '.')}? (with a decimal point)"
  return ""


def _parse_as(text: str, hint: Any) -> Any:
  """The value of a text as the hinted type; None if it is none of that type."""
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    if type(None) in arguments and text.lower() == "none":
      return None
    # In the order of the hint, so that an int | float takes "3" as an integer.
    values = [_parse_as(text, choice) for choice in arguments]
    return next((value for value in values if value is not None), None)
  if origin is typing.Literal:
    return next((choice for choice in arguments if str(choice) == text), None)
  if origin is tuple or hint is tuple:
    inside = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
    parts = [part.strip() for part in inside.split(",") if part.strip()]
    hints = _item_hints(arguments, len(parts))
    items = tuple(_parse_as(part, item_hint) for part, item_hint in zip(parts, hints, strict=False))
    return None if len(hints) != len(parts) or None in items else items
  if hint is bool:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
  if hint in (int, float):
    try:
      return hint(text)
    except ValueError:
      return None
  return text if hint is str else None


def _item_hints(arguments: tuple, count: int) -> list:
  """The types of a tuple's items: `count` for tuple[int, ...], always two for tuple[int, int]."""
  if not arguments or arguments[-1] is Ellipsis:
    return [arguments[0] if arguments else str] * count
  return list(arguments)


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _allowed(hint: Any, metadata: Mapping[str, Any]) -> str:
  """The allowed values, in words: "an integer from 1 to 99, or none"."""
  low, high, choices = _limits(hint, metadata)
  if choices is not None:
    help = metadata.get("help")
    return f"one of {', '.join(map(_text, choices))}{f' ({help})' if help else ''}"
  words, none = _type_words(hint), ""
  if words.endswith(" or none"):
    words, none = words.removesuffix(" or none"), ", or none"
  if low is not None and high is not None:
    return f"{words} from {low:,} to {high:,}{none}"
  if low is not None:
    return f"{words} of at least {low:,}{none}"
  if high is not None:
    return f"{words} of at most {high:,}{none}"
  return words + none


def _type_words(hint: Any) -> str:
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    return " or ".join(map(_type_words, arguments))
  if origin is typing.Literal:
    return "one of " + ", ".join(map(_text, arguments))
  if origin is tuple or hint is tuple:
    if not arguments or arguments[-1] is Ellipsis:
      return f"a comma-separated list, each {_type_words(arguments[0] if arguments else str)},"
    return f"{len(arguments)} comma-separated values ({', '.join(map(_type_words, arguments))})"
  if hint in _TYPE_WORDS:
    return _TYPE_WORDS[hint]
  name = "group of fields" if hint is Any else getattr(hint, "__name__", hint)
  return f"a {name}, which is chosen in the config file"


_TYPE_WORDS = {
  int: "an integer",
  float: "a number",
  bool: "true or false",
  str: "text",
  type(None): "none",
}
