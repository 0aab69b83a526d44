"""Exit codes, and the one line that a user reads of an error."""

import errno
import os
import re
import sys
import warnings
from typing import Any

from command_line import process, usage
from command_line.definitions import FLAGS, config, own_flags
from gpt_jax.errors import InputError, Unavailable
from gpt_jax.files import StoreError

# Libraries put the text of a full disk's OSError into exceptions of their own.
_DISK_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))
_NOT_ALLOWED = errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP
_default_format = warnings.formatwarning


def exit_code(error: BaseException | None) -> int:
  """2, or 75 if the cause is a store that was not reached: schedulers may try again."""
  seen: list[BaseException] = []  # one that was raised from a later one is its own cause
  while error is not None and error not in seen:
    is_outage = isinstance(error, StoreError) and error.errno == errno.EIO
    if is_outage or isinstance(error, Unavailable):
      return os.EX_TEMPFAIL
    seen.append(error)
    error = error.__cause__
  return 2


def explain(error: Exception) -> str:
  """The line of an error of the disk, a store, memory or rights; "" of others, faults of ours."""
  text = str(error)
  for reason in _DISK_FULL:
    if reason in text:
      limit = reason == os.strerror(errno.EFBIG)
      advice = "raise the limit of a file's size (ulimit -f)" if limit else "free some space"
      return f"{reason}; {advice} and repeat the command"
  if isinstance(error, StoreError):
    again = "; the command can be given again" if exit_code(error) == os.EX_TEMPFAIL else ""
    return f"{error.filename}: {error.strerror}{again}"
  # Not of shared memory in a kernel, or of another resource.
  exhausted = "RESOURCE_EXHAUSTED" in text and ("allocat" in text or "ut of memory" in text)
  if isinstance(error, MemoryError) or exhausted:
    return _out_of_memory(text)
  if isinstance(error, OSError) and error.errno in _NOT_ALLOWED and error.filename:
    return f"{error.filename}: {error.strerror}"
  if os.strerror(errno.EAGAIN) in text or "can't start new thread" in text:
    return process.TOO_FEW_THREADS
  return ""


def with_flags(message: str) -> str:
  """A message of the package with the flags and commands that the user types."""
  return usage.as_typed(usage.with_flags(message, own_flags()))


def format_warning(
  message: Warning | str,
  category: type[Warning],
  filename: str,
  lineno: int,
  line: str | None = None,
) -> str:
  """Prints a UserWarning without the line of code that raised it."""
  if category is UserWarning:
    return f"warning: {with_flags(str(message))}\n"
  return _default_format(message, category, filename, lineno, line)


def _out_of_memory(error: str) -> str:
  """One line with what was needed, and the fields of the config that lower it."""
  message, needed = "out of memory", re.search(r"allocat\w* ([\d.]+) ?([KMGTPE]i?B|bytes)", error)
  if needed:
    size, unit = needed.groups()
    if unit == "bytes":
      unit, bytes_in = ("GB", 1e9) if float(size) >= 1e7 else ("KB", 1e3)
      size = f"{float(size) / bytes_in:.2f}"
    message = f"out of memory while allocating {size} {unit}"
  message += _memory_there()
  if "config" not in FLAGS:
    flag = next((name for name in ("batch_size", "microbatches") if name in FLAGS), "")
    advice = {"batch_size": "a smaller --batch_size, ", "microbatches": "a larger --microbatches, "}
    return f"{message}; use {advice.get(flag, '')}a smaller model, or a machine with more memory"
  settings = config()
  batch = "config.data.batch_size" if hasattr(settings, "data") else "config.batch_size"
  fields = [_more_microbatches(settings), f"a smaller --{batch}"]
  if hasattr(settings, "data"):
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
  """ " (a device has 16.9 GB)"; "" before JAX is imported."""
  if "jax" not in sys.modules:
    return ""
  import jax

  from gpt_jax.parallel import memory

  there = memory.capacity(jax.local_devices())
  return f" (a device has {there / 1e9:.1f} GB)" if there else ""
