"""Shared by launch/ scripts: flags, --config with dotted changes, one-line errors, JAX set-up."""

import contextlib
import datetime
import errno
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable

from command_line import process, usage
from command_line.arguments import parse, with_flag_name
from command_line.definitions import (
  FLAGS,
  changes,
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
from command_line.failures import (
  exit_code,
  format_warning,
  is_out_of_memory,
  out_of_memory,
  with_flags,
)
from gpt_jax import errors
from gpt_jax.errors import InputError
from gpt_jax.files import StoreError

__all__ = [
  "FLAGS",
  "changes",
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

# Libraries put the text of a full disk's OSError into exceptions of their own.
_DISK_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))
_NOT_ALLOWED = errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP
_began = time.monotonic()


def run(main: Callable[[], None], positional: str | None = None) -> None:
  """Parses the flags, sets the process up and calls main().

  `positional` is a flag whose value may also be given without its name, as in label.py my.csv.

  Modules that import JAX are imported within main(), so that --help and flag errors are immediate.
  User errors (InputError, a full disk) print one line to standard error and exit with code 2, or
  75 where a store was not reached; all other exceptions keep their traceback.
  """
  if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
    from command_line import completion

    completion.answer(own_flags(), config_names)
  process.open_standard_streams()
  process.catch_interrupts()
  try:
    process.check_working_folder()
    argv = with_flag_name(sys.argv, positional) if positional else sys.argv
    if parse(argv, sys.modules["__main__"].__doc__ or "", positional):
      process.use_huge_pages()
      process.tune_malloc()
      process.check_threads()
      warnings.formatwarning, errors.for_user = format_warning, with_flags
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
    reason = next((text for text in _DISK_FULL if text in str(error)), None)
    if reason is not None:
      advice = "free some space"
      if reason == os.strerror(errno.EFBIG):
        advice = "raise the limit of a file's size (ulimit -f)"
      message = f"{reason}; {advice} and repeat the command"
    elif isinstance(error, StoreError):
      message = f"{error.filename}: {error.strerror}"
      if exit_code(error) == os.EX_TEMPFAIL:
        message += "; the command can be given again"
    elif isinstance(error, MemoryError) or is_out_of_memory(str(error)):
      message = out_of_memory(str(error))
    elif isinstance(error, OSError) and error.errno in _NOT_ALLOWED and error.filename:
      message = f"{error.filename}: {error.strerror}"
    elif os.strerror(errno.EAGAIN) in str(error) or "can't start new thread" in str(error):
      message = process.TOO_FEW_THREADS
    else:
      process.wait_for_watcher(error)
      raise
    print("error:", message, file=sys.stderr, flush=True)
    process.tell_others(exit_code(error))
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    os._exit(exit_code(error))  # a normal exit would retry pending writes, and may need memory


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
