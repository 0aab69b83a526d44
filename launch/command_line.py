"""What launch/ scripts share: flags, --config with dotted overrides, one-line errors, a process
set up for JAX.
"""

import _thread
import contextlib
import ctypes
import difflib
import errno
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable

from absl import flags

from gpt_jax.config import describe_config, load_config, override_all
from gpt_jax.errors import InputError

# A flag that a function here defines belongs to the script that called it.
flags.disclaim_key_flags()

FLAGS = flags.FLAGS
_FULL = tuple(
  map(os.strerror, (errno.ENOSPC, errno.EDQUOT))
)  # a disk; packages put it into errors of their own
_default_format = warnings.formatwarning
_changes: list[tuple[str, str]] = []  # dotted name and text of every --config.NAME=VALUE


class _Config:
  """The flag --config; .value reads the file and makes the changes."""

  @property
  def value(self):
    if FLAGS.config is None:
      raise InputError("--config is needed: a Python file, such as --config=configs/gpt1_small.py")
    return override_all(load_config(FLAGS.config), _changes)


def define_config(default: str | None = None) -> _Config:
  """Defines --config, --config.NAME=VALUE and --print_config."""
  help = "Python file with get_config(), then :ARGUMENT where it takes one; --config.NAME=VALUE changes a field"
  flags.DEFINE_string("config", default, help, required=default is None)
  flags.DEFINE_boolean("print_config", False, "list every field of the config, and stop")
  return _Config()


def define_workdir() -> flags.FlagHolder[str]:
  """Defines --workdir, where the compilation cache goes too."""
  help = "folder of the run: config, metrics and checkpoints; the same command again resumes it"
  return flags.DEFINE_string("workdir", None, help, required=True)


def define_checkpoint() -> flags.FlagHolder[str]:
  """Defines --checkpoint, a trained model to use."""
  help = "workdir (newest checkpoint), WORKDIR/best, WORKDIR/checkpoints/STEP, export, OpenAI's or transformers' folder"
  return flags.DEFINE_string("checkpoint", None, help, required=True)


def define_distributed() -> None:
  """Defines the flags of a run over several processes; run() joins them."""
  flags.DEFINE_boolean(
    "distributed",
    False,
    "join the run's other processes, as the cluster or the next three flags say",
  )
  flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0")
  flags.DEFINE_integer("num_processes", None, "how many processes there are", lower_bound=1)
  flags.DEFINE_integer("process_id", None, "which of them this is, from 0", lower_bound=0)


def run(main: Callable[[], None]) -> None:
  """Parses the flags, sets the process up and calls main().

  main() does the importing of everything that imports JAX, so that --help and errors in flags come
  at once. What a user can mend (InputError, a full disk) is one line on standard error and exit
  code 2; anything else keeps its traceback.
  """
  _catch_interrupts()
  try:
    if _parse(sys.argv, main.__globals__["__doc__"]):
      _tune_malloc()
      _set_up_jax()
      warnings.formatwarning = _format_warning
      main()
    sys.stdout.flush()  # here, where a closed pipe is understood
  except InputError as error:
    print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
    sys.exit(2)
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    sys.exit(130)
  except BrokenPipeError:  # the reader of standard output, such as head, has had enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)
  except Exception as error:
    reason = next((text for text in _FULL if text in str(error)), None)
    if reason is None:
      raise
    print(
      f"error: {reason}; make room, and give the same command again", file=sys.stderr, flush=True
    )
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    os._exit(
      2
    )  # at an ordinary end what a checkpoint still wanted to write fails again, in a hundred lines


def _parse(argv: list[str], doc: str) -> bool:
  """Reads the flags; False where --help or --print_config has said it all."""
  if any(
    argument.lstrip("-") in ("help", "h", "helpfull")
    for argument in argv[1:]
    if argument.startswith("-")
  ):
    print(_usage(doc))
    return False
  argv = _take_changes(argv)
  missing: list[str] = []
  try:
    rest = FLAGS(argv)[1:]
  except flags.UnrecognizedFlagError as error:
    raise InputError(_unknown(error.flagname)) from error
  except flags.IllegalFlagValueError as error:
    missing, rest = re.findall(r"Flag --(\w+) must have a value other than None", str(error)), []
    if not missing:
      raise InputError(re.sub(r"^flag (--\w+)=(.*?): ", r"\1=\2: ", str(error))) from error
  except flags.Error as error:
    raise InputError(str(error)) from error
  if rest:
    raise InputError(
      f"unexpected argument {rest[0]!r}: every setting is a flag, --NAME=VALUE (--help lists them)"
    )
  if "print_config" in FLAGS and FLAGS.print_config:
    print(describe_config(_Config().value))
    return False
  if missing:
    raise InputError(
      f"needed: {', '.join('--' + name for name in missing)} (--help says what each is)"
    )
  return True


def _take_changes(argv: list[str]) -> list[str]:
  """argv without its --config.NAME=VALUE, which absl cannot parse and which go to _changes."""
  left, arguments = argv[:1], iter(argv[1:])
  for argument in arguments:
    if argument == "--":
      return [*left, argument, *arguments]
    match = re.fullmatch(r"--?config\.([^=]*)(?:=(.*))?", argument, re.DOTALL)
    if match is None:
      left.append(argument)
      continue
    if "config" not in FLAGS:
      raise InputError(f"{argument}: this program takes no config")
    name, value = match.groups()
    if value is None:
      value = next(arguments, "--")
      if value.startswith("--"):
        raise InputError(f"--config.{name} needs a value: --config.{name}=VALUE")
    _changes.append((name, value))
  return left


def _own_flags() -> list[flags.Flag]:
  return [flag for found in FLAGS.flags_by_module_dict().values() for flag in found]


def _unknown(name: str) -> str:
  names = [flag.name for flag in _own_flags()]
  near = difflib.get_close_matches(name, names, n=2)
  if "." in name and "config" in names:
    near = [f"config.{name}"]
  guess = f"; did you mean {' or '.join('--' + word for word in near)}?" if near else ""
  return f"unknown flag --{name}{guess} (--help lists the flags)"


def _usage(doc: str) -> str:
  lines = [doc.strip(), "", "flags:"]
  width = max((len(flag.name) for flag in _own_flags()), default=0)
  for flag in _own_flags():
    required = any("other than None" in validator.message for validator in flag.validators)
    default = f" (default {flag.default})" if flag.default else ""
    lines.append(f"  --{flag.name:{width}}  {flag.help}{' (required)' if required else default}")
  return "\n".join(lines)


def _format_warning(message: Warning, category: type[Warning], *place) -> str:
  """A UserWarning is for the user, who has no use for the line of code that gave it."""
  if category is UserWarning:
    return f"warning: {message}\n"
  return _default_format(message, category, *place)


def _catch_interrupts() -> None:
  """Makes Ctrl-C end the program at any moment.

  KeyboardInterrupt crashes NumPy and JAX while they are imported, and is lost where the garbage
  collector calls them.
  """

  def interrupt(number, frame):
    while frame:
      if frame.f_code.co_filename.startswith("<frozen importlib"):
        print("interrupted", file=sys.stderr)
        os._exit(130)
      frame = frame.f_back
    raise KeyboardInterrupt

  def again(lost, others=sys.unraisablehook):
    if lost.exc_type is KeyboardInterrupt:
      threading.Timer(0.01, _thread.interrupt_main).start()
    else:
      others(lost)

  if (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
  ):  # in the background it may be ignored
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = again


def _tune_malloc() -> None:
  """Makes glibc keep freed memory: returning it costs a step on a CPU a quarter of its time in
  page faults.
  """
  libc = ctypes.CDLL(None) if sys.platform == "linux" else None
  if hasattr(libc, "gnu_get_libc_version"):
    m_arena_max, m_mmap_max, m_trim_threshold, m_top_pad = -8, -4, -1, -2  # malloc.h
    for parameter, value in (
      (m_arena_max, 1),
      (m_mmap_max, 0),
      (m_trim_threshold, -1),
      (m_top_pad, 64 << 20),
    ):
      libc.mallopt(parameter, value)


def _set_up_jax() -> None:
  """What JAX reads from the environment when it is imported, and the start of a run over several
  processes.
  """
  if "workdir" in FLAGS and FLAGS.workdir:
    os.environ.setdefault(
      "JAX_COMPILATION_CACHE_DIR", os.path.join(FLAGS.workdir, "compilation_cache")
    )
  os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
  if "distributed" not in FLAGS:
    return
  where = {
    "--coordinator": FLAGS.coordinator,
    "--num_processes": FLAGS.num_processes,
    "--process_id": FLAGS.process_id,
  }
  given = [name for name, value in where.items() if value is not None]
  if not FLAGS.distributed:
    if given:
      raise InputError(f"{given[0]} needs --distributed")
    return
  if given and len(given) < 3:
    raise InputError(
      f"{', '.join(name for name in where if name not in given)} needed beside {', '.join(given)}"
    )
  if given and FLAGS.process_id >= FLAGS.num_processes:
    raise InputError(
      f"--process_id={FLAGS.process_id}: must be below --num_processes={FLAGS.num_processes}"
    )
  if given and not re.fullmatch(r".+:\d+", FLAGS.coordinator):
    raise InputError(f"--coordinator={FLAGS.coordinator}: must be HOST:PORT")
  import jax

  try:
    jax.distributed.initialize(*where.values())
  except ValueError as error:
    raise InputError(
      f"--distributed found no cluster ({error}); give {', '.join(where)}"
    ) from error
