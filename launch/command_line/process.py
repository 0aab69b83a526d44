"""What a process needs before it imports JAX, and the other processes of its run."""

import _thread
import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable

from command_line import compilation_cache
from command_line.definitions import FLAGS
from gpt_jax import files
from gpt_jax.errors import InputError

TOO_FEW_THREADS = "too few threads and processes may be started; raise the limit (ulimit -u)"
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_STARTING = 300  # seconds that the processes of a run have, from the first to the last
_NEWS = 10  # seconds
_at_end: list[Callable[[int], None]] = []  # called with the exit code


def open_standard_streams() -> None:
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


def check_working_folder() -> None:
  try:
    os.getcwd()
  except OSError as error:
    message = f"the folder in which this command was given is not there ({error.strerror})"
    raise InputError(f"{message}; change to another") from error


def check_threads() -> None:
  """Raises InputError where so few threads may be started that libraries would abort."""
  end, size = threading.Event(), threading.stack_size(1 << 16)
  threads = [threading.Thread(target=end.wait) for _ in range(8 + (os.cpu_count() or 1))]
  try:
    for thread in threads:
      thread.start()
  except RuntimeError as error:
    raise InputError(TOO_FEW_THREADS) from error
  finally:
    threading.stack_size(size)
    end.set()
    for thread in filter(threading.Thread.is_alive, threads):
      thread.join()


def catch_interrupts() -> None:
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


def use_huge_pages() -> None:
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


def tune_malloc() -> None:
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


def set_up_jax() -> None:
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
    limit = f"must be below --num_processes={FLAGS.num_processes}"
    raise InputError(f"--process_id={FLAGS.process_id}: {limit}")
  if given and not re.fullmatch(r".+:\d+", FLAGS.coordinator):
    raise InputError(f"--coordinator={FLAGS.coordinator}: must be HOST:PORT")
  import jax

  late = threading.Timer(_STARTING, _exit_alone)
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
    fault = "this is no task of Slurm's srun and no host of a Cloud TPU"
    advice = f"{fault}; give {', '.join(values)}"
    raise InputError(f"--distributed found no cluster: {advice}") from error
  finally:
    late.cancel()
  if jax.process_index():
    files.announce = None  # process 0 speaks for all
  if jax.process_count() > 1:
    from gpt_jax.parallel.watch import watch

    _at_end.append(watch((FLAGS.coordinator or "").rpartition(":")[0]))


def _exit_alone() -> None:
  coordinator = f" or do not reach {FLAGS.coordinator}" if FLAGS.coordinator else ""
  message = f"after {_STARTING} s some processes of the run have not started{coordinator}"
  print(f"error: {message}; start all of them with the same command", file=sys.stderr, flush=True)
  os._exit(1)


def tell_others(code: int) -> None:
  for tell in _at_end:
    tell(code)


def wait_for_watcher(error: Exception) -> None:
  """Waits before an error of JAX, which may only say that another process of the run is lost.

  What was started at _join_processes then says so, and ends this process.
  """
  if _at_end and type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
    time.sleep(_NEWS)
