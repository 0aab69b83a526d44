"""A run's configuration: a tree of frozen dataclasses, read from Python, changed by dotted
names, kept as JSON.
"""

import dataclasses
import difflib
import importlib
import inspect
import itertools
import os
import traceback
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from gpt_jax.errors import InputError

_PACKAGE = __name__.partition(".")[0]


def option(
  default: Any, help: str, *, unit: str = "", low=None, high=None, choices: tuple | None = None
) -> Any:
  """A field of a config dataclass.

  Args:
    default: the value where nothing sets one; a frozen dataclass for a group of fields.
    help: what it does, in a few words.
    unit: e.g. "tokens" or "steps".
    low: smallest allowed value.
    high: largest allowed value.
    choices: the only allowed values.
  """
  metadata = {"help": help, "unit": unit, "low": low, "high": high, "choices": choices}
  return dataclasses.field(default=default, metadata=metadata)


def validate(node: Any) -> None:
  """Checks type and range of every field of one dataclass; for its __post_init__. Integers become
  floats where asked.

  Raises:
    InputError: naming the field, its value and what is allowed.
  """
  hints = typing.get_type_hints(type(node))
  for field in dataclasses.fields(node):
    value = _check(
      f"{type(node).__name__}.{field.name}",
      getattr(node, field.name),
      hints[field.name],
      field.metadata,
    )
    object.__setattr__(node, field.name, value)


def load_config(spec: str) -> Any:
  """The config that a Python file's get_config() returns.

  Args:
    spec: "configs/gpt1.py", or "configs/finetune.py:cola" for get_config("cola").

  Raises:
    InputError: naming the file and the line at fault.
  """
  path, colon, argument = spec.partition(":")
  try:
    with open(path, encoding="utf-8") as file:
      source = file.read()
  except (OSError, UnicodeDecodeError) as error:
    raise InputError(
      f"cannot read config file {path!r}: {_reason(error)}{_neighbours(path)}"
    ) from error

  module = types.ModuleType("config_file")
  module.__file__ = os.path.abspath(path)
  try:
    exec(compile(source, path, "exec"), module.__dict__)
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
      raise InputError("defines no function get_config()")
    arguments = (argument,) if colon else ()
    signature = inspect.signature(get_config)
    try:
      signature.bind(*arguments)
    except TypeError as error:
      fault = (
        f"takes no argument, {argument!r} was given" if colon else f"needs an argument: {path}:NAME"
      )
      raise InputError(f"get_config{signature} {fault}") from error
    config = get_config(*arguments)
  except (
    Exception
  ) as error:  # whatever a user's file does wrong is the user's to see, with its place
    raise InputError(f"{_place(path, error)}: {_reason(error)}") from error
  if not dataclasses.is_dataclass(config) or isinstance(config, type):
    raise InputError(
      f"{path}: get_config() returned {type(config).__name__}, not a config dataclass"
    )
  return config


def override(config: Any, path: str, text: str) -> Any:
  """A copy of config in which the field at a dotted path has the value that text spells."""
  return override_all(config, [(path, text)])


def override_all(config: Any, changes: Iterable[tuple[str, str]]) -> Any:
  """A copy with several (dotted path, text) changes made at once, so that only the outcome need be
  consistent.

  Raises:
    InputError: an unknown name, with the nearest valid ones; a value of the wrong type or out of
      range.
  """
  tree: dict = {}
  for path, text in changes:
    node, branch = config, tree
    names = path.split(".")
    for depth, name in enumerate(names):
      fields = {field.name: field for field in dataclasses.fields(node)} if _is_node(node) else {}
      if name not in fields:
        raise InputError(_unknown(config, path, node, ".".join(names[:depth])))
      if depth == len(names) - 1:
        hint = typing.get_type_hints(type(node))[name]
        branch[name] = _check(
          path, _parse(path, text, hint, fields[name].metadata), hint, fields[name].metadata
        )
      else:
        node, branch = getattr(node, name), branch.setdefault(name, {})
  return _replace(config, tree)


def to_json(config: Any) -> Any:
  """The config as dicts, lists and scalars; every group of fields carries "type":
  "package.module:Class".

  Raises:
    InputError: a class that from_json could not find again, since it is not this package's.
  """
  if _is_node(config):
    name = f"{type(config).__module__}:{type(config).__qualname__}"
    _dataclass(name)
    return {
      "type": name,
      **{field.name: to_json(getattr(config, field.name)) for field in dataclasses.fields(config)},
    }
  if isinstance(config, tuple):
    return [to_json(value) for value in config]
  return config


def from_json(tree: Any) -> Any:
  """The config that to_json wrote. Fields that the tree lacks take their defaults.

  Imports nothing outside this package and builds nothing but its dataclasses, so a stranger's file
  is safe to read.

  Raises:
    InputError: an unknown type or field, or a value that is not allowed.
  """
  if isinstance(tree, list):
    return tuple(from_json(value) for value in tree)
  if not isinstance(tree, dict):
    return tree
  values = dict(tree)
  kind = _dataclass(values.pop("type", None))
  known = [field.name for field in dataclasses.fields(kind) if field.init]
  for name in values:
    if name not in known:
      raise InputError(f"{kind.__name__} has no field {name!r}; its fields: {', '.join(known)}")
  try:
    return kind(**{name: from_json(value) for name, value in values.items()})
  except TypeError as error:
    raise InputError(f"{kind.__name__}: {error}") from error


def difference(a: Any, b: Any) -> list[str]:
  """What differs, a line a field: "trunk.layers: 4 != 6"."""
  left, right = dict(_leaves(a)), dict(_leaves(b))
  lines = []
  for name in dict.fromkeys([*left, *right]):
    one, other = (repr(side[name]) if name in side else "absent" for side in (left, right))
    if one != other:
      lines.append(f"{name}: {one} != {other}")
  return lines


def describe_config(config: Any) -> str:
  """Every field, a line each: dotted name, value, help, unit and default."""
  rows = [(name, _text(value), _about(field)) for name, value, field in _fields(config)]
  widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
  return "\n".join(
    f"{name:{widths[0]}} = {value:{widths[1]}}  {about}".rstrip() for name, value, about in rows
  )


# Fields of a tree.


def _is_node(value: Any) -> bool:
  return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, dataclasses.Field]]:
  """(dotted name, value, field) of every leaf."""
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if _is_node(value):
      yield from _fields(value, f"{prefix}{field.name}.")
    else:
      yield prefix + field.name, value, field


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
  """(dotted name, value) of every leaf, and of every group its class."""
  yield prefix + "type", type(config).__qualname__
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if _is_node(value):
      yield from _leaves(value, f"{prefix}{field.name}.")
    else:
      yield prefix + field.name, value


def _replace(node: Any, tree: dict) -> Any:
  changes = {}
  for name, value in tree.items():
    changes[name] = _replace(getattr(node, name), value) if isinstance(value, dict) else value
  return dataclasses.replace(node, **changes)


def _about(field: dataclasses.Field) -> str:
  default = (
    field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
  )
  notes = [
    field.metadata.get("unit", ""),
    " | ".join(map(_text, field.metadata.get("choices") or ())),
  ]
  # A leaf whose default is a group of fields (None in its place) has no default that fits on a
  # line.
  notes.append(
    "" if default is dataclasses.MISSING or _is_node(default) else f"default {_text(default)}"
  )
  notes = ", ".join(note for note in notes if note)
  return field.metadata.get("help", "") + (f" ({notes})" if notes else "")


def _text(value: Any) -> str:
  """A value as override() reads it."""
  if isinstance(value, tuple):
    return ",".join(map(_text, value)) or "()"
  return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _unknown(config: Any, path: str, node: Any, group: str) -> str:
  if not _is_node(node):
    return f"config has no field {path!r}: {group} is {_text(node)}, not a group of fields"
  fields = [field.name for field in dataclasses.fields(node)]
  names = [name for name, _, _ in _fields(config)]
  wanted = path.rpartition(".")[2]
  near = [f"{group}.{name}".lstrip(".") for name in difflib.get_close_matches(wanted, fields)]
  near = near or [name for name in names if name.rpartition(".")[2] == wanted]
  near = near or difflib.get_close_matches(path, names)
  guess = f"; did you mean {' or '.join(near[:3])}?" if near else ""
  return f"config has no field {path!r}{guess} (fields of {group or 'config'}: {', '.join(fields)})"


# Types.


def _check(name: str, value: Any, hint: Any, metadata: Any) -> Any:
  """The value, an integer made a float where one is asked for; raises where it does not fit."""
  fits, value = _fit(value, hint)
  numbers = [item for item in (value if isinstance(value, tuple) else (value,)) if _is_number(item)]
  low, high, choices = (metadata.get(key) for key in ("low", "high", "choices"))
  # Written so that nan fails.
  fits = fits and all(
    (low is None or item >= low) and (high is None or item <= high) for item in numbers
  )
  fits = fits and all(item == item for item in numbers) and (choices is None or value in choices)
  if not fits:
    raise InputError(f"{name} = {_shown(value)}: must be {_allowed(hint, metadata)}")
  return value


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if hint is Any:
    return True, value
  if origin in (typing.Union, types.UnionType):
    tried = [_fit(value, choice) for choice in arguments]
    return next((outcome for outcome in tried if outcome[0]), (False, value))
  if origin is typing.Literal:
    return value in arguments, value
  if origin is tuple or hint is tuple:
    if not isinstance(value, tuple):
      return False, value
    items = _item_hints(arguments, len(value))
    tried = [_fit(item, item_hint) for item, item_hint in zip(value, items, strict=False)]
    return len(items) == len(value) and all(fits for fits, _ in tried), tuple(
      item for _, item in tried
    )
  if hint is float:
    fits = _is_number(value)
    return fits, float(value) if fits else value
  if hint in (int, bool, str, type(None)):
    return type(value) is hint, value
  return isinstance(hint, type) and isinstance(value, hint), value


def _parse(name: str, text: str, hint: Any, metadata: Any) -> Any:
  value = _read(text.strip(), hint)
  if value is None and text.strip().lower() != "none":
    raise InputError(f"{name} = {text!r}: must be {_allowed(hint, metadata)}")
  return value


def _read(text: str, hint: Any) -> Any:
  """The value that text spells for a type; None where it spells none."""
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    if type(None) in arguments and text.lower() == "none":
      return None
    return next((value for choice in arguments if (value := _read(text, choice)) is not None), None)
  if origin is typing.Literal:
    return next((choice for choice in arguments if str(choice) == text), None)
  if origin is tuple or hint is tuple:
    inside = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
    parts = [part.strip() for part in inside.split(",") if part.strip()]
    items = _item_hints(arguments, len(parts))
    values = tuple(_read(part, item) for part, item in zip(parts, items, strict=False))
    return None if len(items) != len(parts) or None in values else values
  if hint is bool:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
  if hint in (int, float):
    try:
      return hint(text)
    except ValueError:
      return None
  return text if hint is str else None


def _item_hints(arguments: tuple, count: int) -> list:
  """The types of a tuple's items: tuple[int, ...] has as many as there are values, tuple[int,
  int] has two.
  """
  if not arguments or arguments[-1] is Ellipsis:
    return list(itertools.repeat(arguments[0] if arguments else str, count))
  return list(arguments)


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _allowed(hint: Any, metadata: Any) -> str:
  low, high, choices = (metadata.get(key) for key in ("low", "high", "choices"))
  if choices is not None:
    return "one of " + ", ".join(map(_text, choices))
  words = _type_words(hint)
  if low is not None and high is not None:
    return f"{words} from {low} to {high}"
  return (
    words
    + (f" of at least {low}" if low is not None else "")
    + (f" of at most {high}" if high is not None else "")
  )


def _type_words(hint: Any) -> str:
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    return " or ".join(_type_words(choice) for choice in arguments)
  if origin is typing.Literal:
    return "one of " + ", ".join(map(_text, arguments))
  if origin is tuple or hint is tuple:
    if not arguments or arguments[-1] is Ellipsis:
      return f"a comma-separated list, each {_type_words(arguments[0] if arguments else str)},"
    return f"{len(arguments)} comma-separated values ({', '.join(map(_type_words, arguments))})"
  plain = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "none",
  }
  if hint in plain:
    return plain[hint]
  name = "group of fields" if hint is Any else getattr(hint, "__name__", hint)
  return f"a {name}, which is chosen in the config file"


def _shown(value: Any) -> str:
  return type(value).__name__ if _is_node(value) else repr(value)


def _dataclass(name: Any) -> type:
  """The dataclass of this package that "package.module:Class" names."""
  module_name, _, class_name = name.partition(":") if isinstance(name, str) else ("", "", "")
  if module_name != _PACKAGE and not module_name.startswith(_PACKAGE + "."):
    raise InputError(f"config type {name!r} is not a class of {_PACKAGE}")
  try:
    module = importlib.import_module(module_name)
  except ImportError as error:
    raise InputError(f"config type {name!r}: {error}") from error
  kind = vars(module).get(class_name)
  if not (
    isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module_name
  ):
    raise InputError(f"config type {name!r}: {module_name} has no such config")
  return kind


# Errors in a config file.


def _reason(error: Exception) -> str:
  if isinstance(error, InputError):
    return str(error)
  if isinstance(error, OSError):
    return error.strerror or str(error)
  message = error.msg if isinstance(error, SyntaxError) else str(error)
  return f"{type(error).__name__}: {message}".replace("\n", " ")


def _place(path: str, error: Exception) -> str:
  """path:line of the config file's innermost line that led to the error."""
  if isinstance(error, SyntaxError) and error.filename == path:
    return f"{path}:{error.lineno}"
  lines = [
    frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path
  ]
  return f"{path}:{lines[-1]}" if lines else path


def _neighbours(path: str) -> str:
  """The config files beside a path that is not there, or in it where it is a folder, nearest
  names first.
  """
  folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
  wanted = os.path.basename(path).removesuffix(".py")
  found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
  names = [name.removesuffix(".py") for name in found if name.endswith(".py")]
  near = difflib.get_close_matches(wanted, names) or names
  return f"; there: {', '.join(name + '.py' for name in near)}" if near else ""
