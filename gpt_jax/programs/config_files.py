"""Configs in Python files, their fields changed by dotted names, and a listing of all fields."""

import collections
import csv
import dataclasses
import difflib
import inspect
import os
import re
import traceback
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt_jax.config import (
  allowed_values,
  check_value,
  fields_of,
  format_value,
  is_group,
  item_hints,
  registered_name,
  settings_of,
  with_members,
)
from gpt_jax.errors import InputError, did_you_mean, meant_number
from gpt_jax.models.method import method_slots, new_method
from gpt_jax.programs.installed import shipped_folder

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


# Files of configs/ before 0.4 -> file and argument.
_MOVED = {"gpt1_small": "gpt1:small", "lstm_small": "lstm:small"}


def load_config(spec: str) -> Any:
  """Runs a Python file and returns the config from its get_config().

  spec: a file, "my/config.py", or the name of one in configs/, "gpt1"; with an argument
    "finetune:cola", for get_config("cola").
  """
  if (current := _current(spec)) != spec:
    from gpt_jax.parallel.processes import log  # imports JAX, which a known name does without

    log(f"--config={spec} is now --config={current}")
    spec = current
  name, colon, argument = spec.partition(":")
  path, source = read_config_file(spec)
  # Whatever goes wrong in the file is the user's: one line with its place, no traceback of ours.
  try:
    config = _call_get_config(name, path, source, (argument,) if colon else ())
  except Exception as error:  # user code can raise anything
    raise InputError(f"{_location(path, error)}: {_one_line(error)}") from error
  if not is_group(config):
    returned = type(config).__name__
    raise InputError(f"{path}: get_config() returned {returned}, not a config dataclass")
  return config


def _current(spec: str) -> str:
  """The spec by its name of today; a file elsewhere of an old name stays what it is."""
  folder, name = os.path.split(spec)
  moved = _MOVED.get(name.removesuffix(".py"))
  is_ours = os.path.basename(folder) in ("", "configs")
  return moved if moved and is_ours and not os.path.isfile(spec) else spec


def read_config_file(spec: str) -> tuple[str, str]:
  """Path and source of the file of a spec, which is not run: that imports JAX."""
  name = _current(spec).partition(":")[0]
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


def check_size(config: str, size: str, sizes: Iterable[str]) -> None:
  """Refuses the argument of a config of configs/ that is none of its sizes."""
  if size not in sizes:
    guess = did_you_mean(size, sizes, prefix=f"--config={config}:")
    raise InputError(f"--config={config}:{size}: the sizes are {', '.join(sizes)}{guess}")


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
    signature.bind(*arguments)  # a TypeError of its own body is another fault
  except TypeError as error:
    names = ", ".join(signature.parameters)
    problem = f"needs the name of its {names}: {name}:{names.upper()}"
    if sizes := module.__dict__.get("SIZES"):
      problem += f", one of {', '.join(sizes)}"
    if arguments:
      problem = f"takes no argument, {arguments[0]!r} was given"
    raise InputError(f"get_config {problem}") from error
  return get_config(*arguments)


def _one_line(error: Exception) -> str:
  if isinstance(error, InputError):
    return str(error)
  if isinstance(error, OSError):
    return error.strerror or str(error)
  message = str(error)
  if isinstance(error, SyntaxError):
    message = f"{error.msg}; a config is a Python file"
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
  wanted, known = os.path.basename(path).removesuffix(".py"), list(named_configs())
  longest_first = "|".join(sorted(known, key=len, reverse=True))
  near = difflib.get_close_matches(wanted, files)
  # A file beside it is nearer than a name with an argument.
  is_own = bool(near) and os.path.abspath(folder) != shipped_folder("configs")
  meant = re.fullmatch(rf"({longest_first})([-_](\w.*))?", wanted, re.IGNORECASE)
  if meant and not is_own:
    argument = f":{meant[3]}" if meant[3] else ""
    return f"; did you mean --config={meant[1].lower()}{argument}?"
  near = near or ([] if is_name else files)
  there = f"; there: {', '.join(name + '.py' for name in near)}" if near else ""
  if there and not is_name:
    return there
  return f"{there}; known names: {', '.join(difflib.get_close_matches(wanted, known) or known)}"


def override(config: Any, path: str, text: str) -> Any:
  """A copy of config with one field, given by its dotted path, set to the value of text."""
  return override_all(config, [(path, text)])


def override_all(config: Any, changes: Iterable[tuple[str, str]]) -> Any:
  """A copy with several (dotted path, text) changes; only the final combination is validated."""
  config, changes = _with_methods(config, list(changes))
  times = collections.Counter(path for path, _ in changes)
  of_members, members = _members(config)
  tree: dict = {}
  for path, text in changes:
    *groups, last = path.split(".")
    node, branch = config, tree
    if groups and groups[0] in members:
      node, branch = members[groups[0]], tree.setdefault(groups[0], {})
      groups = groups[1:]
    for depth, name in enumerate(groups):
      _field(config, path, node, groups[:depth], name)
      node, branch = getattr(node, name), branch.setdefault(name, {})
    metadata = _field(config, path, node, groups, last).metadata
    hint = typing.get_type_hints(type(node))[last]
    value = check_value(path, _parse(path, text, hint, metadata), hint, metadata)
    if times[path] > 1 and typing.get_args(hint)[1:] != (...,):  # a list gets more items
      raise InputError(f"config.{path}=… is given {times[path]} times: it takes one value")
    branch[last] = branch.get(last, ()) + value if times[path] > 1 else value
  # Leaves are checked above, with the name that was given.
  # Each group is replaced once: its __post_init__ sees the final combination only.
  if tree.keys() & members.keys():
    changed = [_replace(group, tree.pop(slot, {})) for slot, group in members.items()]
    config = dataclasses.replace(config, **{of_members: tuple(changed)})
  return _replace(config, tree)


def _members(config: Any) -> tuple[str, dict[str, Any]]:
  """The field of a config with groups that are set by their slots, and these; "": there is none."""
  for field in dataclasses.fields(config):
    if field.metadata.get("members"):
      return field.name, {group.slot: group for group in getattr(config, field.name)}
  return "", {}


def _with_methods(config: Any, changes: list[tuple[str, str]]) -> tuple[Any, list[tuple[str, str]]]:
  """The config with the methods that changes add or remove, and the changes of fields.

  SLOT=none and SLOT=false remove a method, SLOT=true adds it, SLOT=VALUE sets its first field, and
  SLOT.FIELD=VALUE adds it, too.
  """
  fields = {field.name for field in dataclasses.fields(config)}
  of_members, methods = _members(config)
  if not of_members:
    return config, changes
  rest = []
  for path, text in changes:
    path = config.RENAMED.get(path, path)
    slot, dot, _ = path.partition(".")
    if slot in fields:
      rest.append((path, text))
      continue
    word = text.strip().lower()
    if not dot and word in ("", "none", "false"):
      methods.pop(slot, None)
      continue
    if slot not in methods and (new := new_method(slot)) is not None:
      methods[slot] = new
    if slot in methods and not dot:
      if word == "true":
        continue
      path = f"{slot}.{dataclasses.fields(methods[slot])[0].name}"
    rest.append((path, text))
  return dataclasses.replace(config, **{of_members: tuple(methods.values())}), rest


def _field(
  config: Any, path: str, node: Any, groups: Sequence[str], name: str
) -> dataclasses.Field:
  """The field `name` of node; a message has the nearest names of config."""
  group = ".".join(groups)
  if not is_group(node):
    raise InputError(
      f"config has no field {path!r}: {group} is {format_value(node)}, not a group of fields"
    )
  fields = {field.name: field for field in dataclasses.fields(node)}
  if name in fields:
    return fields[name]
  wanted = path.rpartition(".")[2]
  paths = [path for path, _, _ in fields_of(config)]
  of_members, _ = _members(node)
  slots = method_slots() if of_members else []
  if name in slots:
    raise InputError(
      f"config has no field {path!r}: {name} may be of several classes; a config file names one in "
      f"`{of_members}`"
    )
  near = difflib.get_close_matches(name, slots)
  near += [f"{group}.{name}".lstrip(".") for name in difflib.get_close_matches(wanted, fields)]
  # In this order: a slip in this group, the name in another group or library, a slip in the path.
  near = near or named_like(wanted, paths) or difflib.get_close_matches(path, paths)
  guess = f"; did you mean {' or '.join(near[:3])}?" if near else ""
  listing = f"fields of {group or 'config'}: {', '.join(fields)}"
  raise InputError(f"config has no field {path!r}{guess} ({listing})")


def named_like(name: str, paths: Iterable[str]) -> list[str]:
  """The dotted paths of the fields of a name, which may be that of another library: "lr"."""
  names = (name, _ELSEWHERE.get(name))
  return [path for path in paths if path.rpartition(".")[2] in names]


def _replace(node: Any, tree: dict) -> Any:
  changes = {}
  for name, value in tree.items():
    changes[name] = _replace(getattr(node, name), value) if isinstance(value, dict) else value
  return dataclasses.replace(node, **changes)


def describe_config(config: Any, file: Any = None) -> str:
  """A section for each group of fields, with a line for each field: `NAME = VALUE  help (notes)`.

  The notes are unit, choices, and the file's value and the default where they differ.

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
  for field, value in with_members(settings_of(group)):
    name = prefix + field.name
    usual = field.default if default is None else getattr(default, field.name)
    if is_group(value):
      usual = usual if type(usual) is type(value) else None
      about = field.metadata.get("help", "")
      inner += _sections(value, usual, f"{name}.", about, in_file)
    else:
      rows.append(
        (name, format_value(value), _about(field, value, in_file.get(name, value), usual))
      )
  kind, path = registered_name(type(group)), prefix[:-1]
  head = f"[{kind}] {help}" if path in ("", kind) else f"[{path}: {kind}] {help}"
  name_width = max((len(name) for name, _, _ in rows), default=0)
  value_width = max((len(value) for _, value, _ in rows), default=0)
  lines = [f"{name:{name_width}} = {value:{value_width}}  {about}" for name, value, about in rows]
  return ["\n".join(line.rstrip() for line in [head, *lines]), *inner]


def _about(field: dataclasses.Field, value: Any, in_file: Any, default: Any) -> str:
  """help (unit, choices, other values)."""
  choices = field.metadata.get("choices") or ()
  notes = [field.metadata.get("unit", ""), " | ".join(map(format_value, choices))]
  if in_file != value:
    notes.append(f"in the file {format_value(in_file)}")
  if default not in (value, in_file, dataclasses.MISSING) and not is_group(default):
    notes.append(f"default {format_value(default)}")
  help = field.metadata.get("help", "")
  note = ", ".join(filter(None, notes))
  return f"{help} ({note})" if note else help


def _parse(name: str, text: str, hint: Any, metadata: Mapping[str, Any]) -> Any:
  """The value of a command-line text as the hinted type."""
  value = _parse_as(text.strip(), hint)
  # None means both "none" and a text that no type takes.
  if value is None and text.strip().lower() != "none":
    hints = hint, *typing.get_args(hint)
    is_number = int in hints or float in hints
    guess = meant_number(text, float not in hints) if is_number else ""
    raise InputError(f"{name} = {text!r}: must be {allowed_values(hint, metadata)}{guess}")
  return value


def _parse_as(text: str, hint: Any) -> Any:
  """The value of a text as the hinted type; None if it is none of that type."""
  origin, arguments = typing.get_origin(hint), typing.get_args(hint)
  if origin in (typing.Union, types.UnionType):
    if type(None) in arguments and text.lower() == "none":
      return None
    # In the order of the hint, so that an int | float takes "3" as an integer.
    values = [_parse_as(text, choice) for choice in arguments]
    return next((value for value in values if value is not None), None)
  if origin is tuple or hint is tuple:
    inside = text[1:-1] if text[:1] + text[-1:] in ("()", "[]") else text
    split = inside.split(",")
    if '"' in inside:  # names in quotation marks may have commas
      split = next(csv.reader([inside], skipinitialspace=True), [])
    parts = [part.strip() for part in split if part.strip()]
    hints = item_hints(arguments, len(parts))
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
