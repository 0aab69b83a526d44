"""Each config loads, its docstring's commands exist, and GPT-1's has the paper's numbers."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import check_command
from refused import refused, table

from gpt_jax.config import from_json, to_json
from gpt_jax.data.windows import WindowsConfig
from gpt_jax.programs.config_files import describe_config, load_config, override
from gpt_jax.programs.finetune_config import FinetuneConfig
from gpt_jax.tasks.task import all_tasks
from gpt_jax.training.defaults import with_defaults
from gpt_jax.training.optimizer import make_optimizer

ROOT = Path(__file__).parents[1]
FILES = sorted(path.name for path in (ROOT / "configs").glob("*.py"))


ARGUMENTS = {
  "adapter": "lora:cola",
  "adversarial": "fgm:cola",
  "cross_view": "small:ewt-tags",
  "encoder_small": "next",
  "finetune_encoder": "bert:cola",
  "translate": "t5",
  **dict.fromkeys(("cove", "distill", "finetune", "finetune_elmo", "finetune_ulmfit"), "cola"),
  **dict.fromkeys(("elmo", "gpt2", "t5", "ulmfit"), "small"),
  **dict.fromkeys(("albert", "bert", "roberta"), "base"),
}


def load(name, argument=None):
  argument = argument or ARGUMENTS.get(name.removesuffix(".py"))
  return load_config(f"{ROOT}/configs/{name}" + (f":{argument}" if argument else ""))


def commands(name):
  """The command lines in a config's docstring."""
  doc = re.match(r'"""(.*?)"""', (ROOT / "configs" / name).read_text(), re.DOTALL)[1]
  doc = doc.replace("\\\n", " ").replace(" \\\\\n", " ")
  return [shlex.split(line) for line in re.findall(r"^ *(python launch/.*)$", doc, re.MULTILINE)]


@pytest.mark.parametrize("name", FILES)
def test_loads_in_every_folder_and_survives_json(name, tmp_path, monkeypatch):
  config, stem = load(name), name.removesuffix(".py")
  assert from_json(to_json(config)) == config
  lines = describe_config(config).splitlines()
  assert all(" = " in line for line in lines if line and not line.startswith("["))
  monkeypatch.chdir(tmp_path)
  assert load_config(":".join(filter(None, (stem, ARGUMENTS.get(stem))))) == config


LOAD = """import json, sys
from command_line import fields

fields.stand_in()
from gpt_jax.config import to_json
from gpt_jax.programs.config_files import load_config

print(json.dumps({spec: to_json(load_config(spec)) for spec in sys.argv[1:]}))
"""


def test_a_config_is_the_same_with_stand_ins_for_jax():
  """With which launch/command_line/fields.py checks fields: no module may compute at its import."""
  stems = [name.removesuffix(".py") for name in FILES]
  specs = [":".join(filter(None, (stem, ARGUMENTS.get(stem)))) for stem in stems]
  environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "launch")])}
  done = subprocess.run(
    [sys.executable, "-c", LOAD, *specs], env=environment, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout) == {spec: to_json(load_config(spec)) for spec in specs}


def test_a_file_comes_before_a_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "gpt1").write_text((ROOT / "configs" / "lstm.py").read_text())
  (tmp_path / "lstm").mkdir()
  assert load_config("gpt1") == load_config("lstm") == load("lstm.py")


@pytest.mark.parametrize("name", FILES)
def test_the_commands_of_the_docstring_exist(name):
  lines = commands(name)
  assert any(f"--config=configs/{name}" in argument for line in lines for argument in line)
  for _, script, *arguments in lines:
    check_command(script, arguments)


@pytest.mark.parametrize(
  "name, rows, parameters",
  [
    ("gpt2:small", 50_257, 124_439_808),
    ("gpt2:medium", 50_257, 354_823_168),
    ("gpt2:large", 50_257, 774_030_080),
    ("gpt2:xl", 50_257, 1_557_611_200),
    ("t5:small", 32_128, 60_506_624),
    ("t5:base", 32_128, 222_903_552),
    ("t5:large", 32_128, 737_668_096),
    ("t5:1.1-small", 32_128, 76_961_152),
    ("t5:1.1-base", 32_128, 247_577_856),
    ("t5:1.1-large", 32_128, 783_150_080),
    ("bert:base", 30_522, 109_482_240),
    ("bert:large", 30_522, 335_141_888),
    ("roberta:base", 50_265, 124_052_736),
    ("roberta:large", 50_265, 354_307_072),
    ("albert:base", 30_000, 11_683_584),
    ("albert:large", 30_000, 17_683_968),
    ("albert:xlarge", 30_000, 58_724_864),
    ("albert:xxlarge", 30_000, 222_595_584),
    ("albert:base:attention", 30_000, 63_647_232),  # 64M and 38M in ALBERT's table 4
    ("albert:base:mlp", 30_000, 37_686_528),
    ("elmo:paper", 0, 93_600_848),  # without the softmax, which a vocabulary brings
  ],
)
def test_the_published_sizes(name, rows, parameters):
  trunk = load_config(name).trunk
  assert dataclasses.replace(trunk, vocab_size=rows).parameter_count() == parameters
  if name.startswith("gpt2"):
    assert trunk.width == 64 * trunk.heads
  if name.startswith("t5"):
    assert trunk.residual_dropout == (0.0 if "1.1" in name else 0.1)


ARGUMENTS_REFUSED = """\
finetune => get_config needs the name of its task: finetune:TASK
gpt2:huge => gpt2:huge: the sizes are small, medium, large, xl
elmo:huge => elmo:huge: the sizes are paper, small
ulmfit:huge => ulmfit.py:huge: the sizes are paper, small, tar
ulmfit:small:sideways => ulmfit.py:small:sideways: the sizes are paper, small, tar
bert:huge => bert:huge: the sizes are .*base, large
roberta:huge => roberta:huge: the sizes are .*base, large
albert:huge => albert.py:huge: the sizes are .*base, large
encoder_small:order:most => encoder_small.py:order:most: the objectives are next
finetune_encoder:gpt:cola => 'gpt:cola': must be FAMILY:TASK, FAMILY one of bert, rob
finetune_encoder:bert => 'bert': must be FAMILY:TASK, FAMILY one of bert, rob
"""


@pytest.mark.parametrize("name, message", table(ARGUMENTS_REFUSED))
def test_an_argument_of_no_config_is_refused(name, message):
  refused(message, load_config, name)


def test_translation_goes_on_from_a_checkpoint():
  config = load("translate.py", "pretrained:de-en")
  assert (config.trunk, config.optim) == (FinetuneConfig.trunk, FinetuneConfig.optim)
  assert config.task.source == "de"


def test_cross_view_training_of_several_tasks_and_of_a_translator():
  config = load("cross_view.py", "small:ewt-tags,trec")
  assert [task.name for task in config.task.tasks] == ["ewt-tags", "trec"]
  config = load("cross_view.py", "paper:ewt-tags,trec")
  assert config.trunk.characters.filters == (0, 100, 100, 100)  # of 2, 3 and 4 characters
  config = load("translate.py", "views:de-en")
  assert config.trunk == load("translate.py", "lstm").trunk and config.method("unlabeled")
  assert (config.task.source, config.task.unlabeled) == ("de", "taught.tsv")
  assert from_json(to_json(config)) == config


def test_the_backward_model_of_ulmfit():
  config = load("ulmfit.py", "target:backward")
  assert config.trunk.reads_backward and config.objective.ar == 2.0


def test_small_encoders_with_shared_blocks():
  def parameters(argument):
    trunk = load_config(f"{ROOT}/configs/encoder_small.py:order{argument}").trunk
    return dataclasses.replace(trunk, vocab_size=1500).parameter_count()

  width = 128
  attention, mlp = 4 * width**2 + 6 * width, 8 * width**2 + 7 * width  # with their norms
  assert parameters("") - parameters(":all") == 2 * (attention + mlp)
  assert parameters("") - parameters(":attention") == 2 * attention
  assert parameters("") - parameters(":mlp") == 2 * mlp


@pytest.mark.parametrize("name", [task.name for task in all_tasks()] + ["table"])
def test_every_task_has_its_config(name):
  task = load("finetune.py", name).task
  assert name == "table" or task.build("").name == name


def test_gpt1_is_the_paper():
  """Radford et al. 2018, section 4.1; clipping and parameter count from the released code."""
  config = load("gpt1.py")
  trunk = override(config.trunk, "vocab_size", "40478")
  assert trunk.parameter_count() == 116_534_784
  assert (trunk.layers, trunk.width, trunk.heads, trunk.context) == (12, 768, 12, 512)
  dropout = trunk.residual_dropout, trunk.attention_dropout, trunk.embedding_dropout
  assert dropout == (0.1, 0.1, 0.1)
  assert config.data == WindowsConfig(batch_size=64, length=512)
  assert config.train.epochs == 100
  schedule = make_optimizer(config.optim, 3_600_000).schedule
  rates = [float(schedule(step)) for step in (0, 1000, 2000)]
  assert rates == pytest.approx([0, 1.25e-4, 2.5e-4], rel=1e-5)
  assert float(schedule(1_800_000)) == pytest.approx(1.25e-4, rel=1e-5)  # cosine
  assert float(schedule(3_600_000)) == pytest.approx(0, abs=1e-9)
  update = config.optim
  assert (update.optimizer, update.b1, update.b2, update.eps) == ("openai", 0.9, 0.999, 1e-8)
  assert (update.weight_decay, update.clip_norm) == (0.01, 1.0)


def test_fine_tuning_is_the_paper():
  config = load("finetune.py")
  optim, train, _ = with_defaults(config.optim, config.train, 116_534_784, steps_per_epoch=268)
  config = dataclasses.replace(config, optim=optim, train=train)
  assert (config.batch_size, config.train.epochs) == (32, 3)
  assert (config.lm_weight, config.head_dropout) == (0.5, 0.1)
  assert config.transfer_layers is None
  schedule = make_optimizer(config.optim, 10_000).schedule
  assert float(schedule(0)) == 0
  assert float(schedule(10)) == pytest.approx(0.5 * 6.25e-5 * (1 - 0.001), rel=1e-5)
  assert float(schedule(5_000)) == pytest.approx(0.5 * 6.25e-5, rel=1e-5)  # linear
  optim = config.optim
  assert (optim.optimizer, optim.weight_decay, optim.clip_norm) == ("openai", 0.01, 1.0)


@pytest.mark.parametrize(
  "family, task, examples, rule, peak",
  [
    ("bert", "cola", 8_551, ("bert", 0.01, 1.0), 2e-5),
    ("bert", "table", 800, ("bert", 0.01, 1.0), 2e-5),
    ("roberta", "cola", 8_551, ("fairseq", 0.1, 0.0), 1e-5),
    ("roberta", "stsb", 5_749, ("fairseq", 0.1, 0.0), 2e-5),
    ("roberta", "qqp", 363_846, ("fairseq", 0.1, 0.0), 1e-5),
    ("roberta", "mnli", 392_702, ("fairseq", 0.1, 0.0), 1e-5),
    ("roberta", "wnli", 635, ("fairseq", 0.1, 0.0), 1e-5),
    ("albert", "rte", 2_490, ("bert", 0.01, 1.0), 3e-5),
  ],
)
def test_encoders_are_fine_tuned_as_by_their_authors(family, task, examples, rule, peak):
  """The tables of updates have the epochs and the share of warm-up that the papers report, but for
  QQP's warm-up, of which fairseq's README has a quarter.
  """
  config = load("finetune_encoder.py", f"{family}:{task}")
  optim = config.optim
  assert (optim.optimizer, optim.weight_decay, optim.clip_norm) == rule
  assert config.lm_weight == 0
  steps = config.train.steps or config.train.epochs * examples // config.batch_size
  epochs = {"bert": 3, "roberta": 10, "albert": 10}[family]
  assert steps * config.batch_size / examples == pytest.approx(epochs, rel=0.05)
  warmup = optim.warmup_length(steps)
  share = 0.25 if task == "qqp" else {"bert": 0.1, "roberta": 0.06, "albert": 0.25}[family]
  assert warmup / steps == pytest.approx(share, 0.01)
  schedule = make_optimizer(optim, steps).schedule
  assert float(schedule(0)) == 0
  assert max(map(float, map(schedule, range(int(warmup) + 3)))) == pytest.approx(peak, rel=0.11)
  assert float(schedule(steps)) == pytest.approx(0, abs=1e-9)


def test_the_lstm_is_the_papers():
  trunk = load("lstm.py").trunk
  assert (trunk.units, trunk.context) == (2048, 512)


def test_the_small_config_has_the_papers_recipe():
  small, paper = load("gpt1.py", "small"), load("gpt1.py")
  assert small.trunk.residual_dropout == paper.trunk.residual_dropout
  for field in ("optimizer", "schedule"):
    assert getattr(small.optim, field) == getattr(paper.optim, field)
