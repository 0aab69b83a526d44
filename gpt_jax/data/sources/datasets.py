"""Data sets by name: the embedded text, which needs no download, and TensorFlow Datasets."""

import importlib
from collections.abc import Iterable, Iterator

from gpt_jax.data import storyworld
from gpt_jax.errors import InputError, require

USAGE = "embedded; tfds:NAME[/CONFIG][/SPLIT]"
FOLDER_SUFFIXES = None  # these are not files
SPLITS = ("train", "validation", "test", "unsupervised")


def reads(name: str) -> bool:
  return name == "embedded" or name.startswith("tfds:")


def documents(name: str, field: str) -> Iterator[Iterable[str]]:
  """The books of the story world, or the rows of a split: of train if the name ends with none."""
  if name == "embedded":
    yield from ([book] for book in storyworld.documents())
    return
  tfds = require("tensorflow_datasets", "tfds:", "tensorflow-datasets")
  importlib.import_module("tensorflow_datasets.text")  # registers glue and others
  dataset, split = name.removeprefix("tfds:"), "train"
  parent, _, last = dataset.rpartition("/")
  if last in SPLITS:
    dataset, split = parent, last
  try:
    builder = tfds.builder(dataset, file_format="array_record")
    builder.download_and_prepare()
    rows = builder.as_data_source(split=split)
  except tfds.core.registered.DatasetNotFoundError as error:  # its message lists every data set
    raise InputError(f"{name}: TFDS has no data set {dataset!r}; see its catalog") from error
  except Exception as error:  # anything else: no network, no such split
    raise InputError(f"{name}: {' '.join(str(error).split())[:300]}") from error
  fields = builder.info.features
  if field not in fields:
    raise InputError(
      f"{name}: no field {field!r}; its fields: {', '.join(fields)} (text_column=NAME)"
    )
  for row in rows:
    text = row[field]
    yield [text.decode() if isinstance(text, bytes) else str(text)]
