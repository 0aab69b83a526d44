"""Run configuration: a tree of frozen dataclasses, stored as JSON under registered names.

Python files with configs, and changes on the command line: programs/config_files.py.
"""

import dataclasses
import difflib
import importlib
import math
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from gpt_jax.errors import InputError
from gpt_jax.extensions import source_of

_PACKAGE = __name__.partition(".")[0]
_MAX_INTEGER = 10**9  # without a limit of its own; more is a slip, and ends in a crash
_Class = TypeVar("_Class", bound=type)


_classes: dict[str, type] = {}  # registered name -> config class
_names: dict[type, str] = {}  # the inverse


def register(name: str) -> Callable[[_Class], _Class]:
  """Names a config class in JSON; goes above `@dataclasses.dataclass(frozen=True)`.

  The name is part of the file format: classes and files may move, names stay. Write it as a string
  literal, because `from_json` searches the package's source for it. Raises ValueError if another
  class has this name.
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
  listed: bool = True,
  members: bool = False,
  needs: str = "",
) -> Any:
  """A field of a config dataclass.

  Args:
    default: a value, or a frozen dataclass for a group of fields.
    help: a few words on what the field does.
    unit: e.g. "tokens" or "steps".
    low, high: the range; without `high` 10^9 for an integer, any finite value for a float.
    choices: the allowed values.
    resumable: whether a run may resume with another value, since it does not affect the result.
    runtime: whether any value fits the parameters of a checkpoint, as dropout and dtype.
    listed: False hides it from listings, as a table that is made from the data.
    members: whether it is a tuple of groups, each listed and set by its `slot`, as a field is.
    needs: what another field of the class must be where this one is neither 0, empty nor its
      default: "name=value", or "name" for a value that is neither 0 nor empty.
  """
  metadata: dict[str, Any] = {"help": help, "unit": unit, "low": low, "high": high}
  metadata |= {"choices": choices, "resumable": resumable, "runtime": runtime}
  metadata |= {"listed": listed, "members": members, "needs": needs}
  return dataclasses.field(default=default, metadata=metadata)


class Config:
  """Base of the config dataclasses: checks each instance by `validate`.

  A class with checks of its own begins its `__post_init__` with `super().__post_init__()`.
  """

  def __post_init__(self) -> None:
    validate(self)


def validate(node: Any) -> None:
  """Checks type and range of every field of a dataclass; makes an integer of a float field one."""
  hints = typing.get_type_hints(type(node))
  for field, value in field_values(node):
    name = f"{type(node).__name__}.{field.name}"
    value = check_value(name, value, hints[field.name], field.metadata)
    object.__setattr__(node, field.name, value)  # it is frozen
  for field, value in field_values(node):
    needs = field.metadata.get("needs")
    if not needs or not value or value == field.default:
      continue
    other, _, wanted = needs.partition("=")
    current = format_value(getattr(node, other))
    if current != wanted if wanted else not getattr(node, other):
      given = f"{type(node).__name__}.{field.name}={format_value(value)}"
      raise InputError(f"{given}: needs {needs}, not {other}={current}")


def settings_of(node: Any) -> list[tuple[dataclasses.Field, Any]]:
  """As field_values, without fields that listings leave out."""
  return [(field, value) for field, value in field_values(node) if field.metadata.get("listed", 1)]


def with_members(values: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
  """Fields and values where the groups of a field with `members` stand by their slots."""
  for field, value in values:
    if not (value and field.metadata.get("members")):
      yield field, value
      continue
    for group in value:
      help = (type(group).__doc__ or "").partition("\n")[0]
      member: Any = dataclasses.field(metadata={"help": help})
      member.name = group.slot
      yield member, group


def field_values(node: Any) -> list[tuple[dataclasses.Field, Any]]:
  """Each field of a dataclass and its value, in their order."""
  return [(field, getattr(node, field.name)) for field in dataclasses.fields(node)]


# ------------------------------------------------------------------------------------------ JSON


def to_json(config: Any) -> Any:
  """The config as dicts, lists and scalars; every group of fields has its registered "type"."""
  if isinstance(config, tuple):
    return [to_json(value) for value in config]
  if not is_group(config):
    return config
  kind = type(config)
  if kind not in _names or kind.__module__.partition(".")[0] != _PACKAGE:
    raise InputError(
      f"config class {kind.__qualname__} of {kind.__module__} cannot be saved: only classes of "
      f"{_PACKAGE} can, with @register above them"
    )
  fields = {field.name: to_json(value) for field, value in field_values(config)}
  return {"type": _names[kind], **fields}


def from_json(tree: Any) -> Any:
  """The config that `to_json` wrote; missing fields take their defaults.

  Safe for files from strangers: it imports this package alone, and builds registered dataclasses.
  """
  if isinstance(tree, list):
    return tuple(from_json(value) for value in tree)
  if not isinstance(tree, dict):
    return tree
  kind = _registered_class(tree.get("type"))
  values = {name: from_json(value) for name, value in tree.items() if name != "type"}
  # BEFORE: values of fields in what was saved without them, where they are not the defaults.
  values = {**vars(kind).get("BEFORE", {}), **values}
  # earlier: a function from the fields as an earlier version saved them to those of today.
  values = vars(kind).get("earlier", dict)(values)
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
  Raises ValueError if two modules register the same name.
  """
  modules: dict[str, str] = {}
  package = importlib.import_module(_PACKAGE)
  for module in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
    for name in _REGISTER.findall(source_of(module.name)):
      if name in modules:
        raise ValueError(f"config name {name!r} is taken: by {modules[name]} and {module.name}")
      modules[name] = module.name
  return modules


_REGISTER = re.compile(r"""^@(?:\w+\.)*register\(["']([^"']+)["']\)""", re.MULTILINE)


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


def registered_name(kind: type) -> str:
  """The name of a config class in JSON; of another class, its own."""
  return _names.get(kind, kind.__qualname__)


# ------------------------------------------------------------------------ Description, difference


def difference(a: Any, b: Any) -> list[str]:
  """The fields that differ, one line per field: "trunk.layers: 4 != 6"."""
  left, right = _reprs(a), _reprs(b)
  lines = []
  for name in dict.fromkeys([*left, *right]):
    old, new = left.get(name, "absent"), right.get(name, "absent")
    if old != new:
      lines.append(f"{name}: {_cut(old)} != {_cut(new)}")
  return lines


def _cut(text: str) -> str:
  return text if len(text) <= 200 else f"{text[:200]}…"


def _reprs(config: Any, prefix: str = "") -> dict[str, str]:
  """Dotted name -> repr of every leaf, and of the type of every group."""
  kind = type(config)
  reprs = {f"{prefix}type": repr(registered_name(kind))}
  for field, value in with_members(field_values(config)):
    if is_group(value):
      reprs |= _reprs(value, f"{prefix}{field.name}.")
    elif not field.metadata.get("members"):
      reprs[prefix + field.name] = repr(value)
  return reprs


def fields_of(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, dataclasses.Field]]:
  """(dotted name, value, field) of every listed field that is not a group."""
  for field, value in with_members(settings_of(config)):
    if is_group(value):
      yield from fields_of(value, f"{prefix}{field.name}.")
    else:
      yield prefix + field.name, value, field


def resumable_fields(config: Any, prefix: str = "") -> list[str]:
  """Dotted names of fields that may change when a run resumes; "mesh." for all of a group."""
  names = []
  for field, value in field_values(config):
    if field.metadata.get("resumable"):
      names.append(f"{prefix}{field.name}{'.' if is_group(value) else ''}")
    elif is_group(value):
      names += resumable_fields(value, f"{prefix}{field.name}.")
  return names


def format_value(value: Any) -> str:
  """A value in the syntax of `override`."""
  if isinstance(value, tuple):
    return ",".join(map(format_value, value)) or "()"
  if value is None or isinstance(value, bool):
    return str(value).lower()
  return str(value)


def is_group(value: Any) -> bool:
  """Whether a value is a group of fields."""
  return dataclasses.is_dataclass(value) and not isinstance(value, type)


# --------------------------------------------------------------------------------- Typed values


def check_value(name: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
  """The value, converted to float if the hint says so. Raises InputError if it is not allowed."""
  fits, value = _fit(value, hint)
  low, high, choices = _limits(hint, metadata)
  numbers = [item for item in (value if isinstance(value, tuple) else (value,)) if _is_number(item)]
  for number in numbers:
    # isfinite: where there is no limit, nan and inf would pass.
    within = (low is None or number >= low) and (high is None or number <= high)
    fits = fits and within and math.isfinite(number)
  if not fits or (choices is not None and value not in choices):
    shown = type(value).__name__ if is_group(value) else repr(value)
    raise InputError(f"{name} = {shown}: must be {allowed_values(hint, metadata)}")
  return value


def _limits(hint: Any, metadata: Mapping[str, Any]) -> tuple[Any, Any, Any]:
  """The smallest and largest value, and the choices; None where there is none."""
  low, high, choices = (metadata.get(key) for key in ("low", "high", "choices"))
  is_integer = hint is int or int in typing.get_args(hint)
  return low, _MAX_INTEGER if high is None and is_integer else high, choices


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
  if origin is tuple or hint is tuple:
    if not isinstance(value, tuple):
      return False, value
    hints = item_hints(arguments, len(value))
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


def item_hints(arguments: tuple, count: int) -> list:
  """The types of a tuple's items: `count` for tuple[int, ...], always two for tuple[int, int]."""
  if not arguments or arguments[-1] is Ellipsis:
    return [arguments[0] if arguments else str] * count
  return list(arguments)


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def allowed_values(hint: Any, metadata: Mapping[str, Any]) -> str:
  """The allowed values, in words: "an integer from 1 to 99, or none"."""
  low, high, choices = _limits(hint, metadata)
  if choices is not None:
    help = metadata.get("help")
    return f"one of {', '.join(map(format_value, choices))}{f' ({help})' if help else ''}"
  words, none = _type_words(hint), ""
  if words.endswith(" or none"):
    words, none = words.removesuffix(" or none"), ", or none"
  if low is not None and high is not None:
    return f"{words} from {low:,} to {high:,}{none}"
  if low is not None:
    return f"{words} of at least {low:,}{none}"
  if high is not None:
    return f"{words} of at most {high:,}{none}"
  return words.removesuffix(",") + none


def _type_words(hint: Any) -> str:
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    return " or ".join(map(_type_words, arguments))
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
