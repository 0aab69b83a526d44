"""The tokenizer of a folder that others saved: its rules, added tokens, what a text may spell."""

import json
import shutil
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refused import refused

from gpt_jax.apps.interop.formats import hf_tokenizer
from gpt_jax.apps.interop.formats.hf.gpt import FAMILIES
from gpt_jax.apps.interop.formats.hf_tokenizer import read_vocabulary
from gpt_jax.data.tokenizers.base import load_tokenizer
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer, GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer
from gpt_jax.errors import InputError

WORDS = "the cat sat on the mat, and the dog ran to the old red barn by the sea that reads <[()]>"
MARK = {"content": "[E1]", "special": True}
LOOSE = {"content": "Old Barn", "special": False, "normalized": True, "rstrip": True}
CLASSES = {
  "Bert": lambda: WordPieceTokenizer.train([WORDS], 62),
  "Roberta": lambda: ByteBPETokenizer.train([WORDS], 290),
  "GPT2": lambda: GPT2Tokenizer((*BYTES, "th", "<|endoftext|>"), (("t", "h"),)),
}
LAYOUTS = ("none", "decoder", "legacy", "single file", "beside a single file", "split")
SPELLED = ("[E1]", "Old Barn", "[SEP]", "</s>", "<s>", "<mask>", "[MASK]", "<|endoftext|>", "[UNK]")
TEXTS = st.lists(
  st.sampled_from((*SPELLED, " ", "  ", "\n", "\t", "the", "cat", "old barn", ",", "é", "昨", "X"))
)


def write(folder, kind, layout):
  """A vocabulary as released, or with two added tokens as versions of transformers write them."""
  for name, content in CLASSES[kind]().transformers_files.items():
    (folder / name).write_bytes(content)
  config = {"tokenizer_class": f"{kind}Tokenizer"}
  size = CLASSES[kind]().vocab_size
  if layout in ("decoder", "split"):
    config["added_tokens_decoder"] = {str(size): MARK, str(size + 1): LOOSE}
  if layout == "split":
    config["split_special_tokens"] = True
  if layout == "legacy":
    (folder / "added_tokens.json").write_text(json.dumps({"Old Barn": size + 1, "[E1]": size}))
    special = json.dumps({"additional_special_tokens": ["[E1]"]})
    (folder / "special_tokens_map.json").write_text(special)
  (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(
  scope="module", params=[(k, layout) for k in CLASSES for layout in LAYOUTS], ids=str
)
def both(request, tmp_path_factory):
  """transformers' tokenizer of a folder, and ours."""
  transformers = pytest.importorskip("transformers")
  kind, layout = request.param
  folder = tmp_path_factory.mktemp("theirs")
  write(folder, kind, "decoder" if "single" in layout else layout)
  theirs = getattr(transformers, f"{kind}Tokenizer").from_pretrained(folder)
  if layout == "single file":
    folder = tmp_path_factory.mktemp("saved")
  if "single" in layout:
    theirs.save_pretrained(folder)
  size = CLASSES[kind]().vocab_size + 2 * (layout != "none")
  load = FAMILIES[1].vocabulary if kind == "GPT2" else None
  return theirs, read_vocabulary(str(folder), size, *([load] if load else [])), size


@pytest.mark.parity
@settings(max_examples=40, deadline=None)
@given(parts=TEXTS)
@example(["the ", "[E1]", " cat\n", "<mask>", "\t", "[MASK]", "<|endoftext|>", "Old Barn", "  "])
def test_ids_are_those_of_their_tokenizer(both, parts):
  theirs, ours, size = both
  text = "".join(parts)
  assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False).input_ids
  assert ours.vocab_size == size


FLAGS = {"content": "<mask>", "lstrip": True, "__type": "AddedToken"}


@pytest.mark.parity
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(
  "kind, settings, part, of_file",
  [
    ("Bert", {"do_lower_case": False}, "normalizer", {}),
    ("Bert", {"do_lower_case": True}, "normalizer", {"lowercase": False}),
    ("Bert", {}, "normalizer", {"lowercase": False, "strip_accents": False}),
    ("Bert", {"strip_accents": False}, "normalizer", {}),
    ("Roberta", {"add_prefix_space": True}, "pre_tokenizer", {}),
    ("Roberta", {}, "pre_tokenizer", {"add_prefix_space": True}),
    ("Roberta", {"mask_token": FLAGS}, "pre_tokenizer", {}),
    ("GPT2", {"eos_token": "th"}, "pre_tokenizer", {}),
    ("Bert", {}, "normalizer", {"type": "Lowercase"}),
    ("Bert", {}, "pre_tokenizer", {"type": "WhitespaceSplit"}),
    ("Bert", {}, "model", {"max_input_chars_per_word": 2}),
    ("DistilBert", {"do_lower_case": False}, "normalizer", {}),
    ("Roberta", {}, "normalizer", {"type": "Lowercase"}),
    ("Roberta", {}, "pre_tokenizer", {"type": "WhitespaceSplit"}),
    ("GPT2", {}, "normalizer", {"type": "Lowercase"}),
    ("PreTrained", {"do_lower_case": False}, "normalizer", {}),
  ],
)
def test_a_class_sets_its_steps_whatever_the_file_has(
  tmp_path, kind, settings, part, of_file, single
):
  """A tokenizer.json whose settings were changed beside it, or the other way round."""
  transformers = pytest.importorskip("transformers")
  write(tmp_path, kind if kind in CLASSES else "Bert", "none")
  path = tmp_path / "tokenizer.json"
  names = [file.name for file in tmp_path.iterdir() if file.name != "tokenizer_config.json"]
  if single or kind not in CLASSES:
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    for name in names:
      (tmp_path / name).unlink()
    content = json.loads(path.read_text())
    content[part] = (content[part] or {}) | of_file
    path.write_text(json.dumps(content))
  name = "PreTrainedTokenizerFast" if kind == "PreTrained" else f"{kind}Tokenizer"
  config = {"tokenizer_class": name, **settings}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  load = FAMILIES[1].vocabulary if kind == "GPT2" else None
  ours = read_vocabulary(str(tmp_path), 1000, *([load] if load else []))
  for text in ("the CAT é sat", "a <mask>, [MASK]", "the <|endoftext|>"):
    assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False).input_ids, text


@pytest.mark.parity
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(
  "part, of_file",
  [
    ("pre_tokenizer", {"add_prefix_space": True}),
    ("pre_tokenizer", None),
    ("model", {"ignore_merges": True}),
    ("normalizer", {"type": "Lowercase"}),
  ],
)
def test_a_general_class_has_the_rules_of_the_file(tmp_path, part, of_file, single):
  transformers = pytest.importorskip("transformers")
  write(tmp_path, "GPT2", "none")
  transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
  for name in ("vocab.json", "merges.txt") if single else ():
    (tmp_path / name).unlink()
  content = json.loads((tmp_path / "tokenizer.json").read_text())
  if part == "model":  # a piece that no merge makes
    content["model"]["vocab"]["the"] = 258
  content[part] = of_file and (content[part] or {}) | of_file
  (tmp_path / "tokenizer.json").write_text(json.dumps(content))
  # Whatever the model, and its class by default.
  (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
  settings = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  ours = read_vocabulary(str(tmp_path), 1000, FAMILIES[1].vocabulary)
  for text in ("the CAT é sat", " the", "the the\nthe <|endoftext|>"):
    assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False).input_ids, text


@pytest.mark.parity
@pytest.mark.parametrize(
  "settings", [{"do_lower_case": False}, {"keep_accents": True}, {}], ids=str
)
def test_albert_has_the_normalizer_of_its_settings(tmp_path, settings):
  transformers = pytest.importorskip("transformers")
  special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
  pieces = [*special, "▁Cat", "▁cat", "▁caf", "é", "e", '"', "▁"]
  scored = [(piece, -float(i)) for i, piece in enumerate(pieces)]
  transformers.AlbertTokenizer(vocab=scored).save_pretrained(tmp_path)
  config = {"tokenizer_class": "AlbertTokenizer", **settings}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  ours = read_vocabulary(str(tmp_path), len(pieces))
  for text in ("Cat", "café  cat", "``cat''"):
    assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False).input_ids, text


@pytest.mark.parity
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", ["additional_special_tokens", "added_tokens_decoder"])
def test_tokens_without_an_id_are_refused(tmp_path, name, single):
  """transformers appends them as it reads the folder."""
  transformers = pytest.importorskip("transformers")
  write(tmp_path, "Bert", "none")
  if single:
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink()
  elif name == "added_tokens_decoder":
    pytest.skip("beside a vocab.txt they have their ids")
  size = CLASSES["Bert"]().vocab_size
  tokens = {"additional_special_tokens": ["[E1]"], "added_tokens_decoder": {str(size): MARK}}
  config = {"tokenizer_class": "BertTokenizer", name: tokens[name]}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  refused(r"names the token '\[E1\]', which the vocabulary", read_vocabulary, str(tmp_path), 1000)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  theirs.save_pretrained(tmp_path)
  ours = read_vocabulary(str(tmp_path), 1000)
  assert ours.encode("cat [E1]").tolist() == theirs("cat [E1]", add_special_tokens=False).input_ids


@pytest.mark.parity("released")
def test_a_class_that_splits_by_a_program_of_its_own(tmp_path):
  write(tmp_path, "Bert", "none")
  settings = json.dumps({"tokenizer_class": "BertJapaneseTokenizer"})
  for name in ("tokenizer_config.json", "config.json"):
    (tmp_path / name).write_text(settings)
    with pytest.raises(InputError, match="tokenizer_class is that of 'bertjapanese': without a"):
      read_vocabulary(str(tmp_path), 100)
    (tmp_path / name).write_text("{}")


@pytest.mark.parity("released")
def test_cased_pieces_do_not_outweigh_settings(tmp_path):
  """transformers lower-cases where settings are silent; Google's folders have none."""
  (tmp_path / "vocab.txt").write_text("[UNK]\n[SEP]\nCat\ncat\n")
  assert load_tokenizer(tmp_path).encode("Cat").tolist() == [2]
  (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
  assert load_tokenizer(tmp_path).encode("Cat").tolist() == [3]


@pytest.mark.parity("released")
def test_pieces_that_settings_name_need_no_merge(tmp_path):
  """Such as those that a vocabulary was trained with."""
  write(tmp_path, "GPT2", "none")
  vocabulary = json.loads((tmp_path / "vocab.json").read_text())
  (tmp_path / "vocab.json").write_text(json.dumps({**vocabulary, "<pad>": len(vocabulary)}))
  refused("ends before '<pad>' is made", read_vocabulary, str(tmp_path), 1000)
  (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')
  tokenizer = read_vocabulary(str(tmp_path), 1000)
  assert tokenizer.encode("<pad>").tolist() == [len(vocabulary)]


@pytest.fixture(scope="module", params=["with", "without"])
def gpt1(request, tmp_path_factory, openai_tokenizer):
  """transformers' GPT-1 tokenizer with two added tokens, and ours of its folder."""
  transformers = pytest.importorskip("transformers")
  folders = [tmp_path_factory.mktemp(name) for name in ("theirs", "saved")]
  for name, content in openai_tokenizer.transformers_files.items():
    (folders[0] / name).write_bytes(content)
  theirs = transformers.OpenAIGPTTokenizer.from_pretrained(folders[0])
  theirs.add_special_tokens({"additional_special_tokens": ["<sep>", "_start_"]})
  folder = folders[request.param == "without"]
  theirs.save_pretrained(folder)
  size = openai_tokenizer.vocab_size + 2
  return theirs, read_vocabulary(str(folder), size, FAMILIES[0].vocabulary), folder


@pytest.mark.parity
@settings(max_examples=60, deadline=None)
@given(
  text=st.lists(st.sampled_from((*"thea .,'\n\t-éß昨", "the", "u.s.", "'s", "<sep>", "<unk>")))
)
@example(
  text=["What's the U.S. GDP? e-mail: a'b\n", "_start_", "the\u200bt ﬁ &amp; don't", "<sep>"]
)
def test_gpt1_folders_of_others_split_as_their_tokenizer(gpt1, text):
  theirs, ours, _ = gpt1
  text = "".join(text)
  assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False).input_ids


@pytest.mark.parity
def test_openais_release_keeps_its_words(gpt1, openai_tokenizer):
  """Its published folder has transformers' tokenizer.json, too, but names no class."""
  _, ours, folder = gpt1
  assert ours.kind == "huggingface"
  if not (folder / "vocab.json").exists():
    return
  (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # spaCy may be missing
    released = load_tokenizer(folder)
  assert released.kind == openai_tokenizer.kind
  assert released.pieces[:-2] == openai_tokenizer.pieces


@pytest.mark.parity("released")
@pytest.mark.parametrize("kind", CLASSES)
def test_added_tokens_are_saved_with_the_vocabulary(kind, tmp_path):
  write(tmp_path, kind, "decoder")
  tokenizer = read_vocabulary(str(tmp_path), 1000)
  text = "the [E1] cat Old Barn"
  tokenizer.save(tmp_path / "saved")
  saved = load_tokenizer(tmp_path / "saved")
  assert saved == tokenizer and saved.encode(text).tolist() == tokenizer.encode(text).tolist()
  assert tokenizer.vocab_size - 2 in saved.encode(text)
  assert saved.piece(tokenizer.vocab_size - 1) == "Old Barn"
  # What is prepared with the folder has its ids, and spells no special token.
  plain = load_tokenizer(tmp_path)
  assert plain.hash == tokenizer.hash and tokenizer.vocab_size - 2 not in plain.encode(text)
  hf_tokenizer.write_tokenizer(str(tmp_path / "saved"), tokenizer, 48, None)
  shutil.copy(tmp_path / "vocab.txt", tmp_path / "saved") if kind == "Bert" else None
  config = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
  assert config["split_special_tokens"] is False


@pytest.mark.parity("released")
@pytest.mark.parametrize(
  "content",
  [{"added_tokens_decoder": {"a": {}}}, {"mask_token": 5}, {"extra_special_tokens": 1}],
)
def test_damaged_added_tokens_are_one_line(tmp_path, content):
  write(tmp_path, "Bert", "none")
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
  with pytest.raises(InputError, match="^[^\n]*the added tokens in its tokenizer_config.json, "):
    read_vocabulary(str(tmp_path), 100)
