"""The text of --help: the flags by what they are for, named as the command was typed."""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from absl import flags

# A flag has the same meaning in every program; one that is not here is in the group "how".
GROUPS = {
  "what to read": (
    *("config", "checkpoint", "lstm", "check"),
    *("data", "corpus", "source", "input", "prompt", "text", "label", "tokenizer"),
  ),
  "what to write": ("workdir", "out", "overwrite"),
  "how": (),
  "several processes": ("distributed", "coordinator", "num_processes", "process_id"),
}


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
  if _is_installed():
    text = re.sub(r"\bconfigs/(\w+)\.py", r"\1", text)
  return as_typed(text)


def is_required(flag: flags.Flag) -> bool:
  return any("other than None" in validator.message for validator in flag.validators)


def as_typed(text: str) -> str:
  """The text with launch/NAME.py replaced by gpt-jax-NAME, if this is an installed command."""
  if not _is_installed():
    return text

  def command(match: re.Match) -> str:
    return f"gpt-jax-{match[1].replace('_', '-')}"

  return re.sub(r"(?:\bpython )?\blaunch/(\w+)\.py", command, text)


def _is_installed() -> bool:
  return "gpt_jax.programs.installed" in sys.modules


def _about(flag: flags.Flag, positional: str | None) -> str:
  text = re.sub(r";\s+repeat this option.*", "; may be repeated", flag.help)  # absl's suffix
  if flag.name == positional:
    return f"{text} (required; --{flag.name}= may be left out)"
  if is_required(flag):
    return f"{text} (required)"
  return f"{text} (default {flag.default})" if flag.default else text
