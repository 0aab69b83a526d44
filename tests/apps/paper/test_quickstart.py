import dataclasses
import json
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpt_jax.apps.paper import quickstart
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.errors import InputError
from gpt_jax.files import with_checksum, write_json
from gpt_jax.models.transformer import TransformerConfig


@pytest.fixture(scope="module")
def own_text(tmp_path_factory):
  """A quickstart of a few steps of a tiny model on the user's own text."""
  folder = tmp_path_factory.mktemp("quickstart")
  lines = [
    f"The {a} of the {b} was {c}."
    for a in ("king", "son", "cat")
    for b in ("hill", "sea")
    for c in ("old", "ill")
  ]
  (folder / "novel.txt").write_text("\n".join(lines * 60))
  make_config = quickstart.pretrain_config

  def tiny(steps, own_text):
    trunk = TransformerConfig(context=64, layers=1, width=16, heads=2)
    return dataclasses.replace(make_config(steps, own_text), trunk=trunk, evaluation_batches=1)

  with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # four steps learn nothing, and a warning says so
    patch.setattr(quickstart, "SHORT_STEPS", 4)
    patch.setattr(quickstart, "pretrain_config", tiny)
    quickstart.run(str(folder / "work"), str(folder / "novel.txt"), short=True)
  return folder / "work"


@pytest.mark.slow
def test_own_text_gives_a_report_a_plot_and_samples(own_text):
  report = (own_text / "results.md").read_text()
  assert "Short run: 4 steps" in report and "perplexity" in report
  assert all(f"> {prompt.lower()}" in report for prompt in quickstart.TEXT_PROMPTS)
  assert (own_text / "loss.png").read_bytes().startswith(b"\x89PNG")
  assert json.loads((own_text / "results.json").read_text())["tasks"] == {}


def test_a_workdir_of_something_else_is_left_alone(tmp_path):
  (tmp_path / "results.md").write_text("mine")
  with pytest.raises(InputError, match="holds 'results.md' but no data: not a folder of this"):
    quickstart.run(str(tmp_path), short=True)
  assert [path.name for path in tmp_path.iterdir()] == ["results.md"]


def test_the_vocabulary_holds_the_characters_of_any_text(tmp_path):
  for text in ("So it was, once. " * 40, "".join(map(chr, range(0x4E00, 0x5E00)))):
    (tmp_path / "text.txt").write_text(text)
    SentencePieceTokenizer.train([text], quickstart.vocabulary_size(str(tmp_path / "text.txt")))


def test_each_number_is_said_as_soon_as_it_is_known(monkeypatch, tmp_path, capsys):
  """Without training: after each run of a fine-tuning its accuracy, after each task its row."""
  accuracies = iter(np.linspace(0.5, 0.73, 24))

  def pretrained(config, data, workdir, **_):
    os.makedirs(workdir)
    sample = {"step": 800, "prompt": "at dawn", "text": " she sang."}
    Path(workdir, "samples.jsonl").write_text(json.dumps(sample))
    return dict.fromkeys(("valid_perplexity", "valid_bits_per_byte", "valid_loss"), 2.0)

  def finetuned(config, data, checkpoint, workdir, *, seeds, on_end, **_):
    results = []
    for seed in range(seeds):
      folder = Path(workdir, f"seed_{seed}")
      folder.mkdir(parents=True)
      (folder / "config.json").touch()
      results.append({"dev": {"dev_accuracy": next(accuracies)}})
      write_json(str(folder / "result.json"), with_checksum(results[-1]))
      for call in on_end:
        call(workdir)
    return results

  token_file = SimpleNamespace(unigram_entropy=4.0)
  for name, stand_in in (
    ("prepare.run", lambda *_: None),
    ("pretrain.run", pretrained),
    ("finetune.run", finetuned),
    ("generate.run", lambda *_, **__: ["once"]),
    ("plot.run", lambda *_, **__: None),
    ("write_report", lambda _: None),
    ("bag_of_words", lambda _: 0.4),
    ("TokenFile", lambda *_: token_file),
  ):
    monkeypatch.setattr(f"{quickstart.__name__}.{name}", stand_in)
  quickstart.run(str(tmp_path / "work"))
  said = list(filter(None, capsys.readouterr().err.splitlines()))
  assert said[0].startswith("Held-out text: perplexity 2.00")
  assert said[1] == "> step 800: at dawn she sang."
  assert said[3:5] == [
    "story-ending, pretrained: 50.0% of the dev set are right",
    "story-ending, pretrained: 50.0%, 51.0% of the dev set are right",
  ]
  row = said.index("| story-ending | 50.0 | 40.0 | 53.0 | 51.0 ± 1.0 |")
  assert "story-ending, from_scratch: 53.0% of the dev set are right" in said[:row]
  assert said[row - 2].endswith(" from scratch, one seed | pre-trained |")
  assert said[row + 2] == "story-doing, pretrained: 54.0% of the dev set are right"


def test_the_table_has_mean_and_spread_of_each_column():
  row = {"chance": 0.5, "bag_of_words": 0.55, "from_scratch": [0.4, 0.6], "pretrained": [0.9, 0.9]}
  measures = dict.fromkeys(("valid_perplexity", "valid_bits_per_byte", "valid_loss"), 2.0)
  results = {"short": False, "seconds": 9.0, "tasks": {"story-x": row}, "unigram_entropy": 4.0}
  report = quickstart.describe({**results, **measures}, ["once"])
  assert "| story-x | 50.0 | 55.0 | 50.0 ± 14.1 | 90.0 ± 0.0 |" in report
  assert "Short run" not in report
