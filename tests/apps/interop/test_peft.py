"""Adapters in PEFT's layout: what peft computes with them is ours, in and out."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
from bert_trunk import bert_trunk
from refused import refused

import gpt_jax
from gpt_jax.apps.interop.formats import hf
from gpt_jax.apps.interop.formats import peft as peft_format
from gpt_jax.apps.interop.formats.hf import read as hf_read
from gpt_jax.checkpoints.load import load_model
from gpt_jax.config import to_json
from gpt_jax.errors import InputError
from gpt_jax.models.adapter import Adapter
from gpt_jax.models.model import ModelConfig
from gpt_jax.models.transformer import TransformerConfig
from gpt_jax.programs import export, finetune

safetensors = pytest.importorskip("safetensors.numpy")
TEXTS = ["the cat sat on the mat", "dog ran", "to the old barn a dog and a cat ran"]


@pytest.fixture(scope="module")
def run(finetuned, tiny_tokenizer, make_run, tmp_path_factory):
  """Folders of an adapter's run, its export and, in transformers' format, its base; its config."""
  folder = tmp_path_factory.mktemp("peft")
  vocabulary = tiny_tokenizer.with_special("cls", "sep", "mask", "pad")
  spec = ModelConfig(bert_trunk(width=32).with_vocabulary(vocabulary), (), "bidirectional")
  base = str(folder / "base")
  meta = {"model": to_json(spec), "tokenizer_hash": vocabulary.hash}
  meta |= {"trained_special": list(vocabulary.special.names)}
  meta |= {"sequence_format": {"type": "bert_format"}}
  hf.save(base, make_run.params_of(spec, 1), meta, 0, vocabulary)
  return folder, tune_and_export(finetuned, base, folder)


def tune_and_export(finetuned, base, folder):
  """Fine-tunes an adapter of a base in the folder's `run`, and exports it to `peft`; its config."""
  adapter = Adapter(rank=2, targets="kernel")
  train = dataclasses.replace(finetuned.config.train, epochs=1)
  config = dataclasses.replace(finetuned.config, lm_weight=0.0, methods=(adapter,), train=train)
  finetune.run(config, finetuned.data_dir, str(base), str(folder / "run"))
  export.run(f"{folder}/run/best", str(folder / "peft"), "peft")
  return config


@pytest.fixture
def out(run, tmp_path):
  """A copy of the export."""
  return shutil.copytree(run[0] / "peft", tmp_path / "peft")


def check_probabilities(folder, expected):
  for one, other in zip(gpt_jax.load(str(folder)).classify(TEXTS), expected, strict=True):
    assert one == pytest.approx(other, abs=1e-6)


def check_theirs(theirs, ours, first, last):
  """A model of torch gives our probabilities of texts between two special tokens."""
  import torch

  special = ours.loaded.tokenizer.special
  for text, expected in zip(TEXTS, ours.classify(TEXTS), strict=True):
    ids = [special[first], *ours.loaded.tokenizer.encode(text), special[last]]
    with torch.no_grad():
      found = theirs(torch.tensor([ids])).logits.softmax(-1)[0].tolist()
    assert found == pytest.approx([*expected.values()], abs=1e-5)


def configure(folder, **changes):
  """The settings of an adapter, with these changed, as in folders of others."""
  (folder / "sha256.json").unlink(missing_ok=True)
  settings = json.loads((folder / "adapter_config.json").read_text()) | changes
  (folder / "adapter_config.json").write_text(json.dumps(settings, sort_keys=True))
  return settings


def test_an_export_is_read_back(run, out, tmp_path):
  folder, _ = run
  expected = gpt_jax.load(f"{folder}/run/best").classify(TEXTS)
  check_probabilities(out, expected)
  os.rename(folder / "base", tmp_path / "moved")
  refused(r"an adapter of .*base: .*; or link it as .*/peft/base", load_model, str(out))
  os.symlink(tmp_path / "moved", out / "base")
  check_probabilities(out, expected)
  os.rename(tmp_path / "moved", folder / "base")
  sums = (out / "sha256.json").read_bytes()
  configure(out, use_dora=True)
  refused("use_dora is True: only False is supported", load_model, str(out))
  (out / "sha256.json").write_bytes(sums)
  refused(r"adapter_config.json: damaged, sha256.json has another", load_model, str(out))


@pytest.mark.parametrize(
  ("settings", "arrays", "message"),
  [
    ({"r": None}, {}, "adapter_config.json: r is None: should be a number above 0"),
    ({"lora_alpha": "x"}, {}, "lora_alpha is 'x': should be"),
    ({"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights=pissa_niter_4 changes"),
    ({"lora_alpha": 10**400}, {}, "lora_alpha is 10+: should be a number above 0, below"),
    ({"lora_alpha": 1e8}, {"lora_B.weight": np.full((32, 2), 3e38)}, "query: the change is"),
    ({"alora_invocation_tokens": [5]}, {}, r"alora_invocation_tokens is \[5\]: only an adapter"),
    ({"of_a_later_version": True}, {}, "of_a_later_version is True: only an adapter without it"),
    ({"modules_to_save": ["pooler"]}, {}, "holds no pooler.dense.bias, and modules_to_save names"),
    ({"beta1": 0.9, "peft_type": "ADALORA"}, {}, "peft_type is 'ADALORA': only 'LORA' is"),
    ({"lora_bias": True}, {}, "lora_bias is True: only False is supported"),
    ({"r": 64}, {}, r"lora_A.weight is \[2, 32\], and should be \[64, 32\]"),
    ({}, {"lora_B.bias": np.zeros(32)}, "lora_B.bias: only lora_A.weight"),
    ({}, {"lora_A.weight": np.zeros((2, 31))}, r"is \[2, 31\], and should be \[2, 32\]"),
    ({}, {"lora_B.weight": np.full((32, 2), np.nan)}, "adapter_model.* holds numbers that are not"),
  ],
)
def test_what_is_no_lora_is_refused(out, settings, arrays, message):
  configure(out, **settings)
  stored = safetensors.load_file(out / "adapter_model.safetensors")
  (first, *_) = (name for name in stored if name.endswith("query.lora_A.weight"))
  for name, x in arrays.items():
    stored[first.replace("lora_A.weight", name)] = x.astype(np.float32)
  safetensors.save_file(stored, out / "adapter_model.safetensors")
  refused(message, load_model, str(out))


def test_another_revision_of_the_base_is_refused(run, out):
  expected = gpt_jax.load(str(out)).classify(TEXTS)
  configure(out, revision="v2")
  check_probabilities(out, expected)  # of a folder, which is of one revision
  configure(out, base_model_name_or_path="owner/bert")
  message = r"revision is 'v2': only 'main' of owner/bert .* link the folder .* as .*/peft/base"
  refused(message, load_model, str(out))
  (out / "base").symlink_to(run[0] / "base")
  check_probabilities(out, expected)


def test_an_adapter_of_a_t5_is_refused(out):
  configure(out)
  (out / "base").mkdir()
  (out / "base/config.json").write_text('{"model_type": "t5"}')
  (out / "base/model.safetensors").touch()
  refused("an adapter of a T5 is not supported", load_model, str(out))


def test_weights_of_older_versions(out):
  torch = pytest.importorskip("torch")
  configure(out)
  expected = gpt_jax.load(str(out)).classify(TEXTS)
  stored = out / "adapter_model.safetensors"
  arrays = {name: torch.tensor(x) for name, x in safetensors.load_file(stored).items()}
  torch.save(arrays, out / "adapter_model.bin")
  stored.unlink()
  check_probabilities(out, expected)


def test_what_is_of_no_use_is_refused_before_weights_are_read(run, out, monkeypatch):
  config = json.loads((out / "gpt_jax.json").read_text())
  (out / "gpt_jax.json").write_text(json.dumps(config | {"base_identity": "step 0, checksum 0"}))
  (out / "sha256.json").unlink()
  link = out / "base"
  link.symlink_to(run[0] / "base")
  refused("has step 0, .* and should have step 0, checksum 0; or link it", load_model, str(out))
  monkeypatch.setattr(hf_read, "to_ours", lambda *_: pytest.fail("weights are read"))

  def check(_):
    raise InputError("of no use")

  refused("of no use", load_model, str(out), check=check)


@pytest.mark.attack
def test_a_changed_folder_is_noticed(run, out):
  weights = out / "adapter_model.safetensors"
  good = weights.read_bytes()
  weights.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
  refused("adapter_model.safetensors: damaged, sha256.json", load_model, str(out))
  weights.write_bytes(good)
  shutil.copytree(run[0] / "base", out / "base")
  load_model(str(out))
  (out / "base/sha256.json").unlink()
  stored = safetensors.load_file(out / "base/model.safetensors")
  safetensors.save_file({name: x * 2 for name, x in stored.items()}, out / "base/model.safetensors")
  refused("an adapter of .*/base: has step 0, .* and should have", load_model, str(out))
  shutil.rmtree(out / "base")
  (out / "sha256.json").unlink()
  stored = safetensors.load_file(weights)
  (first, *_) = (name for name in stored if "query.lora_A" in name)
  safetensors.save_file({**stored, first.replace("bert.", ""): stored[first]}, weights)
  refused("query.lora_A.weight twice, with and without bert", load_model, str(out))
  weights.unlink()
  os.mkfifo(weights)
  refused("adapter_model.safetensors: .*not a regular file", load_model, str(out))


def test_the_base_of_a_run_goes_along(run, finetuned, tmp_path):
  """Neither peft nor its reader here knows a run's folder."""
  folder, config = run
  config = config.with_methods(Adapter(rank=2))
  finetune.run(config, finetuned.data_dir, finetuned.pretrained, str(tmp_path / "run"))
  out = tmp_path / "peft"
  export.run(f"{tmp_path}/run/best", str(out), "peft")
  check_probabilities(out, gpt_jax.load(f"{tmp_path}/run/best").classify(TEXTS))
  assert configure(out)["base_model_name_or_path"] == f"{out}/base"


@pytest.mark.parity
def test_every_field_of_peft_is_on_a_list(tmp_path):
  peft = pytest.importorskip("peft")
  written = peft.LoraConfig(r=4, target_modules=["query"]).to_dict()
  unread = set(
    "layer_replication megatron_config velora_config alora_invocation_tokens use_qalora "
    "monteclora_config target_parameters use_bdlora arrow_config kasa_config "
    "ensure_weight_tying".split()
  )
  assert written.keys() - peft_format._KNOWN - peft_format._PLAIN.keys() <= unread
  for name in unread & written.keys():
    assert not written[name]  # else each adapter of others would be refused
    settings = {"r": 4, "lora_alpha": 4, name: {"x": 1}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    refused(f"{name} is .*: only an adapter without it", load_model, str(tmp_path))


def test_what_peft_does_not_hold_is_refused(run, finetuned, tmp_path):
  folder, config = run
  with pytest.raises(InputError, match="a whole model; give the run of an adapter"):
    export.run(f"{finetuned.workdir}/seed_0", str(tmp_path / "out"), "peft")
  config = config.with_methods(Adapter(rank=2, trained="/bias$"))
  finetune.run(config, finetuned.data_dir, f"{folder}/base", str(tmp_path / "run"))
  with pytest.raises(InputError, match="holds LoRA alone, and this adapter also changes .*bias"):
    export.run(f"{tmp_path}/run", str(tmp_path / "out"), "peft")


@pytest.mark.parity
def test_peft_computes_the_same(run, out):
  peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")

  folder, _ = run
  base = transformers.BertForSequenceClassification.from_pretrained(folder / "base", num_labels=2)
  theirs = peft.PeftModel.from_pretrained(base, str(out)).eval()
  check_theirs(theirs, gpt_jax.load(f"{folder}/run/best"), "cls", "sep")


@pytest.fixture(scope="module", params=["post", "pre"])
def gpt(request, finetuned, tiny_tokenizer, make_run, tmp_path_factory):
  """Folders of an adapter's run on a GPT, of its base and of its export; transformers' class."""
  folder = tmp_path_factory.mktemp("gpt")
  sizes = {"context": 64, "layers": 1, "width": 32, "heads": 2}
  trunk = TransformerConfig(tiny_tokenizer.vocab_size, norm=request.param, **sizes)
  language_model = make_run(folder / "lm", ModelConfig(trunk))
  export.run(language_model, str(folder / "base"), "hf")
  tune_and_export(finetuned, folder / "base", folder)
  return folder, {"post": "OpenAIGPT", "pre": "GPT2"}[request.param]


def test_an_export_of_a_gpt_is_read_back(gpt, tmp_path):
  folder, _ = gpt
  check_probabilities(folder / "peft", gpt_jax.load(f"{folder}/run/best").classify(TEXTS))
  copy = shutil.copytree(folder / "peft", tmp_path / "peft")
  ((table, ids),) = configure(copy)["trainable_token_indices"].items()
  for wrong in (ids[1:], [-1, *ids[1:]], [*ids[:-1], 10**9], [*ids[:-1], "a"], None):
    configure(copy, trainable_token_indices={table: wrong})
    refused(f"trainable_token_indices: {table} should have an id for", load_model, str(copy))


def test_a_table_without_its_output_is_refused(gpt, tmp_path):
  """peft saves it as a module of its own, and the output goes on as it was."""
  copy = shutil.copytree(gpt[0] / "peft", tmp_path / "peft")
  ((table, ids),) = configure(copy)["trainable_token_indices"].items()
  stored = safetensors.load_file(copy / "adapter_model.safetensors")
  name = next(name for name in stored if "trainable_tokens_delta" in name)
  rows = stored.pop(name)
  stored[name.partition(".token_adapter")[0] + ".weight"] = np.zeros((min(ids), rows.shape[1]))
  safetensors.save_file(stored, copy / "adapter_model.safetensors")
  configure(copy, trainable_token_indices=None, task_type="CAUSAL_LM")
  refused(f"holds {table}.weight: only an output tied to it is", load_model, str(copy))


@pytest.mark.parity
def test_peft_computes_the_same_of_a_gpt(gpt):
  pytest.importorskip("peft"), pytest.importorskip("transformers")

  folder, name = gpt
  text = (folder / "peft" / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
  scope: dict = {}
  assert f"{name}ForSequenceClassification" in text
  exec(text.replace('"FOLDER"', repr(str(folder / "peft"))), scope)  # as its card says
  check_theirs(scope["model"].eval(), gpt_jax.load(f"{folder}/run/best"), "start", "extract")


@pytest.mark.parity
def test_an_adapter_of_others(run, tmp_path):
  peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
  import torch

  folder, _ = run
  base = transformers.BertForSequenceClassification.from_pretrained(folder / "base", num_labels=3)
  settings = peft.LoraConfig("SEQ_CLS", r=3, lora_alpha=5, target_modules=["query", "value"])
  theirs = peft.get_peft_model(base, settings)
  with torch.no_grad():
    for parameter in theirs.parameters():
      if parameter.requires_grad:
        parameter += 0.2 * torch.randn_like(parameter)
  theirs.eval().save_pretrained(tmp_path / "peft")
  found = gpt_jax.load(str(tmp_path / "peft"))
  assert found.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
  copy = shutil.copytree(folder / "base", tmp_path / "peft/base")
  (copy / "sha256.json").unlink(missing_ok=True)
  named = {"id2label": dict(enumerate(["city", "river", "hill"]))}
  tree = json.loads((copy / "config.json").read_text()) | named
  (copy / "config.json").write_text(json.dumps(tree))
  assert gpt_jax.load(str(tmp_path / "peft")).labels == ("city", "river", "hill")
  check_theirs(theirs, found, "cls", "sep")


@pytest.mark.parity
def test_files_beside_an_adapter_go_before_those_of_the_base(tmp_path):
  peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
  import torch

  base, out = tmp_path / "theirs", tmp_path / "peft"
  vocabulary = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "Cat", "dog"])
  (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
  sizes = {"vocab_size": len(vocabulary), "hidden_size": 32, "intermediate_size": 128}
  sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
  transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(base)
  transformers.BertTokenizer.from_pretrained(tmp_path).save_pretrained(base)
  settings = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
  model = peft.get_peft_model(transformers.BertModel.from_pretrained(base), settings).eval()
  model.save_pretrained(out)

  def check(pool, do_lower_case):
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=do_lower_case)
    with torch.no_grad():
      hidden = model(**theirs("Cat dog", return_tensors="pt")).last_hidden_state[0]
    ours = gpt_jax.load(str(out)).embed(["Cat dog"])[0]
    np.testing.assert_allclose(ours, pool(hidden).numpy(), atol=1e-5)
    return theirs

  theirs = check(lambda x: x.mean(0), True)
  theirs.save_pretrained(out)  # as trainers do
  check(lambda x: x.mean(0), True)
  transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=False).save_pretrained(out)
  check(lambda x: x.mean(0), False)
  kinds = [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling")]
  modules = [
    {"path": path, "type": kind} for path, kind in zip(("", "1_Pooling"), kinds, strict=True)
  ]
  (out / "modules.json").write_text(json.dumps(modules))
  (out / "1_Pooling").mkdir()
  (out / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
  check(lambda x: x[0], False)
  (out / "tokenizer.json").write_text("{}")
  refused("^[^ ]*/peft: no tokenizer here", gpt_jax.load, str(out))
