"""What becomes of an attempt to read something damaged, and what is read of each kind of file."""

import contextlib
import hashlib
import json
import resource
import signal
import warnings

from gpt_jax.apps.report import report
from gpt_jax.apps.report.record import Record
from gpt_jax.checkpoints.load import load_model
from gpt_jax.checkpoints.run_folder import checksum
from gpt_jax.data.token_file import TokenFile
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.errors import InputError
from gpt_jax.programs.finetune_evaluations import read_result

PATIENCE = 20  # seconds until an attempt counts as a hang


class Hang(BaseException):
  """An attempt took longer than PATIENCE."""


@contextlib.contextmanager
def patience():
  def stop(*_):
    raise Hang

  before = signal.signal(signal.SIGALRM, stop)
  signal.alarm(PATIENCE)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def outcome_of(read, expected, what):
  """What reading does: it refuses or warns, gives what is expected, or fails."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  try:
    with warnings.catch_warnings(record=True) as caught, patience():
      warnings.simplefilter("always")
      value = read()
  except InputError as error:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    if "\n" in str(error) or len(str(error)) > 1100:
      return f"{what}: not one line: {str(error)[:200]!r}"
    return "refused" if grown < 200 * 1024 else f"{what}: refused after {grown >> 10} MB"
  except Hang:
    return f"{what}: hangs"
  except Exception as error:
    return f"{what}: {type(error).__name__}: {str(error)[:200]}"
  if any(issubclass(warning.category, UserWarning) for warning in caught):
    return "refused"
  return "harmless" if value == expected else f"{what}: not noticed"


def describe_model(path):
  """All that a user gets of a model."""
  loaded = load_model(str(path))
  table = loaded.tokenizer.hash, loaded.tokenizer.special.names
  return checksum(loaded.params), json.dumps(loaded.meta, sort_keys=True), loaded.step, table


def describe_data(folder):
  contents = []
  for split in ("train", "valid"):
    file = TokenFile(str(folder), split)
    file.verify()
    ids = file.read(0, file.n_tokens)
    contents.append((file.header, ids.tobytes(), file.offsets.tobytes()))
  return contents, load_tokenizer(f"{folder}/tokenizer").hash


def describe_result(folder):
  result = read_result(str(folder))
  if result is None:  # it will be computed again
    raise InputError("no result")
  return result


def describe_program(folder):
  """The files of an export that runs without gpt_jax; its reader compares them with sha256.json."""
  files = (path for path in folder.rglob("*") if path.is_file() and path.name != "sha256.json")
  contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
  sums = {
    name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    for name, content in contents.items()
  }
  try:
    expected = json.loads((folder / "sha256.json").read_bytes())
  except (OSError, ValueError) as error:
    raise InputError("no sums") from error
  if sums != expected:
    raise InputError("other sums")
  return contents


def describe_page(folder):
  """What a report says of the files that have checksums; it must be written whatever they hold."""
  report.run([str(folder)], str(folder.parent / "page.html"))
  record = Record(str(folder))
  if record.notes:
    raise InputError(record.notes[0])
  return record.result, record.labels, record.wrong, record.n_wrong
