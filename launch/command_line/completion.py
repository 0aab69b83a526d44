"""Completion of flags, config names and config fields in the shell, by the package argcomplete."""

import argparse
import functools
import os
import re
from collections.abc import Iterable, Sequence

from absl import flags

from gpt_jax.config import fields_of
from gpt_jax.errors import InputError
from gpt_jax.programs.config_files import load_config


def answer(own_flags: Iterable[flags.Flag], configs: Sequence[str]) -> None:
  """Writes the completions of the line in $COMP_LINE to the shell, and exits.

  Args:
    own_flags: of the program.
    configs: names that --config takes, beside files.
  """
  try:
    import argcomplete
  except ImportError:  # the shell's own argcomplete asks, but this environment has none
    os._exit(0)
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  for flag in own_flags:
    action = "store_true" if flag.boolean else "store"
    option = parser.add_argument(f"--{flag.name}", action=action, help=flag.help)
    if flag.name == "config":
      completer = functools.partial(_config_files, configs)
      option.completer = completer  # type: ignore[attr-defined]  # argcomplete's interface
      _add_fields(parser, flag.default)
  argcomplete.autocomplete(parser, always_complete_options="long")


def _config_files(configs: Sequence[str], prefix: str, **_) -> list[str]:
  from argcomplete.completers import FilesCompleter

  names = [name for name in configs if name.startswith(prefix)]
  return names + FilesCompleter(("py",))(prefix)


def _add_fields(parser: argparse.ArgumentParser, default: str | None) -> None:
  """Adds --config.NAME for the fields of the config on the line; loading it takes a second."""
  line = os.environ.get("COMP_LINE", "")
  match = re.search(r"--config[= ]\s*['\"]?([^\s'\"]+)", line)
  spec = match[1] if match else default
  if "--config." not in line or spec is None:
    return
  try:
    fields = list(fields_of(load_config(spec)))
  except InputError:
    return
  for name, value, field in fields:
    choices = field.metadata.get("choices") or ()
    if isinstance(value, bool):
      choices = ("true", "false")
    help = field.metadata.get("help", "")
    parser.add_argument(f"--config.{name}", choices=[*map(str, choices)] or None, help=help)
