"""The text of --help: the flags by what they are for; commands in the form in which they work."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from absl import flags

from command_line.definitions import FLAG_OF
from gpt_jax.programs import installed
from gpt_jax.programs.installed import shipped_folder

# A flag has the same meaning in every program; one that is not here is in the group "how".
GROUPS = {
  "what to read": (
    *("config", "checkpoint", "from", "lstm", "check"),
    *("data", "corpus", "source", "input", "prompt", "text", "label", "tokenizer", "extend"),
  ),
  "what to write": ("workdir", "out", "overwrite"),
  "how": (),
  "several processes": ("distributed", "coordinator", "num_processes", "process_id"),
}

_START = r"(?<![^\s(])"  # not within a path, a quoted value or a flag
_ARGUMENT = re.compile(rf"{_START}(\w+|config(?:\.\w+)+)=(True\b)?")
_FIELD = re.compile(r"\b[A-Z]\w*Config\.(\w+) = ")
_PREPARATION = re.compile(r"\bPrepareConfig\((\w+=\w+)\)")
_FUNCTION = re.compile(rf"{_START}(\w+)\.run\b")


def describe(doc: str, own_flags: Sequence[flags.Flag], positional: str | None = None) -> str:
  """A program's docstring and its flags in groups, those that are required first.

  Args:
    doc: the docstring.
    own_flags: of the program.
    positional: the flag whose value may be given without its name.
  """
  columns = min(100, max(60, shutil.get_terminal_size((100, 24)).columns))
  group_of = {name: group for group, names in GROUPS.items() for name in names}
  width = max((len(flag.name) for flag in own_flags), default=0)
  lines = [doc.strip()]
  for group in GROUPS:
    members = [flag for flag in own_flags if group_of.get(flag.name, "how") == group]
    if members:
      lines += ["", f"{group}:"]
    for flag in sorted(members, key=is_required, reverse=True):
      lines += textwrap.wrap(
        f"--{flag.name:{width}}  {_about(flag, positional)}",
        columns,
        initial_indent="  ",
        subsequent_indent=" " * (width + 6),
        break_on_hyphens=False,
      )
  text = "\n".join(lines)
  if installed.typed:
    text = re.sub(r"\bconfigs/(\w+)\.py", r"\1", text)
  return as_typed(text)


def is_required(flag: flags.Flag) -> bool:
  return any("other than None" in validator.message for validator in flag.validators)


def as_typed(text: str) -> str:
  """The text with launch/NAME.py replaced by gpt-jax-NAME, if this is an installed command."""
  if not installed.typed:
    return text
  return re.sub(r"(?:\bpython )?\blaunch/(\w+)\.py", lambda match: _installed_name(match[1]), text)


def with_flags(message: str, own_flags: Sequence[flags.Flag]) -> str:
  """A message of the package, which names arguments and functions, as a shell takes them.

  ARGUMENT=VALUE becomes --ARGUMENT=VALUE if the program has this flag. In all programs
  config.FIELD=VALUE and PrepareConfig(FIELD=VALUE) become flags, predict.run launch/predict.py.
  """
  is_boolean = {flag.name: flag.boolean for flag in own_flags}

  def as_flag(match: re.Match[str]) -> str:
    name, true = match.groups(default="")
    if name.startswith("config."):
      return f"--{match[0]}"
    flag = name if name in is_boolean else FLAG_OF.get(name, name)
    if flag not in is_boolean:
      return match[0]
    return f"--{flag}" if true and is_boolean[flag] else f"--{flag}={true}"

  # A field of what the flags make, such as CorpusConfig.valid_share = 5.0: must be …
  field = _FIELD.match(message)
  if field and field[1] in is_boolean:
    message = f"--{field[1]}={message[field.end() :]}"
  message = _PREPARATION.sub(r"--\1", _ARGUMENT.sub(as_flag, message))
  return _FUNCTION.sub(lambda match: _script(match[1]) or match[0], message)


def _script(program: str) -> str:
  """launch/NAME.py, "" if there is none."""
  there = os.path.exists(os.path.join(shipped_folder("launch"), f"{program}.py"))
  return f"launch/{program}.py" if there else ""


def command(program: str) -> list[str]:
  """The words that start another program where this one was started, and as this one was."""
  if not installed.typed:
    return ["python", os.path.join(os.path.dirname(sys.argv[0]), f"{program}.py")]
  folder, name = os.path.split(installed.typed)
  if shutil.which(name) == installed.typed:  # a shell that finds a command gives it the path
    folder = ""
  return [os.path.join(folder, _installed_name(program))]


def config_path(config: str) -> str:
  """NAME[:ARGUMENT] of a config in configs/, or in the root of a clone its file."""
  if installed.typed or os.path.abspath("configs") != shipped_folder("configs"):
    return config
  name, colon, argument = config.partition(":")
  return f"configs/{name}.py{colon}{argument}"


def _installed_name(program: str) -> str:
  return f"gpt-jax-{program.replace('_', '-')}"


def _about(flag: flags.Flag, positional: str | None) -> str:
  text = re.sub(r";\s+repeat this option.*", "; may be repeated", flag.help)  # absl's suffix
  if flag.name == positional:
    return f"{text} (required; --{flag.name}= may be left out)"
  if is_required(flag):
    return f"{text} (required)"
  default = flag.default
  if isinstance(default, list):
    default = ",".join(default)
  return f"{text} (default {default})" if default else text
