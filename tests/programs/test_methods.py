"""Fine-tuning methods as values: by flags, from configs of earlier versions, one of each slot."""

import dataclasses

import pytest

from gpt_jax.config import fields_of, from_json, to_json
from gpt_jax.errors import InputError
from gpt_jax.models.adapter import Adapter
from gpt_jax.models.heads.views import ViewsHead
from gpt_jax.models.heads.windows import Windows
from gpt_jax.programs.config_files import override_all
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.training.adversarial import FGM, FreeLB
from gpt_jax.training.distillation import Distillation
from gpt_jax.training.layerwise import Unfreeze
from gpt_jax.training.unlabeled import Unlabeled
from gpt_jax.training.word_vectors import WordVectors


@pytest.mark.parametrize(
  "saved, methods",
  [
    ({}, ()),
    ({"windows": "", "word_vectors": "", "unlabeled": False, "unfreeze": False, "mix": None}, ()),
    ({"windows": "max", "window_stride": 9}, (Windows("max", 9),)),
    ({"adapter": {"type": "adapter", "rank": 2}}, (Adapter(2),)),
    ({"adversarial": {"type": "fgm", "radius": 2.0}}, (FGM(2.0),)),
    ({"unfreeze": True, "unfreeze_epochs": 3}, (Unfreeze(3),)),
    ({"word_vectors": "glove.txt"}, (WordVectors("glove.txt"),)),
    (
      {"distill": {"type": "distill"}, "unlabeled": True, "unlabeled_file": "a.csv"},
      (Distillation(), Unlabeled("a.csv")),
    ),
    ({"mix": {"type": "views", "units": 4}, "unlabeled": True}, (ViewsHead(units=4), Unlabeled())),
  ],
)
def test_a_config_that_was_saved_before_methods_were_one_field(saved, methods):
  config = from_json({"type": "finetune", **saved})
  assert config == FinetuneConfig(methods=methods)
  assert from_json(to_json(config)) == config


@pytest.mark.parametrize(
  "changes, methods",
  [
    ({"windows": "mean"}, (Windows(),)),
    ({"windows": "max", "window_stride": "9"}, (Windows("max", 9),)),
    ({"windows.over": "max", "windows.stride": "9"}, (Windows("max", 9),)),
    ({"adapter": "true"}, (Adapter(),)),
    ({"adapter.rank": "2", "adapter.alpha": "1"}, (Adapter(2, 1.0),)),
    ({"unlabeled": "true"}, (Unlabeled(),)),
    ({"unlabeled_file": "a.csv"}, (Unlabeled("a.csv"),)),
    ({"unfreeze": "true", "unfreeze_epochs": "2"}, (Unfreeze(2),)),
    ({"word_vectors": "glove.txt"}, (WordVectors("glove.txt"),)),
    ({"unlabeled": "false", "windows": "none"}, ()),
    ({"unlabeled": "", "windows": ""}, ()),
  ],
)
def test_methods_by_flags(changes, methods):
  assert override_all(FinetuneConfig(), changes.items()).methods == methods


def test_flags_change_and_remove_the_methods_of_a_config():
  config = FinetuneConfig(methods=(FGM(), Unlabeled()))
  changed = override_all(config, [("adversarial.radius", "3"), ("unlabeled", "false")])
  assert changed.methods == (FGM(3.0),)
  assert ("adversarial.radius", 3.0) in [(name, value) for name, value, _ in fields_of(changed)]


@pytest.mark.parametrize(
  "path, text, message",
  [
    ("adversarial.radius", "1", "config has no field 'adversarial.radius': .* several classes"),
    ("adaptr.rank", "1", "config has no field 'adaptr.rank'; did you mean adapter"),
    ("adapter.rnk", "1", "did you mean rank"),
    ("adapter.rank", "-1", "adapter.rank = -1: must be an integer from 0"),
    ("windows", "median", "windows.over = 'median': must be one of mean, max, attention"),
    ("gpt_format", "true", "config has no field 'gpt_format'"),
  ],
)
def test_wrong_flags_of_methods(path, text, message):
  with pytest.raises(InputError, match=message):
    override_all(FinetuneConfig(), [(path, text)])


def test_a_config_has_one_method_of_a_slot():
  with pytest.raises(InputError, match="adversarial, adversarial; a run has one of each name"):
    FinetuneConfig(methods=(FGM(), FreeLB()))
  assert FinetuneConfig(methods=(FGM(),)).with_methods(FreeLB()).methods == (FreeLB(),)


def test_the_order_in_which_methods_are_given_does_not_matter():
  methods = (Unlabeled(), ViewsHead(), FGM())
  assert FinetuneConfig(methods=methods) == FinetuneConfig(methods=methods[::-1])
  config = dataclasses.replace(FinetuneConfig(), methods=methods)
  assert [method.slot for method in config.methods] == ["adversarial", "mix", "unlabeled"]
