"""The profile of a run: the trace, the names of the parts of a step, refused spans."""

import contextlib
import dataclasses
import glob
import gzip
import json
import shutil
from types import SimpleNamespace

import jax
import pytest

from gpt_jax.data.windows import WindowsConfig
from gpt_jax.errors import InputError
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import finetune, pretrain
from gpt_jax.training.hooks import Hook, RunContext, StepContext
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.profile import parse_span

CONFIG = pretrain.PretrainConfig(
  trunk=TransformerConfig(context=16, layers=1, width=16, heads=2),
  data=WindowsConfig(batch_size=8, length=16),
  train=TrainConfig(steps=5, log_every=5, checkpoint_every=3),
)


@pytest.fixture(scope="module")
def with_names():
  """Keeps programs apart that differ in their parts' names only, as the launcher does."""
  name = "jax_compilation_cache_include_metadata_in_key"
  before = getattr(jax.config, name)
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


def files(workdir, ending):
  return glob.glob(f"{workdir}/profile/plugins/profile/*/*.{ending}")


def steps_in(workdir):
  (path,) = files(workdir, "trace.json.gz")
  events = json.loads(gzip.open(path).read())["traceEvents"]
  numbers = [event["args"]["step_num"] for event in events if event.get("name") == "train"]
  return sorted(map(int, numbers))


@pytest.fixture(scope="module")
def plain(with_names, prepared, tmp_path_factory):
  """A run without a trace: workdir, results."""
  workdir = str(tmp_path_factory.mktemp("plain") / "run")
  return workdir, pretrain.run(CONFIG, prepared, workdir)


@pytest.mark.slow
def test_a_trace_names_steps_and_their_parts_and_changes_no_number(
  plain, prepared, tmp_path, capsys
):
  workdir = str(tmp_path / "run")
  assert pretrain.run(CONFIG, prepared, workdir, profile=parse_span("2:4")) == plain[1]
  assert steps_in(workdir) == [3, 4]
  (path,) = files(workdir, "xplane.pb")
  with open(path, "rb") as file:
    content = file.read()
  for part in (b"/embedding/", b"block_0/attention/", b"block_0/mlp/", b"optimizer/"):
    assert part in content, part
  assert b"jvp(loss)/language/" in content and b"transpose(jvp(loss))/language/" in content
  err = capsys.readouterr().err
  assert "profile of step 3 to step 4: " in err
  assert f"xprof --logdir={workdir}/profile" in err
  assert files(workdir, "trace.json.gz")[0] in err and "ui.perfetto.dev" in err


@pytest.mark.e2e
def test_each_run_of_a_fine_tuning_has_its_trace(finetuned, tmp_path):
  train = dataclasses.replace(finetuned.config.train, epochs=1)
  config = dataclasses.replace(finetuned.config, train=train)
  workdir = str(tmp_path / "run")
  where = (finetuned.data_dir, finetuned.pretrained)
  finetune.run(config, *where, workdir, seeds=2, profile=parse_span("1:2"))
  assert [steps_in(f"{workdir}/seed_{seed}") for seed in (0, 1)] == [[2], [2]]
  with pytest.raises(InputError, match=r"profile=1:9: .*STOP <= 8"):
    finetune.run(config, *where, str(tmp_path / "other"), profile=parse_span("1:9"))


@pytest.mark.parametrize("text", ["3", "a:b", "3:3", "4:3", "0:3", "-1:3", "3:6", "1:2:3"])
def test_spans_that_a_run_does_not_have(prepared, tmp_path, text):
  with pytest.raises(InputError, match=f"^profile={text}: must be START:STOP"):
    pretrain.run(CONFIG, prepared, str(tmp_path / "run"), profile=parse_span(text))
  assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_is_past_its_first_steps(plain, prepared, tmp_path):
  workdir = str(tmp_path / "run")
  shutil.copytree(plain[0], workdir)
  with pytest.raises(InputError, match=r"made 5 updates already; START must be above 5"):
    pretrain.run(CONFIG, prepared, workdir, profile=parse_span("4:5"))


def run(all_hooks, total_steps=9):
  for step in range(1, total_steps + 1):
    for hook in all_hooks:
      if hook.is_due(step, total_steps, False):
        hook.run(StepContext(step, total_steps, False, None, None, {}))


@pytest.mark.parametrize(
  "last, said",
  [
    (1, "no profile: the run ended before step 3"),
    (3, "profile of step 3 to the end of the run: "),
  ],
)
def test_a_run_that_ends_early(tmp_path, last, said):
  """The steps until then are written, and another trace may begin."""

  def stop(_):
    raise KeyboardInterrupt

  lines, workdir = [], str(tmp_path)
  reporter = SimpleNamespace(say=lines.append, paused=contextlib.nullcontext)
  ends, context = Hook(stop, lambda step: step == last), RunContext(workdir, 0, reporter)
  with pytest.raises(KeyboardInterrupt):
    with parse_span("2:9").traced([ends], context) as all_hooks:
      run(all_hooks)
  assert lines[0].startswith(said)
  assert bool(files(workdir, "xplane.pb")) == (last == 3)
  with parse_span("1:2").traced([], context) as all_hooks:
    run(all_hooks)
  assert lines[1].startswith("profile of step 2 to step 2: ")
