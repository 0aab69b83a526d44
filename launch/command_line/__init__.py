"""Shared by launch/ scripts.

definitions has the flags, arguments the words of a command, usage --help, completion the shell's;
fields what is checked before JAX is imported; failures the one line and exit code of an error;
process and compilation_cache the set-up.
"""

import contextlib
import datetime
import functools
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable

from command_line import fields, process, usage
from command_line.arguments import parse, with_flag_name
from command_line.definitions import (
  FLAGS,
  changes,
  check_settings,
  checks,
  config,
  config_names,
  define_checkpoints,
  define_config,
  define_distributed,
  define_observers,
  own_flags,
  program,
  set_fields,
)
from command_line.failures import exit_code, explain, format_warning, with_flags
from gpt_jax import errors, files
from gpt_jax.errors import InputError

__all__ = [
  "FLAGS",
  "changes",
  "check",
  "checks",
  "config",
  "define_checkpoints",
  "define_config",
  "define_distributed",
  "define_observers",
  "print_closing",
  "program",
  "run",
  "set_fields",
]

_began = time.monotonic()


def run(main: Callable[[], None], positional: str | None = None, needs_jax: bool = True) -> None:
  """Parses the flags, sets the process up and calls main().

  Args:
    main: the program.
    positional: a flag whose value may also be given without its name, as in label.py my.csv.
    needs_jax: False: main is first tried without JAX; see fields.ahead.

  Modules that import JAX are imported within main(), so that --help and flag errors are immediate.
  User errors (InputError, a full disk) print one line to standard error and exit with code 2, or
  75 where a store was not reached; all other exceptions keep their traceback.
  """
  if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
    from command_line import completion

    completion.answer(own_flags(), config_names)
  process.open_standard_streams()
  process.catch_interrupts()
  files.announce = functools.cache(_say)  # each wait once
  try:
    process.check_working_folder()
    argv = with_flag_name(sys.argv, positional) if positional else sys.argv
    if parse(argv, sys.modules["__main__"].__doc__ or "", positional):
      process.use_huge_pages()
      process.tune_malloc()
      process.check_threads()
      warnings.formatwarning, errors.for_user = format_warning, with_flags
      if not needs_jax and fields.ahead(main, silent=False):
        return
      if needs_jax:
        fields.ahead(check_settings)
      process.set_up_jax()
      main()
    sys.stdout.flush()  # so that a closed pipe is noticed inside this try
    process.tell_others(0)
  except SystemExit as error:
    process.tell_others(error.code if isinstance(error.code, int) else 1)
    raise
  except InputError as error:
    print("error:", with_flags(str(error)), file=sys.stderr)
    process.tell_others(exit_code(error))
    sys.exit(exit_code(error))
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    process.tell_others(130)
    sys.exit(130)
  except BrokenPipeError:  # the reader of standard output, such as head, has exited
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)
  except Exception as error:
    message = explain(error)
    if not message:
      process.wait_for_watcher(error)
      raise
    print("error:", message, file=sys.stderr, flush=True)
    process.tell_others(exit_code(error))
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    os._exit(exit_code(error))  # a normal exit would retry pending writes, and may need memory


def check(argv: list[str], doc: str, looks: bool) -> bool:
  """What run refuses before it imports JAX, of a script with this docstring; see parse."""
  if not parse(argv, doc, None, looks):
    return False
  fields.ahead(check_settings)
  return True


def _say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def print_closing(result: str, *commands: tuple[str, dict[str, str]]) -> None:
  """Prints how long the program took, where its result is, and what to do with it next.

  Args:
    result: what was made, and where.
    commands: (program, {flag: value}); an upper-case value is for the user to fill in, a config is
      the name of one in configs/.
  """
  jax = sys.modules.get("jax")
  if jax is not None and jax.process_index():
    return
  took = datetime.timedelta(seconds=round(time.monotonic() - _began))
  lines = [f"done in {took}: {result}", "next:"]
  for script, arguments in commands:
    words = usage.command(script)
    for name, value in arguments.items():
      words.append(f"--{name}={usage.config_path(value) if name == 'config' else value}")
    lines.append(f"  {shlex.join(words)}")
  print("\n".join(lines), file=sys.stderr)
