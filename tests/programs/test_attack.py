"""Fine-tuning with adversarial training, and evaluation under attack."""

import dataclasses

import jax
import numpy as np
import pytest
from refused import refused
from shared_trainers import one_device_beside_finetuned  # noqa: F401
from tiny_runs import write_table

from gpt_jax.batch import Batch, Rows
from gpt_jax.checkpoints.load import load_model
from gpt_jax.files import read_json
from gpt_jax.inference.attacks import format_attack
from gpt_jax.inference.attacks.fgm import make_attacked_predictor
from gpt_jax.models.heads.tag import TagHead
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.parallel.mesh import MeshConfig, make_mesh
from gpt_jax.parallel.placement import replicate
from gpt_jax.programs import evaluate, finetune
from gpt_jax.programs.config_files import load_config
from gpt_jax.tasks.table import TableTask
from gpt_jax.training.adversarial import FGM, VirtualAdversarial
from gpt_jax.training.loop import TrainConfig
from gpt_jax.training.run_log import curve
from gpt_jax.training.unlabeled import Unlabeled

pytestmark = pytest.mark.e2e


def best(finetuned):
  return f"{finetuned.workdir}/seed_0/best"


def test_the_loss_rises_with_the_radius(finetuned):
  measures = evaluate.run(
    best(finetuned), finetuned.data_dir, attack="fgm", radius=["1e-6", 0.2, 1, "30"]
  )
  attack = measures["attack"]
  assert [at["radius"] for at in attack] == [1e-6, 0.2, 1, 30]
  assert attack[0]["loss"] == pytest.approx(measures["loss"], rel=1e-3)
  assert attack[0]["accuracy"] == measures["accuracy"]
  losses = [at["loss"] for at in attack]
  assert losses == sorted(losses) and losses[2] > losses[0] + 0.01
  assert attack[-1]["accuracy"] < measures["accuracy"]
  lines = format_attack(measures, attack).splitlines()
  assert lines[0].split() == ["radius", *(name for name in attack[0] if name != "radius")]
  assert [float(line.split()[0]) for line in lines[1:]] == [0, 1e-6, 0.2, 1, 30]


def test_an_attack_on_one_example_is_that_in_a_batch(finetuned):
  loaded = load_model(best(finetuned))
  task, mesh = loaded.task, make_mesh(MeshConfig())
  examples = task.examples(finetuned.data_dir, "dev")[:9]
  params = replicate(loaded.params, mesh)
  predict = make_attacked_predictor(loaded.model, mesh, [0.5, 2])

  def predictions(examples):
    return predict(params, task.encode(examples, loaded.tokenizer, 64), 8)

  alone = np.concatenate([predictions([example]) for example in examples[:2]])
  assert alone.shape == (2, 2, 2)
  np.testing.assert_allclose(predictions(examples)[:2], alone, atol=1e-5)


def test_an_attack_on_tags(finetuned):
  loaded = load_model(best(finetuned))
  encoded = loaded.task.encode(
    loaded.task.examples(finetuned.data_dir, "dev")[:5], loaded.tokenizer, 64
  )
  tags = [np.arange(len(text), dtype=np.int32) % 3 for text in encoded.texts]
  encoded = dataclasses.replace(encoded, tags=tags)
  trunk = TransformerConfig(loaded.spec.trunk.vocab_size, context=64, layers=1, width=16, heads=2)
  model = ModelConfig(trunk, (TagHead(3),)).build()
  mesh = make_mesh(MeshConfig())
  ids = np.zeros((1, 8), np.int32)
  batch = Batch(Rows(ids, ids))
  params = replicate(jax.jit(model.init)(jax.random.key(0), batch)["params"], mesh)
  found = make_attacked_predictor(model, mesh, [1e-6, 5])(params, encoded, 8)
  assert [values.shape for values in found] == [(n, 2, 3) for n in encoded.lengths[:, 0]]

  def loss(i):
    pairs = zip(found, encoded.truth, strict=True)
    return np.mean([-np.log(v[t >= 0, i, t[t >= 0]]).mean() for v, t in pairs])

  assert loss(1) > loss(0) + 1e-3


@pytest.mark.parametrize(
  "options, message",
  [
    ({"attack": "pgd", "radius": [1]}, "attack=pgd: must be fgm"),
    ({"attack": "fgm"}, "--attack and --radius: give both"),
    ({"radius": [1]}, "--attack and --radius: give both"),
    ({"attack": "fgm", "radius": ["0.5", "far"]}, "--radius: 'far' must be a number above 0"),
    ({"attack": "fgm", "radius": [0]}, "--radius: '0' must be a number above 0"),
    ({"attack": "fgm", "radius": ["nan"]}, "--radius: 'nan' must be a number"),
  ],
)
def test_bad_attacks(finetuned, options, message):
  refused(message, lambda: evaluate.run(best(finetuned), finetuned.data_dir, **options))


def test_a_language_model_has_no_labels_to_attack(finetuned):
  message = "is a language model without a head; it is for the labels"
  given = finetuned.pretrained, finetuned.data_dir
  refused(message, evaluate.run, *given, attack="fgm", radius=[1])


def test_fine_tuning_with_fgm(finetuned, tmp_path):
  config = dataclasses.replace(
    finetuned.config,
    methods=(FGM(radius=0.5),),
    train_examples=64,
    train=TrainConfig(epochs=1, log_every=1, keep_checkpoints=1),
  )
  workdir = str(tmp_path / "run")
  finetune.run(config, finetuned.data_dir, finetuned.pretrained, workdir)
  clean, attacked = (curve(workdir, name)[1] for name in ("task_loss", "adversarial_loss"))
  assert len(clean) == 4 and (np.array(attacked) > clean).all()
  saved = read_json(f"{workdir}/config.json")["config"]["methods"][0]
  assert saved == {"type": "fgm", "radius": 0.5, "weight": 1.0}
  assert load_model(f"{workdir}/best").spec == load_model(best(finetuned)).spec
  other = dataclasses.replace(config, methods=())  # another run
  given = finetuned.data_dir, finetuned.pretrained, workdir
  refused("adversarial", finetune.run, other, *given)


def test_fine_tuning_on_examples_without_labels(finetuned, tmp_path, capsys):
  config = dataclasses.replace(
    finetuned.config,
    methods=(VirtualAdversarial(radius=0.5), Unlabeled()),
    train_examples=32,
    train=TrainConfig(steps=2, log_every=1, keep_checkpoints=1),
  )
  workdir = str(tmp_path / "run")
  finetune.run(config, finetuned.data_dir, finetuned.pretrained, workdir)
  assert "train: 128 examples" in capsys.readouterr().err
  assert np.all(np.array(curve(workdir, "adversarial_loss")[1]) > 0)
  given = finetuned.data_dir, finetuned.pretrained, str(tmp_path / "other")
  for wrong in ({"methods": (FGM(), Unlabeled())}, {"train_examples": 0}):
    changed = dataclasses.replace(config, **wrong)
    refused("unlabeled: needs train_examples above 0", finetune.run, changed, *given)


def test_virtual_adversarial_training_of_numbers_is_refused(finetuned, tmp_path):
  data = write_table(tmp_path, [("the cat sat", str(i)) for i in range(20)])
  config = dataclasses.replace(
    finetuned.config, task=TableTask(kind="regression"), methods=(VirtualAdversarial(),)
  )
  message = "one class, and read it without windows; use fgm"
  given = data, finetuned.pretrained, str(tmp_path / "run")
  refused(message, finetune.run, config, *given)


def test_the_config_names_method_and_task():
  config = load_config("adversarial:virtual_adversarial:rte")
  assert config.methods == (VirtualAdversarial(),) and config.task.name == "rte"
  assert isinstance(load_config("adversarial:freelb:table").task, TableTask)
  for wrong in ("adversarial:rte", "adversarial:pgd:rte", "adversarial:fgm"):
    refused("must be METHOD:TASK", load_config, wrong)
