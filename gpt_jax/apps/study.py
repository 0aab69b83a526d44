"""The workdir of a study: whose it is, parts that are kept, results, tables; pages of others."""

import contextlib
import math
import os
import statistics
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

import numpy as np

from gpt_jax import files
from gpt_jax.checkpoints.formats.folder import read_object
from gpt_jax.checkpoints.run_folder import listing
from gpt_jax.errors import InputError, did_you_mean
from gpt_jax.parallel.processes import log
from gpt_jax.programs.outputs import is_taken
from gpt_jax.tasks.task import find

Chosen = TypeVar("Chosen")


class Study:
  """A folder of one program, new or of an earlier call; one with other files is refused.

  Args:
    result: the file that all folders of this program have.
    beside: how the names begin that a killed run may have left before it.
    on_disk: whether a URL is refused.
  """

  def __init__(
    self, workdir: str, result: str, beside: tuple[str, ...] = (), *, on_disk: bool = False
  ):
    (files.refuse_url if on_disk else files.check_path)(workdir)
    self.workdir, self._result = workdir, result
    names = listing(workdir)
    known = (f"{result}.partial", *beside)
    foreign = sorted(name for name in names if not name.startswith(known))
    if foreign and result not in names:
      raise InputError(
        f"--workdir={workdir} holds {foreign[0]!r} but no {result}: not a folder of this program; "
        "use another"
      )

  def path(self, *names: str) -> str:
    return os.path.join(self.workdir, *names)

  def folder(self, *names: str) -> str:
    """A folder of the workdir, which is made if it is missing."""
    try:
      files.make_folders(self.path(*names))
    except OSError as error:
      raise InputError(f"--workdir={self.workdir}: cannot be written ({error.strerror})") from error
    return self.path(*names)

  def claim(self, identity: dict[str, Any]) -> None:
    """Writes the JSON values that the study is of, or refuses a folder of others."""
    path = os.path.join(self.folder(), self._result)
    try:
      files.write_json(path, identity, overwrite=False)
      return
    except FileExistsError:
      pass
    except OSError as error:
      raise InputError(f"--workdir={self.workdir}: cannot be written ({error.strerror})") from error
    try:
      saved = read_object(path)
    except (OSError, ValueError) as error:
      raise InputError(f"{path}: {error}; use another workdir") from error
    self._check(dict.fromkeys(identity) | saved, identity)

  def _check(self, saved: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuses entries that differ from those of the identity."""
    changes = []
    for entry, value in identity.items():
      if saved[entry] != value:
        changes.append(f"{entry}: {str(saved[entry])[:200]} != {str(value)[:200]}")
    if changes:
      raise InputError(
        f"--workdir={self.workdir} holds the result of another command ({'; '.join(changes)}); "
        "use another folder"
      )

  def part(
    self, name: str, settings: dict[str, Any], measure: Callable[[], dict[str, Any]]
  ) -> dict[str, Any]:
    """The JSON that an earlier call measured with the same settings, or measures it now.

    Args:
      name: of the file, without its suffix.
      settings: JSON of everything that the result depends on.
      measure: returns JSON; non-finite numbers become None.
    """
    path, settings = self.path(f"{name}.json"), _finite(settings)
    try:
      saved = files.verified(files.read_json(path))
      if saved.get("settings") == settings:
        return saved["result"]
    except FileNotFoundError:
      pass
    except (OSError, ValueError, KeyError):
      log(f"{path}: damaged; measured again")
    result = _finite(measure())
    files.write_json(path, files.with_checksum({"settings": settings, "result": result}))
    return result

  def arrays(
    self, name: str, compute: Callable[[], dict[str, np.ndarray]]
  ) -> dict[str, np.ndarray]:
    """The arrays of an earlier call, or computes them now."""
    path = self.path(f"{name}.npz")
    try:
      with files.open_regular(path) as file, np.load(file, allow_pickle=False) as saved:
        return {key: saved[key] for key in saved.files}  # zip verifies a checksum
    except FileNotFoundError:
      pass
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
      log(f"{path}: damaged; computed again")
    arrays: dict[str, Any] = compute()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with files.atomic_file(path, "wb") as output:
      np.savez(output, **arrays)
    return arrays

  def results(self, identity: dict[str, Any], empty: dict[str, Any]) -> dict[str, Any]:
    """The results of earlier calls; refuses those of others.

    Args:
      identity: the JSON values that they are of, among the results; later calls may add entries.
      empty: the other entries where there are no results.
    """
    identity = _finite(identity)
    results = identity | empty
    path = self.path("results.json")
    if files.exists(path):
      try:
        results |= files.verified(files.read_json(path))
      except (OSError, ValueError) as error:
        raise InputError(
          f"{path}: cannot be read ({error}); remove it: finished runs are kept and read again"
        ) from error
    self._check(results, identity)
    return results

  def save(self, results: dict[str, Any], page: str = "") -> None:
    """Writes results.json, and results.md if there is a page."""
    files.write_json(self.path("results.json"), files.with_checksum(results))
    if page:
      self.write("results.md", page)

  def write(self, name: str, text: str) -> None:
    """Writes a file of the workdir as a whole."""
    with files.atomic_file(self.path(name)) as file:
      file.write(text)


def check_rows(
  results: dict[str, Any], tasks: Iterable[str], done: Collection[str], data: str, workdir: str
) -> None:
  """Notes a checksum of the training and dev rows of each task in the results; refuses other rows
  of those that are `done`.
  """
  known = results.setdefault("rows", {})
  for name in tasks:
    rows = [find(name).examples(data, split) for split in ("train", "dev")]
    content = repr([[row._replace(location="") for row in of_split] for of_split in rows])
    checksum = f"{zlib.crc32(content.encode('utf-8', 'surrogatepass')):08x}"
    if name in done and known.get(name, checksum) != checksum:
      raise InputError(
        f"--data={data}: its rows of {name} are not those that --workdir={workdir} has results of; "
        "use another workdir"
      )
    known[name] = checksum


@contextlib.contextmanager
def open_page(out: str, program: str) -> Iterator[IO[str]]:
  """Opens an HTML page, whose first lines name the program as its generator; the file appears only
  when it is complete.
  """
  files.check_path(out)
  if files.is_folder(out):
    raise InputError(f"--out={out} is a folder; name the page to write")
  marker = f'<meta name="generator" content="gpt_jax {program}">'.encode()
  try:
    ours = False
    with contextlib.suppress(FileNotFoundError, ValueError), files.open_regular(out) as file:
      ours = marker in file.read(500)
    if is_taken(out) and not ours:
      raise InputError(
        f"--out={out} already exists and is not a page of this program; name another file"
      )
    if not out.endswith((".html", ".htm")):
      raise InputError(f"--out={out}: the page is HTML; name it {os.path.splitext(out)[0]}.html")
    with files.atomic_file(out) as file:
      yield file
  except OSError as error:
    raise InputError(f"--out={out}: {error.strerror or error}") from error


def choice(flag: str, name: str, choices: Mapping[str, Chosen]) -> Chosen:
  """What a flag names; refuses other names than those of the choices."""
  if name not in choices:
    names = f"{', '.join(choices)}{did_you_mean(name, choices)}"
    raise InputError(f"--{flag}={name}: must be one of {names}")
  return choices[name]


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
  """The lines of a table in Markdown."""
  lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
  return [lines[0], f"|{'---|' * len(columns)}", *lines[1:]]


def percent(values: Sequence[float]) -> str:
  """The mean of shares, and their standard deviation if there are several, in percent."""
  spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
  return f"{100 * statistics.mean(values):.1f}{spread}"


def _finite(value: Any) -> Any:
  """The value as JSON gives it back: lists for tuples, and no nan or infinity."""
  if isinstance(value, dict):
    return {name: _finite(entry) for name, entry in value.items()}
  if isinstance(value, (list, tuple)):
    return list(map(_finite, value))
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
