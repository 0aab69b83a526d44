"""Part-of-speech tags of the Universal Dependencies English Web Treebank (Silveira et al. 2014)."""

import os
from collections.abc import Iterator

from gpt_jax.files import exists
from gpt_jax.tasks.answers.tags import TaggedExample, TagTask
from gpt_jax.tasks.metrics import accuracy
from gpt_jax.tasks.readers import find_folder
from gpt_jax.tasks.tagged_files import UPOS, read_conllu


def _read(data_dir: str, split: str) -> Iterator[TaggedExample]:
  folder = find_folder(data_dir, "ud_ewt")
  published = os.path.join(folder, f"en_ewt-ud-{split}.conllu")
  path = published if exists(published) else os.path.join(folder, f"{split}.conllu")
  return read_conllu(path, may_lack_tags=split == "test")


TASKS = (TagTask("ewt-tags", UPOS, _read, {"accuracy": accuracy}, spaced=True),)
