"""IMDb: is a movie review positive? (Maas et al. 2011; ULMFiT's task)"""

import functools
import glob
import os
import tarfile
from collections.abc import Iterator

from gpt_jax.errors import InputError, MissingInput
from gpt_jax.files import find_files
from gpt_jax.tasks.readers import Row, find_folder, read_lines
from gpt_jax.tasks.task import Task
from gpt_jax.tasks.transforms import classification

LABELS = ("neg", "pos")
_HELD_OUT = 10  # of so many reviews of a class the last is held out: there is no official dev set


def read(data_dir: str, split: str) -> Iterator[Row]:
  """Rows of the official tree, aclImdb/train/pos/ID_RATING.txt, or of the archive that holds it."""
  root, half = find_folder(data_dir, "imdb"), "test" if split == "test" else "train"
  texts = _texts(root, half)
  if not texts:
    folder = os.path.join(root, "aclImdb", half, "pos")
    raise MissingInput(f"{folder}: no reviews here, nor in an archive aclImdb*.tar.* of {root}")
  numbered = []
  for path, text in texts.items():
    number, _, rating = os.path.basename(path).partition("_")
    if not number.isdecimal() or not rating:
      raise InputError(f"{path}: the file should be named ID_RATING.txt")
    label = os.path.basename(os.path.dirname(path))
    numbered.append((int(number), Row((text.replace("<br />", " "),), label, path)))
  for place, row in sorted(numbered):
    is_dev = place % _HELD_OUT == _HELD_OUT - 1
    if split == "test" or is_dev == (split == "dev"):
      yield row


@functools.lru_cache(1)  # 25,000 reviews take seconds, and a run asks for both splits
def _texts(root: str, half: str) -> dict[str, str]:
  """Path -> text of the tree's files, else of the archive's."""
  texts: dict[str, str] = {}
  for label in LABELS:
    for path in find_files(os.path.join(glob.escape(root), "aclImdb", half, label, "*.txt")):
      texts[path] = "\n".join(line for _, line in read_lines(path))
  for path in sorted(find_files(os.path.join(glob.escape(root), "aclImdb*.tar.*"))):
    texts = texts or _texts_of_archive(path, half)
  return texts


def _texts_of_archive(path: str, half: str) -> dict[str, str]:
  texts = {}
  try:
    with tarfile.open(path) as archive:
      for member in archive:
        file = archive.extractfile(member)
        if file and member.name.split("/")[-3:-1] in ([half, "neg"], [half, "pos"]):
          texts[f"{path}/{member.name}"] = file.read().decode()
  except (tarfile.TarError, OSError, EOFError, UnicodeDecodeError) as error:
    raise InputError(f"{path}: cannot be read to its end ({error}); copy it again") from error
  return texts


TASKS = (
  Task(
    name="imdb",
    labels=LABELS,
    columns=("review",),
    transform=classification,
    read=read,
    paper="95.4 accuracy on the test set (ULMFiT, Howard and Ruder 2018, table 2)",
  ),
)
