import sys

import pytest

from gpt_jax.data.sources.source import documents
from gpt_jax.errors import InputError


def test_tfds(tmp_path, monkeypatch):
  """A data set made here and read as any other, without TensorFlow."""
  tfds = pytest.importorskip("tensorflow_datasets")
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))

  class PocketStories(tfds.core.GeneratorBasedBuilder):
    pkg_dir_path = tmp_path  # this test is no package
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      return self.dataset_info_from_configs(
        features=tfds.features.FeaturesDict({"story": tfds.features.Text()})
      )

    def _split_generators(self, dl_manager):
      return {
        "train": self._generate_examples("train"),
        "validation": self._generate_examples("validation"),
      }

    def _generate_examples(self, split):
      for i in range(3):
        yield i, {"story": f"{split} story {i}, naïve"}

  expected = {f"train story {i}, naïve" for i in range(3)}
  assert set(documents("tfds:pocket_stories", field="story")) == expected
  assert all(
    text.startswith("valid") for text in documents("tfds:pocket_stories/validation", field="story")
  )
  with pytest.raises(InputError, match="no field 'text'; its fields: story"):
    list(documents("tfds:pocket_stories"))
  with pytest.raises(InputError, match="tfds:pocket_stories/test"):
    list(documents("tfds:pocket_stories/test", field="story"))
  with pytest.raises(
    InputError,
    match="tfds:no_such_stories: TFDS has no data set 'no_such_stories'; see its catalog",
  ):
    list(documents("tfds:no_such_stories"))
  assert "tensorflow" not in sys.modules
