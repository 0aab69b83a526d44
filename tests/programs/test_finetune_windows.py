"""Fine-tuning on texts longer than the context, in windows or cut."""

import dataclasses
import random

import pytest
from shared_trainers import one_device_beside_finetuned  # noqa: F401

import gpt_jax
from gpt_jax.apps.report import visualize
from gpt_jax.checkpoints.load import load_model
from gpt_jax.errors import InputError
from gpt_jax.models.heads.windows import Windows
from gpt_jax.programs import evaluate, finetune, predict
from gpt_jax.tasks.formats import GPTFormat
from gpt_jax.tasks.task import BuiltinTask

pytestmark = pytest.mark.e2e


def write(folder, seed):
  """Rows whose animal, which decides the label, is behind the context of 64 tokens."""
  rng = random.Random(seed)
  for split, count in (("train", 128), ("dev", 24)):
    rows = ["text\tlabel"]
    for n in range(count):
      filler = rng.choices("the sat on mat and ran to old barn".split(), k=rng.randint(60, 90))
      animal, label = (("cat", "meows"), ("dog", "barks"))[n % 2]
      rows.append(f"{' '.join([*filler, *[animal] * 20])}\t{label}")
    (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
  return str(folder)


@pytest.mark.parametrize("windows", ["mean", "attention", ""])
def test_only_windows_read_the_end_of_a_long_text(finetuned, tmp_path, capsys, recwarn, windows):
  data, workdir = write(tmp_path, 0), str(tmp_path / "run")
  config = dataclasses.replace(
    finetuned.config,
    methods=(Windows(windows, 40),) if windows else (),
    pooling="mean" if windows == "mean" else "",
    lm_weight=0.0,
    optim=dataclasses.replace(finetuned.config.optim, learning_rate=3e-3),
    train=dataclasses.replace(finetuned.config.train, epochs=8),
  )
  finetune.run(config, data, f"{finetuned.workdir}/seed_0", workdir)
  told = "rows are longer than the context of 64 tokens"
  capsys.readouterr()
  rows = predict.run(f"{workdir}/best", f"{data}/dev.tsv", str(tmp_path / "out.tsv"))
  measures = evaluate.run(f"{workdir}/best", data, split="dev")
  accuracy = measures["accuracy"]
  warned = [str(warning.message) for warning in recwarn if told in str(warning.message)]
  assert len(warned) == capsys.readouterr().err.count(told) == (0 if windows else 1)
  if not windows:
    assert accuracy < 0.8
    return
  assert accuracy > 0.95
  # The checkpoint knows its windows, and a text is read the same in any company.
  assert load_model(f"{workdir}/best").format.stride == 40
  model = gpt_jax.load(f"{workdir}/best", warm_up=True)
  texts = [line.split("\t")[0] for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
  for text, row in zip(texts[:3], rows, strict=False):
    assert model.classify(text) == pytest.approx(row["probabilities"], abs=1e-5)
  assert model.truncated(texts[:3]) == [False] * 3
  with pytest.raises(InputError, match="read in windows of 64 tokens, and the page shows one"):
    visualize.run(f"{workdir}/best", str(tmp_path / "page.html"), texts=texts[:1])
  # A further fine-tuning begins with the format of a window.
  again = dataclasses.replace(config, methods=())
  finetune.run(again, data, f"{workdir}/best", str(tmp_path / "again"))
  assert load_model(str(tmp_path / "again")).format == GPTFormat()


def test_tasks_without_one_answer_a_row_are_refused(finetuned, tmp_path):
  config = dataclasses.replace(
    finetuned.config, task=BuiltinTask("story-tags"), methods=(Windows(),)
  )
  with pytest.raises(InputError, match="windows=mean: for tasks with one answer .* story-tags"):
    finetune.run(config, "", finetuned.pretrained, str(tmp_path / "run"))
