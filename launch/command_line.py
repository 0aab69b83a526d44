"""Shared by launch/ scripts: flags, --config with dotted overrides, one-line errors, JAX set-up."""

import _thread
import ast
import collections
import contextlib
import ctypes
import datetime
import errno
import importlib.util
import itertools
import os
import pathlib
import re
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from absl import flags

import compilation_cache
import usage
from gpt_jax import errors
from gpt_jax.errors import InputError, Unavailable
from gpt_jax.files import StoreError, check_path, is_url, split_names
from gpt_jax.programs.config_files import (
  declared_fields,
  describe_config,
  load_config,
  named_configs,
  named_like,
  override_all,
  read_config_file,
)
from gpt_jax.suggestions import did_you_mean

# Flags defined by functions of this file belong to the script that calls them.
flags.disclaim_key_flags()

FLAGS = flags.FLAGS
# Libraries put the text of a full disk's OSError into exceptions of their own.
_DISK_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))
_NOT_ALLOWED = errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP
_TOO_FEW_THREADS = "too few threads and processes may be started; raise the limit (ulimit -u)"
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_STARTING = 300  # seconds that the processes of a run have, from the first to the last
_NEWS = 10  # seconds
_NO_PATHS = ("coordinator", "text")  # flags that may hold ://; text: of the quickstart, a source
_RENAMED = {  # names of version 0.1
  "data_dir": "data",
  "output": "out",
  "json": "out",
  "prompts_file": "input",
  "field": "text_column",
  **dict.fromkeys(("pretrained", "checkpoints", "path", "a", "b"), "checkpoint"),
}
_INPUTS = {
  **dict.fromkeys(("data", "checkpoint", "tokenizer", "extend"), "folder"),
  "input": "file",
}
_CHECKPOINT = (
  "WORKDIR (newest checkpoint), WORKDIR/best, WORKDIR/checkpoints/STEP, an exported folder, "
  "or a folder of OpenAI's or transformers' files"
)
_default_format = warnings.formatwarning
_began = time.monotonic()
_at_end: list[Callable[[int], None]] = []  # called with the exit code
_config_names: list[str] = []  # of configs/, which the program takes
_config_classes: list[str] = []  # the last: of the configs that the program takes
_changes: list[tuple[str, str]] = []  # (NAME, VALUE) of every --config.NAME=VALUE


class _Config:
  """The flag --config; .value loads the file and applies the overrides."""

  @property
  def value(self):
    if FLAGS.config is None:
      raise InputError("--config is needed: a name or a Python file, such as --config=gpt1_small")
    return override_all(load_config(FLAGS.config), _changes)

  @property
  def set_fields(self) -> tuple[str, ...]:
    """The fields that the command line sets, be it to the value that the file has."""
    return tuple(name for name, _ in _changes)


def define_config(default: str | None = None, takes: str = "") -> _Config:
  """Defines --config, --config.NAME=VALUE and --print_config.

  Args:
    default: of --config; None: it is required.
    takes: the class of the configs that the program takes; "": of any.
  """
  _config_names.extend(_configs_of(takes))
  _config_classes.append(takes)
  help = (
    f"{', '.join(_config_names)}, or a Python file with get_config(); plus :ARGUMENT if it takes "
    "one; --config.NAME=VALUE changes a field"
  )
  flags.DEFINE_string("config", default, help, required=default is None)
  listing = "list every field of the config, with the default and the file's value if they differ"
  flags.DEFINE_boolean("print_config", False, listing)
  return _Config()


def _configs_of(takes: str) -> list[str]:
  """Names of the files in configs/ whose source has the name of a class: running all of them would
  import JAX.
  """
  names = []
  for name, path in named_configs().items():
    with open(path, encoding="utf-8") as file:
      if takes in file.read():
        names.append(name)
  return names


def define_workdir() -> flags.FlagHolder[str]:
  """Defines --workdir, the folder of a run."""
  help = "folder for config, metrics and checkpoints; repeating the command resumes the run"
  return flags.DEFINE_string("workdir", None, help, required=True)


def define_checkpoint() -> flags.FlagHolder[str]:
  """Defines --checkpoint, the trained model to use."""
  return flags.DEFINE_string("checkpoint", None, _CHECKPOINT, required=True)


def define_checkpoints(several: str) -> flags.FlagHolder[list[str]]:
  """Defines --checkpoint, which may be repeated; `several` says what for."""
  help = f"{_CHECKPOINT}; {several}"
  return flags.DEFINE_multi_string("checkpoint", None, help, required=True)


def define_adapters() -> flags.FlagHolder[list[str]]:
  """Defines --adapter, which may be repeated."""
  help = "NAME=DIR, an adapter trained on --checkpoint; repeat it: all share the base's memory"
  return flags.DEFINE_multi_string("adapter", [], help)


class _Paths(flags.ListParser):
  """Paths separated by commas; one that exists may have commas itself."""

  def parse(self, argument: Any) -> list[str]:
    return argument if isinstance(argument, list) else split_names(argument) if argument else []


def define_folders(default: str | None, help: str, required: bool = False) -> flags.FlagHolder:
  """Defines --data, prepared folders."""
  serializer = flags.CsvListSerializer(",")
  return flags.DEFINE(_Paths(), "data", default, help, serializer=serializer, required=required)


def define_overwrite() -> flags.FlagHolder[bool]:
  """Defines --overwrite, for programs that write a single file."""
  return flags.DEFINE_boolean("overwrite", False, "replace the output file if it exists")


def define_profile() -> flags.FlagHolder[str]:
  """Defines --profile, the steps of which a trace is written."""
  help = "START:STOP: write a trace of the steps after update START, up to STOP, to WORKDIR/profile"
  return flags.DEFINE_string("profile", "", help)


def define_tracker(default: str) -> flags.FlagHolder[str]:
  """Defines --tracker, where metrics go beside WORKDIR/metrics.jsonl."""
  help = (
    "where metrics go beside metrics.jsonl: tensorboard, wandb, trackio, mlflow, or several with "
    "commas; empty: nowhere; auto: tensorboard, if it is installed"
  )
  return flags.DEFINE_string("tracker", default, help)


def define_distributed() -> None:
  """Defines the flags of a multi-process run; run() joins the processes."""
  help = "join the other processes of the run, found by the cluster or the next three flags"
  flags.DEFINE_boolean("distributed", False, help)
  flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0")
  flags.DEFINE_integer("num_processes", None, "number of processes", lower_bound=1)
  flags.DEFINE_integer("process_id", None, "index of this process, from 0", lower_bound=0)


def defaults(program: str) -> dict[str, Any]:
  """Default values of the parameters of a program's run, in programs/ or in its app.

  They are read from the source: importing a program imports JAX, which would slow --help down.
  """
  spec = importlib.util.find_spec("gpt_jax")
  assert spec is not None and spec.origin is not None
  package = pathlib.Path(spec.origin).parent
  (path,) = [*package.glob(f"programs/{program}.py"), *package.glob(f"apps/*/{program}.py")]
  tree = ast.parse(path.read_text(encoding="utf-8"))
  functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
  (run,) = (function for function in functions if function.name == "run")
  positional = run.args.args[len(run.args.args) - len(run.args.defaults) :]
  pairs: list[tuple[ast.arg, ast.expr | None]] = [
    *zip(positional, run.args.defaults, strict=True),
    *zip(run.args.kwonlyargs, run.args.kw_defaults, strict=True),
  ]
  return {argument.arg: ast.literal_eval(node) for argument, node in pairs if node is not None}


def run(main: Callable[[], None], positional: str | None = None) -> None:
  """Parses the flags, sets the process up and calls main().

  `positional` is a flag whose value may also be given without its name, as in label.py my.csv.

  Modules that import JAX are imported within main(), so that --help and flag errors are immediate.
  User errors (InputError, a full disk) print one line to standard error and exit with code 2, or
  75 where a store was not reached; all other exceptions keep their traceback.
  """
  if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
    import completion

    completion.answer(_own_flags(), _config_names)
  _open_standard_streams()
  _catch_interrupts()
  try:
    _check_working_folder()
    argv = _with_flag_name(sys.argv, positional) if positional else sys.argv
    if _parse(argv, main.__globals__["__doc__"], positional):
      _use_huge_pages()
      _tune_malloc()
      _check_threads()
      warnings.formatwarning, errors.for_user = _format_warning, _for_user
      _set_up_jax()
      main()
    sys.stdout.flush()  # so that a closed pipe is noticed inside this try
    _tell_others(0)
  except SystemExit as error:
    _tell_others(error.code if isinstance(error.code, int) else 1)
    raise
  except InputError as error:
    print("error:", _for_user(str(error)), file=sys.stderr)
    _tell_others(_exit_code(error))
    sys.exit(_exit_code(error))
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    _tell_others(130)
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
      if _exit_code(error) == os.EX_TEMPFAIL:
        message += "; the command can be given again"
    elif isinstance(error, MemoryError) or _is_out_of_memory(str(error)):
      message = _out_of_memory(str(error))
    elif isinstance(error, OSError) and error.errno in _NOT_ALLOWED and error.filename:
      message = f"{error.filename}: {error.strerror}"
    elif os.strerror(errno.EAGAIN) in str(error) or "can't start new thread" in str(error):
      message = _TOO_FEW_THREADS
    else:
      _await_news(error)
      raise
    print("error:", message, file=sys.stderr, flush=True)
    _tell_others(_exit_code(error))
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    os._exit(_exit_code(error))  # a normal exit would retry pending writes, and may need memory


def _exit_code(error: BaseException | None) -> int:
  """2, or 75 if the cause is a store that was not reached: schedulers may try again."""
  seen: list[BaseException] = []  # one that was raised from a later one is its own cause
  while error is not None and error not in seen:
    is_outage = isinstance(error, StoreError) and error.errno == errno.EIO
    if is_outage or isinstance(error, Unavailable):
      return os.EX_TEMPFAIL
    seen.append(error)
    error = error.__cause__
  return 2


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
  for program, arguments in commands:
    words = usage.command(program)
    for name, value in arguments.items():
      words.append(f"--{name}={usage.config_path(value) if name == 'config' else value}")
    lines.append(f"  {shlex.join(words)}")
  print("\n".join(lines), file=sys.stderr)


def _tell_others(code: int) -> None:
  for tell in _at_end:
    tell(code)


def _await_news(error: Exception) -> None:
  """Waits before an error of JAX, which may only say that another process of the run is lost.

  What was started at _join_processes then says so, and ends this process.
  """
  if _at_end and type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
    time.sleep(_NEWS)


def _is_out_of_memory(error: str) -> bool:
  # Not of shared memory in a kernel, or of another resource.
  return "RESOURCE_EXHAUSTED" in error and ("allocat" in error or "ut of memory" in error)


def _out_of_memory(error: str) -> str:
  """One line with what was needed, and the fields of the config that lower it."""
  message, needed = "out of memory", re.search(r"allocat\w* ([\d.]+) ?([KMGTPE]i?B|bytes)", error)
  if needed:
    size, unit = needed.groups()
    if unit == "bytes":
      unit, bytes_in = ("GB", 1e9) if float(size) >= 1e7 else ("KB", 1e3)
      size = f"{float(size) / bytes_in:.2f}"
    size = f"{size} {unit}"
    message = f"out of memory while allocating {size}"
  message += _memory_there()
  if "config" not in FLAGS:
    flag = next((name for name in ("batch_size", "microbatches") if name in FLAGS), "")
    advice = {"batch_size": "a smaller --batch_size, ", "microbatches": "a larger --microbatches, "}
    return f"{message}; use {advice.get(flag, '')}a smaller model, or a machine with more memory"
  config = _Config().value
  batch = "config.data.batch_size" if hasattr(config, "data") else "config.batch_size"
  fields = [_more_microbatches(config), f"a smaller --{batch}"]
  if hasattr(config, "data"):
    fields.append("a smaller --config.data.length")
  return f"{message}; use {', '.join(fields)}, or a smaller config.trunk"


def _more_microbatches(config: Any) -> str:
  """The flag for twice as many microbatches, if they divide the batch."""
  rows = getattr(getattr(config, "data", config), "batch_size", 0)
  count = _microbatches(config) if rows else 0
  if not count or rows % (2 * count):
    return "a larger --config.train.microbatches"
  return f"--config.train.microbatches={2 * count} (the same updates, from smaller parts)"


def _microbatches(config: Any) -> int:
  """As set or, if the program chose them, as the run's folder has them; 0: unknown."""
  if config.train.microbatches or "workdir" not in FLAGS:
    return config.train.microbatches
  from gpt_jax.checkpoints.run_folder import claimed_config

  try:
    return claimed_config(FLAGS.workdir).train.microbatches
  except (InputError, KeyError, TypeError, AttributeError):
    return 0


def _memory_there() -> str:
  """ " of 16.9 GB", what a device has; "" before JAX is there."""
  if "jax" not in sys.modules:
    return ""
  import jax

  from gpt_jax.parallel import memory

  there = memory.capacity(jax.local_devices())
  return f" (a device has {there / 1e9:.1f} GB)" if there else ""


def _parse(argv: list[str], doc: str, positional: str | None) -> bool:
  """Parses the flags; False if --help or --print_config was answered instead."""
  words = {word.lstrip("-") for word in argv[1:] if word.startswith("-")}
  if {"help", "h", "helpfull"} & words:
    print(usage.describe(doc, _own_flags(), positional))
    return False
  if wrong := [word for word in words if word.startswith("help=")]:
    listing = "; --print_config lists the fields of the config" if "config" in FLAGS else ""
    raise InputError(f"--{wrong[0]}: --help alone describes the flags{listing}")
  argv = _take_changes(argv)
  missing: list[str] = []
  try:
    rest = FLAGS(argv)[1:]
  except flags.UnrecognizedFlagError as error:
    raise InputError(_unknown(error.flagname)) from error
  except flags.IllegalFlagValueError as error:
    missing = re.findall(r"Flag --(\w+) must have a value other than None", str(error))
    rest = _stray_words(argv)
    if not missing:
      raise InputError(_illegal_value(str(error))) from error
  except flags.Error as error:
    raise InputError(str(error)) from error
  if rest:
    guess = f"; did you mean --{missing[0]}={shlex.quote(rest[0])}?" if missing else ""
    raise InputError(
      f"unexpected argument {rest[0]!r}: every setting is a flag, --NAME=VALUE{guess} "
      "(--help lists them)"
    )
  _refuse_repeats()
  if "print_config" in FLAGS and FLAGS.print_config:
    print(describe_config(_Config().value, load_config(FLAGS.config)))
    return False
  for flag in _own_flags():
    if isinstance(flag.value, str) and flag.name not in _NO_PATHS:
      check_path(flag.value)
  if missing:
    raise InputError(
      f"missing {', '.join('--' + name for name in missing)} (--help describes the flags)"
    )
  _check_inputs()
  return True


def _refuse_repeats() -> None:
  """Raises InputError for a flag of one value that was given again: absl would take the last."""
  given = {
    flag.name: flag.present for flag in _own_flags() if not isinstance(flag, flags.MultiFlag)
  }
  given |= collections.Counter(f"config.{name}" for name, _ in _changes)
  for name, times in given.items():
    if times > 1:
      raise InputError(f"--{name} is given {times} times: it takes one value")


def _illegal_value(message: str) -> str:
  """absl's message about the value of a flag, with Python's about a number in our words."""
  message = re.sub(r"^flag (--\w+)=(.*?): ", r"\1=\2: ", message, flags=re.DOTALL)
  for words, wanted in (
    ("invalid literal for int()", "an integer"),
    ("could not convert string to float", "a number"),
    ("Non-boolean argument to boolean flag", "true or false"),
  ):
    given, found, _ = message.partition(f": {words}")
    given, also_found, _ = given.partition(f": ('{words}")  # a tuple, for booleans
    if found or also_found:
      return f"{given}: should be {wanted}"
  return message


def _check_inputs() -> None:
  """Raises InputError for a config, file or folder that is not there, before JAX is imported."""
  if "config" in FLAGS and FLAGS.config:
    read_config_file(FLAGS.config)
  for name, kind in _INPUTS.items():
    value = FLAGS[name].value if name in FLAGS else None
    for path in value if isinstance(value, list) else [value or ""]:
      is_special = path in ("", "-", "none") or is_url(path) or path.startswith("tfds:")
      there = os.path.abspath(path).removesuffix("/best")  # of a workdir
      if not is_special and not os.path.exists(there):
        raise InputError(f"--{name}={path}: no such {kind}{_neighbors(path)}")


def _neighbors(path: str) -> str:
  """For the end of a message about a path that is not there: what may be meant, beside it."""
  folder, name = os.path.split(path)
  with contextlib.suppress(OSError):
    return did_you_mean(name, os.listdir(folder or "."), prefix=os.path.join(folder, ""))
  return ""


def _take_changes(argv: list[str]) -> list[str]:
  """Moves --config.NAME=VALUE, which absl cannot parse, from argv to _changes."""
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


def _with_flag_name(argv: list[str], name: str) -> list[str]:
  """Puts --name= before the only argument that is no flag, unless the flag is there already."""
  words = _stray_words(argv)
  if len(words) != 1 or any(re.match(rf"--?{name}(=|$)", argument) for argument in argv):
    return argv
  index = argv.index(words[0], 1)
  return [*argv[:index], f"--{name}={words[0]}", *argv[index + 1 :]]


def _stray_words(argv: list[str]) -> list[str]:
  """The arguments that are neither flags nor values of the flag before them."""
  words = []
  for before, word in itertools.pairwise(argv):
    name = before.lstrip("-") if before.startswith("-") else ""
    takes_value = name in FLAGS and not FLAGS[name].boolean
    if not word.startswith("-") and not takes_value:
      words.append(word)
  return words


def _own_flags() -> list[flags.Flag]:
  """The flags that the running script defines, without absl's own."""
  return [flag for module in FLAGS.flags_by_module_dict().values() for flag in module]


def _unknown(name: str) -> str:
  names = [flag.name for flag in _own_flags()]
  if _RENAMED.get(name) in names:
    return f"--{name} is now --{_RENAMED[name]}"
  guess = did_you_mean(name, names, prefix="--", most=2)
  fields: list[str] = []
  if "." in name and "config" in names:
    fields = [name]
  elif not guess and "config" in names and _config_classes[-1]:
    fields = named_like(name, declared_fields(_config_classes[-1]))
  if fields:
    guess = f"; did you mean {' or '.join(f'--config.{field}' for field in fields)}?"
  return f"unknown flag --{name}{guess} (--help lists the flags)"


def _for_user(message: str) -> str:
  """A message of the package with the flags and commands that the user types."""
  return usage.as_typed(usage.with_flags(message, _own_flags()))


def _format_warning(
  message: Warning | str,
  category: type[Warning],
  filename: str,
  lineno: int,
  line: str | None = None,
) -> str:
  """Prints a UserWarning without the line of code that raised it."""
  if category is UserWarning:
    return f"warning: {_for_user(str(message))}\n"
  return _default_format(message, category, filename, lineno, line)


def _open_standard_streams() -> None:
  """Opens what the caller has closed (>&-), as some daemons do: to /dev/null.

  A file that a program writes would get the number, and what libraries print would be in it.
  """
  for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
    if getattr(sys, name) is None:
      descriptor = os.open(os.devnull, os.O_RDWR)
      if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
      os.set_inheritable(number, True)  # by workers
      setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


def _check_working_folder() -> None:
  try:
    os.getcwd()
  except OSError as error:
    message = f"the folder in which this command was given is not there ({error.strerror})"
    raise InputError(f"{message}; change to another") from error


def _check_threads() -> None:
  """Raises InputError where so few threads may be started that libraries would abort."""
  end, size = threading.Event(), threading.stack_size(1 << 16)
  threads = [threading.Thread(target=end.wait) for _ in range(8 + (os.cpu_count() or 1))]
  try:
    for thread in threads:
      thread.start()
  except RuntimeError as error:
    raise InputError(_TOO_FEW_THREADS) from error
  finally:
    threading.stack_size(size)
    end.set()
    for thread in filter(threading.Thread.is_alive, threads):
      thread.join()


def _catch_interrupts() -> None:
  """Makes Ctrl-C end the program at any moment.

  NumPy and JAX crash on a KeyboardInterrupt during their import, and one that is raised inside a
  garbage collector callback is lost.
  """

  def interrupt(number, frame):
    while frame:
      if frame.f_code.co_filename.startswith("<frozen importlib"):
        print("interrupted", file=sys.stderr)
        os._exit(130)
      frame = frame.f_back
    raise KeyboardInterrupt

  def interrupt_again(unraisable, default_hook=sys.unraisablehook):
    if unraisable.exc_type is KeyboardInterrupt:
      threading.Timer(0.01, _thread.interrupt_main).start()
    else:
      default_hook(unraisable)

  # A process in the background may ignore SIGINT; leave that so.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = interrupt_again


def _use_huge_pages() -> None:
  """Starts this command again where memory comes in pages of 2 MB to those who ask for it.

  glibc asks for it only where the environment says so from the start. With pages of 4 kB a training
  step of GPT-1's size takes 6 % longer on a CPU, and now and then twice as long.
  """
  tunables = os.environ.get("GLIBC_TUNABLES", "")
  too_late = "glibc.malloc.hugetlb" in tunables or "jax" in sys.modules
  if too_late or _glibc() is None or not sys.executable:
    return
  with contextlib.suppress(OSError), open(_HUGE_PAGES, encoding="ascii") as file:
    if "[madvise]" in file.read():
      os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, "glibc.malloc.hugetlb=1")))
      os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _tune_malloc() -> None:
  """Makes glibc keep freed memory: page faults would take a quarter of a training step on a CPU."""
  libc = _glibc()
  if libc is None:
    return
  m_arena_max, m_mmap_max, m_trim_threshold, m_top_pad = -8, -4, -1, -2  # malloc.h
  libc.mallopt(m_arena_max, 1)
  libc.mallopt(m_mmap_max, 0)
  libc.mallopt(m_trim_threshold, -1)
  libc.mallopt(m_top_pad, 64 << 20)


def _glibc() -> ctypes.CDLL | None:
  """The C library where it is glibc."""
  libc = ctypes.CDLL(None) if sys.platform == "linux" else None
  return libc if hasattr(libc, "gnu_get_libc_version") else None


def _set_up_jax() -> None:
  """Sets the environment variables that JAX reads on import, and joins a multi-process run."""
  compilation_cache.set_up()
  if "profile" in FLAGS and FLAGS.profile:
    # Programs that differ in nothing but the names of their parts share an entry of the cache. A
    # trace shows the names.
    os.environ.setdefault("JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY", "true")
  if "distributed" in FLAGS:
    _join_processes()


def _join_processes() -> None:
  """Checks the flags of define_distributed and initializes jax.distributed."""
  values = {
    "--coordinator": FLAGS.coordinator,
    "--num_processes": FLAGS.num_processes,
    "--process_id": FLAGS.process_id,
  }
  given = [name for name, value in values.items() if value is not None]
  if not FLAGS.distributed:
    if given:
      raise InputError(f"{given[0]} needs --distributed")
    return
  if given and len(given) < 3:
    missing = [name for name in values if name not in given]
    raise InputError(f"{', '.join(missing)} needed beside {', '.join(given)}")
  if given and FLAGS.process_id >= FLAGS.num_processes:
    raise InputError(
      f"--process_id={FLAGS.process_id}: must be below --num_processes={FLAGS.num_processes}"
    )
  if given and not re.fullmatch(r".+:\d+", FLAGS.coordinator):
    raise InputError(f"--coordinator={FLAGS.coordinator}: must be HOST:PORT")
  import jax

  late = threading.Timer(_STARTING, _end_without_others)
  late.daemon = True
  late.start()
  try:
    jax.distributed.initialize(
      FLAGS.coordinator,
      FLAGS.num_processes,
      FLAGS.process_id,
      initialization_timeout=2 * _STARTING,  # at which JAX would end it with pages of C++
    )
  except ValueError as error:
    raise InputError(
      f"--distributed found no cluster ({error}); give {', '.join(values)}"
    ) from error
  finally:
    late.cancel()
  if jax.process_count() > 1:
    from gpt_jax.parallel.watch import watch

    _at_end.append(watch((FLAGS.coordinator or "").rpartition(":")[0]))


def _end_without_others() -> None:
  coordinator = f" or do not reach {FLAGS.coordinator}" if FLAGS.coordinator else ""
  message = f"after {_STARTING} s some processes of the run have not started{coordinator}"
  print(f"error: {message}; start all of them with the same command", file=sys.stderr, flush=True)
  os._exit(1)
