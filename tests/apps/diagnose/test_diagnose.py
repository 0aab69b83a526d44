"""launch/diagnose.py: four parts of tiny size, what is kept, what is refused; the scaling law, and
measures of texts by hand.
"""

import copy
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpt_jax.apps.diagnose import diagnose, scaling, sections, short_runs
from gpt_jax.apps.diagnose.sampling import diversity, words
from gpt_jax.apps.diagnose.scaling import Law, fit_law, prediction_range
from gpt_jax.apps.diagnose.short_runs import outcome
from gpt_jax.apps.diagnose.texts import Budget, load_texts
from gpt_jax.errors import InputError
from gpt_jax.files import read_json, with_checksum, write_json
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs.config_files import load_config
from gpt_jax.training.hooks import Diverged
from gpt_jax.training.trainer import Trainer

LAW = Law(1.5, 30.0, 0.4, 50.0, 0.5)
BUDGET = Budget(
  widths=(8, 16, 24, 32),
  steps=(10, 20, 40, 80),
  rates=(1e-3, 1e3),
  seeds=2,
  rate_width=8,
  rate_steps=12,
  temperatures=(0.0, 1.0),
  texts=3,
  text_tokens=12,
  gradient_rows=3,
)


def run_of_the_law(config, texts):
  """Instead of training: what a run would have measured if it followed LAW."""
  parameters, steps = config.trunk.parameter_count(), config.train.steps
  tokens = steps * config.data.batch_size * config.data.length
  sizes = {"width": config.trunk.width, "parameters": parameters, "steps": steps, "tokens": tokens}
  measures = {"first_loss": 5.7, "loss": LAW(parameters, tokens), "seconds": 1.0}
  return lambda seed: {**sizes, **measures, "flops": 6.0 * parameters * tokens, "seed": seed}


@pytest.fixture(scope="module", autouse=True)
def one_layer():
  """Short runs of models with one layer and one batch of held-out text, as all of this file."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(short_runs, "_LAYERS", 1)
    patch.setattr(short_runs, "_EVALUATION_BATCHES", 1)
    yield


@pytest.fixture(scope="module")
def trunk(tiny_tokenizer):
  return TransformerConfig(tiny_tokenizer.vocab_size, context=16, layers=1, width=16, heads=2)


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory, prepared, make_run, trunk):
  """A folder with all parts. Attributes: workdir, checkpoint, result."""
  folder = tmp_path_factory.mktemp("diagnose")
  checkpoint = make_run(folder / "<b>run", ModelConfig(trunk))
  workdir = str(folder / "limits")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(scaling, "make_short_run", run_of_the_law)
    result = diagnose.run(prepared, workdir, [checkpoint], budget=BUDGET)
  return SimpleNamespace(workdir=workdir, checkpoint=checkpoint, result=result)


def test_all_parts_are_on_the_page_and_in_the_files(diagnosed):
  page = Path(diagnosed.workdir, "diagnosis.html").read_text(encoding="utf-8")
  headings = re.findall(r"<h2>(.*?)</h2>", page)
  assert headings == ["Gradients", "Scaling", "Learning rates", "Sampling"]
  assert "<b>run" not in page and "&lt;b&gt;run" in page
  assert not re.search(r"https?://|<script|<img", page)
  saved = json.loads(Path(diagnosed.workdir, "diagnosis.json").read_text(encoding="utf-8"))
  assert np.shape(saved["gradients"][0]["trained"]["of_text"]) == (2, 16)
  assert len(saved["scaling"]["runs"]) == 3 * 3 and "next" in saved["scaling"]
  assert [len(rate["runs"]) for rate in saved["rates"]["rates"]] == [2, 2]
  assert len(saved["sampling"][0]["temperatures"]) == 2


def test_norms_that_are_not_finite_are_on_the_page(diagnosed):
  models = copy.deepcopy(diagnosed.result["gradients"])
  of_last = models[0]["trained"]["of_last"]
  of_last[0][-3] = None  # as JSON has it
  assert "left after" in sections.vanishes(models).verdict
  assert sections.distances(models)[0]
  of_last[0] = [None] * len(of_last[0])
  assert sections.vanishes(models).verdict.startswith("not finite after")
  assert sections.distances(models)[0]


def test_the_next_size_is_predicted_without_its_run(diagnosed, prepared, tmp_path, monkeypatch):
  size = diagnosed.result["scaling"]["next"]
  assert size["predicted"] == pytest.approx(LAW(size["parameters"], size["tokens"]), rel=1e-4)
  assert size["width"] == 32 not in {run["width"] for run in diagnosed.result["scaling"]["runs"]}

  def worse_at_the_end(config, texts):
    train = run_of_the_law(config, texts)
    return lambda seed: train(seed) | {"loss": 5.0} if config.trunk.width == 32 else train(seed)

  monkeypatch.setattr(scaling, "make_short_run", worse_at_the_end)
  again = diagnose.run(prepared, str(tmp_path / "limits"), parts=["scaling"], budget=BUDGET)
  worse = again["scaling"]["next"]
  assert (worse["predicted"], worse["loss"]) == (size["predicted"], 5.0)


def test_rates_that_diverge_are_told_and_texts_compared_with_the_held_out_text(diagnosed):
  slow, fast = diagnosed.result["rates"]["rates"]
  assert slow["shares"]["diverged"] == 0 and fast["shares"]["diverged"] == 1
  assert slow["runs"][0]["loss"] < slow["runs"][0]["first_loss"]
  assert slow["runs"][0]["loss"] != slow["runs"][1]["loss"]  # seeds differ
  (model,) = diagnosed.result["sampling"]
  cold, warm = model["temperatures"]
  assert cold["nats"] < warm["nats"] and model["texts"] == 3
  known = set("the cat sat on mat and dog ran to old red barn by sea".split())
  assert set(model["held_out"]["sample"].split()[1:]) <= known  # the first may be half a word


def test_only_rates_that_learn_are_named():
  entry = lambda rate, learned: {
    "rate": rate,
    "shares": {"learned": learned},
    "runs": [],
    "median_loss": 1.0,
  }
  rates = [entry(1e-4, 1.0), entry(1e-3, 0.5), entry(1e-2, 1.0)]
  assert sections.safe_rates({"rates": rates, "steps": 9}).verdict == "0.0001, 0.01"


def test_a_stack_of_lstms_has_short_runs(tiny_tokenizer):
  for name in ("ulmfit:small", "elmo:small"):
    trunk = short_runs.short_config(load_config(name).trunk, 32, 100, tiny_tokenizer).trunk
    assert trunk.embedding_width == 32 and trunk.units[0] == 80 and trunk.parameter_count() > 0


def test_a_short_run_of_too_many_refused_updates_has_no_loss(prepared, monkeypatch):
  def diverge(*_):
    raise Diverged("ten updates are not finite")

  monkeypatch.setattr(Trainer, "init", lambda *_: SimpleNamespace(params=None))
  monkeypatch.setattr(Trainer, "fit", diverge)
  monkeypatch.setattr(short_runs, "make_measure", lambda *_: lambda _: {"valid_loss": 5.0})
  texts = load_texts(prepared)
  config = short_runs.short_config(None, 8, 12, texts.tokenizer)
  result = short_runs.make_short_run(config, texts)(0)
  assert result["first_loss"] == 5.0 and np.isnan(result["loss"])


@pytest.mark.parametrize(
  ("loss", "expected"),
  [(None, "diverged"), (np.nan, "diverged"), (6.1, "diverged"), (4.95, "stuck"), (4.8, "learned")],
)
def test_outcomes_follow_from_the_unigram_entropy(loss, expected):
  assert outcome(loss, first_loss=6.0, unigram_entropy=5.0) == expected


def test_the_same_command_measures_nothing_again(diagnosed, prepared, monkeypatch):
  def refuse(*_):
    raise AssertionError("measured again")

  for module in (scaling, short_runs):
    monkeypatch.setattr(module, "make_short_run", refuse)
  parts = {name: (refuse, fields) for name, (_, fields) in diagnose._OF_CHECKPOINTS.items()}
  monkeypatch.setattr(diagnose, "_OF_CHECKPOINTS", parts)
  before = json.dumps(diagnosed.result)
  again = diagnose.run(prepared, diagnosed.workdir, [diagnosed.checkpoint], budget=BUDGET)
  assert json.dumps(again) == before


def test_a_run_without_a_loss_leaves_no_law(prepared, tmp_path, monkeypatch):
  def diverged(config, texts):
    return lambda seed: run_of_the_law(config, texts)(seed) | {"loss": float("nan")}

  monkeypatch.setattr(scaling, "make_short_run", diverged)
  result = diagnose.run(prepared, str(tmp_path / "x"), parts=["scaling"], budget=BUDGET)
  assert "law" not in result["scaling"]
  assert "there is no law" in (tmp_path / "x" / "diagnosis.html").read_text()


def test_a_part_is_added_to_the_others(prepared, tmp_path, monkeypatch):
  monkeypatch.setattr(scaling, "make_short_run", run_of_the_law)
  monkeypatch.setattr(short_runs, "make_short_run", run_of_the_law)
  for part in ("scaling", "rates"):
    result = diagnose.run(prepared, str(tmp_path / "x"), parts=[part], budget=BUDGET)
  assert {"scaling", "rates"} <= result.keys()
  path = str(tmp_path / "x" / "diagnosis.json")
  saved = read_json(path)
  saved.pop("checksum")
  write_json(path, with_checksum(saved | {"train_digest": "another"}))
  result = diagnose.run(prepared, str(tmp_path / "x"), parts=["rates"], budget=BUDGET)
  assert "scaling" not in result


def test_bad_input_is_refused_before_anything_is_measured(
  diagnosed, prepared, tmp_path, make_run, trunk, openai_tokenizer
):
  def refused(match, checkpoint=(), workdir=str(tmp_path / "x"), **settings):
    with pytest.raises(InputError, match=match):
      diagnose.run(prepared, workdir, checkpoint, **{"budget": BUDGET, **settings})

  refused("--parts=scalign: must be one of .*; did you mean scaling", parts=["scalign"])
  refused("name some of gradients", parts=[])
  refused("look at a trained model: give --checkpoint=DIR, or --parts=scaling,rates")
  refused("--budget=smok: must be one of smoke, small; did you mean smoke", budget="smok")
  spec = ModelConfig(trunk, attention="bidirectional")
  refused("bidirectional attention", [make_run(tmp_path / "both", spec)])
  spec = ModelConfig(TransformerConfig(openai_tokenizer.vocab_size, 16, 1, 8, 2, special_tokens=3))
  refused("--checkpoint=.*other", [make_run(tmp_path / "other", spec, tokenizer=openai_tokenizer)])
  assert not (tmp_path / "x").exists()


# The scaling law.


REAL_LAW = Law(1.69, 406.4, 0.34, 410.7, 0.28)  # Hoffmann et al. 2022, eq. 10
SIZES, LENGTHS = [2e5 * 2**i for i in range(5)], [1e6, 4e6, 16e6]
N, D = map(np.array, zip(*itertools.product(SIZES, LENGTHS), strict=True))


def runs_with(losses):
  return list(zip(N, D, losses, strict=True))


def test_constants_of_losses_without_noise_come_back():
  with pytest.raises(InputError, match="5 runs of 2 sizes and 3 numbers of tokens"):
    fit_law(runs_with(REAL_LAW(N, D))[:5])
  fitted = fit_law(runs_with(REAL_LAW(N, D)))
  np.testing.assert_allclose(fitted, REAL_LAW, rtol=1e-4)
  assert sum(fitted.parts(1e7, 1e8)) == fitted(1e7, 1e8)
  assert fitted(1e7, 1e8) == pytest.approx(REAL_LAW(1e7, 1e8), rel=1e-6)


def test_an_outlier_moves_the_law_little():
  losses = REAL_LAW(N, D)
  losses[4] *= 1.3
  fitted = fit_law(runs_with(losses))
  assert fitted(3.2e6, 64e6) == pytest.approx(REAL_LAW(3.2e6, 64e6), rel=0.003)


def test_the_range_contains_predictions_that_lack_a_run():
  losses = REAL_LAW(N, D) * np.exp(0.01 * np.random.default_rng(0).normal(size=len(N)))
  law, at = fit_law(runs_with(losses)), (6.4e6, 64e6)
  low, high = prediction_range(law, runs_with(losses), at)
  without_first = fit_law(runs_with(losses)[1:], near=law)(*at)
  assert low <= without_first <= high and low < high < law(*at) * 1.05


# Texts.


def test_distinct_ngrams_are_of_all_texts_and_repetitions_of_each():
  assert words("The cat’s mat. It's") == ["the", "cat’s", "mat", ".", "it's"]
  measures = diversity(["a b a b a b", "a b c"])
  expected = {"distinct_1": 3 / 9, "repeated_4": 1 / 3}
  expected["distinct_2"] = 3 / 7  # ab, ba, bc of 5 + 2
  expected["distinct_3"] = 3 / 5  # aba, bab, abc of 4 + 1
  assert measures == pytest.approx(expected)
  assert set(diversity([]).values()) == set(diversity(["", " "]).values()) == {0}
