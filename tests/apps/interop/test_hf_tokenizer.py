"""tokenizer.json gives our ids for any text: prose, controls, marks, emoji, special tokens."""

import dataclasses
import itertools
import json
import random
import shutil

import pytest

from gpt_jax.apps.interop import tokenizer_json
from gpt_jax.apps.interop.formats import hf_tokenizer
from gpt_jax.apps.interop.tokenizer_json.sentencepiece import read_rules
from gpt_jax.data.storyworld import documents
from gpt_jax.data.tokenizers.base import load_released
from gpt_jax.data.tokenizers.gpt1 import REGEX
from gpt_jax.data.tokenizers.gpt2 import ByteBPETokenizer, GPT2Tokenizer
from gpt_jax.data.tokenizers.openai_files import BYTES
from gpt_jax.data.tokenizers.sentencepiece import SentencePieceTokenizer
from gpt_jax.data.tokenizers.wordpiece import WordPieceTokenizer

pytest.importorskip("tokenizers.models")
import tokenizers

pytestmark = pytest.mark.parity("released")

# The last merge would reach across words.
GPT2 = GPT2Tokenizer((*BYTES, "th", "eĠ", "<|endoftext|>"), (("t", "h"), ("e", "Ġ")))
PIECES = (
  *"abcdefghijklmnopqrstuvwxyzABCXYZ0123456789.,;:!?'\"()-_<>[]{}|/\\&%$#@*+=~^`",
  *map(chr, [*range(0x20), *range(0x7F, 0xB0)]),
  *" \u2003\u200b\u2028\u2029\u3000\ufeff\u2581",
  *map(chr, [*range(0x300, 0x370), 0x3099, 0x93C, 0xFE0F, 0x200D, 0x20E3]),
  *"😀👍🏽🇩🇪❤~～ıİſßΣςﬁ½…“”‘’«»—–",
  *("<start>", "<extract>", "<unk>", "<line>", "<|endoftext|>", "<0x0A>", "\n</w>", "--"),
  *("the", "The old barn", "aaaa", "......", "E\u0301\u0302", "\u1100\u1161\u11a8", "ㄱㅏ"),
  *("か\u3099", "ﷺ", "㎏", "\u0391\u0313\u0300\u0345", "\u1d35\u0307", "\U00011382\U000113c9"),
)


def nasty(count):
  """Texts of what tokenizers get wrong, the same at every call."""
  rng = random.Random(0)
  texts = ["", " ", "\n", " \n\n ", "\r\n", "\x01", "▁", "▁ ▁"]
  while len(texts) < count:
    parts = []
    for _ in range(rng.randrange(1, 30)):
      any_character = chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))))
      parts.append(rng.choice((rng.choice(PIECES), any_character, " ")))
    texts.append("".join(parts))
  return texts


def prose(count):
  return list(itertools.islice(documents(0), count))


def written(tokenizer, folder, classifies=False):
  """The package's tokenizer from the folder."""
  template = hf_tokenizer.GPT_TEMPLATE if classifies else None
  hf_tokenizer.write_tokenizer(str(folder), tokenizer, 64, template)
  return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def sentencepiece():
  return SentencePieceTokenizer.train([*prose(50), "aa aaa ... .... ----"], 700)


def check(tokenizer, theirs, texts):
  for text, ids in zip(texts, tokenizer.encode_many(texts), strict=True):
    assert theirs.encode(text).ids == ids.tolist(), ascii(text)


def test_sentencepiece(sentencepiece, tmp_path):
  texts = [*nasty(250), *prose(30)]
  check(sentencepiece, written(sentencepiece, tmp_path), texts)
  theirs = written(sentencepiece, tmp_path, classifies=True)
  for text in texts:
    ids = sentencepiece.encode(text).tolist()
    assert theirs.decode(ids) == sentencepiece.decode(ids), ascii(text)


def test_every_kind_of_entry_of_the_normalization_table(sentencepiece, tmp_path):
  """Also where one entry is followed by what would belong to a longer one."""
  from sentencepiece import sentencepiece_model_pb2

  proto = sentencepiece_model_pb2.ModelProto.FromString(sentencepiece.model)
  rules = read_rules(proto.normalizer_spec.precompiled_charsmap)
  assert rules["Ａ"] == "a" and rules["A\u0301"] == "á" and rules["\x01"] == "" and len(rules) > 2e5
  keys = sorted(rules)
  short = [key for key in keys if len(key) == 1]
  rng = random.Random(0)
  sample = [*rng.sample(keys, 1000), *rng.sample(short, 500)]
  texts = [f"x{key}\u0301{rng.choice(keys)} {key}" for key in sample]
  check(sentencepiece, written(sentencepiece, tmp_path), texts)


def test_gpt2(tmp_path):
  check(GPT2, written(GPT2, tmp_path), [*nasty(250), *prose(30)])


@pytest.fixture(scope="module", params=["wordpiece", "wordpiece, cased", "bytes"])
def with_special_pieces(request):
  """A vocabulary that holds its special tokens."""
  texts = [*prose(50), "Ünïcödé Straße 漢字 don't ((…)) [MASK] <mask>"]
  if request.param == "bytes":
    return ByteBPETokenizer.train(texts, 400)
  tokenizer = WordPieceTokenizer.train(texts, 400)
  if request.param == "wordpiece":
    return tokenizer
  pieces = [*tokenizer.pieces, *("T", "Ü", "##S", "é", "##é")]
  return dataclasses.replace(
    tokenizer, pieces=tuple(dict.fromkeys(pieces)), lower_case=False, strip_accents=False
  )


def test_vocabularies_with_special_pieces(with_special_pieces, tmp_path):
  theirs = written(with_special_pieces, tmp_path)
  theirs.encode_special_tokens = True  # split_special_tokens of tokenizer_config.json
  spelled = ["[CLS] a [MASK] b [SEP]", "<s> a <mask></s>", "Ünïcödé STRASSE 漢字 " + "x" * 101]
  check(with_special_pieces, theirs, [*nasty(250), *prose(30), *spelled])
  config = json.loads((tmp_path / "tokenizer_config.json").read_text())
  special = with_special_pieces.special
  for name in ("cls", "sep", "mask", "pad"):
    assert config[f"{name}_token"] == with_special_pieces.spelling(special[name])


@pytest.mark.parity
def test_autotokenizer_on_real_text(with_special_pieces, tmp_path, data_root):
  """CoLA, MRPC and a novel; then what transformers saves again is our vocabulary."""
  import transformers

  folder = tmp_path / "out"
  folder.mkdir()
  hf_tokenizer.write_vocabulary(str(folder), with_special_pieces)
  shutil.rmtree(folder / "tokenizer")
  hf_tokenizer.write_tokenizer(str(folder), with_special_pieces, 64, None)
  novel = sorted((data_root / "novels").glob("*.txt"))[0].read_text()[:100_000]
  texts = [novel, *novel.splitlines()]
  for path, columns in (("CoLA/train.tsv", [3]), ("MRPC/msr_paraphrase_train.txt", [3, 4])):
    lines = (data_root / "glue" / path).read_text("utf-8-sig").splitlines()[1:2000]
    texts += [line.split("\t")[column] for line in lines for column in columns]
  expected = [ids.tolist() for ids in with_special_pieces.encode_many(texts)]
  found = transformers.AutoTokenizer.from_pretrained(str(folder))
  assert found(texts, add_special_tokens=False)["input_ids"] == expected
  if isinstance(with_special_pieces, WordPieceTokenizer):
    bert = transformers.BertTokenizer.from_pretrained(str(folder))
    assert bert(texts, add_special_tokens=False)["input_ids"] == expected
  found.save_pretrained(str(tmp_path / "again"))
  back = load_released(str(tmp_path / "again"))
  assert back.special_inside == with_special_pieces.special_inside
  assert [ids.tolist() for ids in back.encode_many(texts[:500])] == expected[:500]


def test_gpt1_on_prose(openai_tokenizer, tmp_path):
  tokenizer = dataclasses.replace(openai_tokenizer, splitter=REGEX)
  theirs = written(tokenizer, tmp_path)
  texts = [
    "\"Don't,\" he said -- and left…\r\n\n\tMr. Wood can't!!  (It was 5:30 a.m.)",
    *prose(30),
  ]
  check(tokenizer, theirs, texts)
  ids = tokenizer.encode(texts[0]).tolist()
  assert theirs.decode(ids) == " " + tokenizer.decode(ids)  # it may continue a text
  assert written(tokenizer, tmp_path, True).decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_the_released_vocabularies(data_root, tmp_path, kind):
  tokenizer = load_released(str(data_root / f"{kind}_release"))
  check(tokenizer, written(tokenizer, tmp_path), prose(20))


def test_special_tokens_are_no_text(sentencepiece, tmp_path):
  theirs = written(sentencepiece, tmp_path, classifies=True)
  special = sentencepiece.special
  inside = sentencepiece.encode("<start> <extract>").tolist()
  assert max(inside) < special.start
  assert theirs.encode("<start> <extract>").ids == [special.start, *inside, special.extract]
  pair = [special.start, *inside, special.delimiter, *inside, special.extract]
  assert theirs.encode("<start> <extract>", "<start> <extract>").ids == pair
  config = json.loads((tmp_path / "tokenizer_config.json").read_text())
  assert config["split_special_tokens"] and config["pad_token"] == "<unk>"


def test_a_file_says_how_transformers_reads_a_tokenizer_of_a_new_kind(tmp_path, monkeypatch):
  class Letters(WordPieceTokenizer):
    kind = "letters"
    filler_id = 1
    transformers_settings = {"letters": True}
    transformers_files = {"letters.txt": b"a b"}

  code = tmp_path / "code"
  code.mkdir()
  (code / "letters.py").write_text(
    "from gpt_jax.apps.interop.tokenizer_json import wordpiece\n"
    "KINDS = ('letters',)\n"
    "def describe(tokenizer, of_parts):\n"
    "  return {**wordpiece.describe(tokenizer, of_parts), 'normalizer': None}\n"
  )
  monkeypatch.setattr(tokenizer_json, "__path__", [*tokenizer_json.__path__, str(code)])
  letters = Letters(("[UNK]", "a", "b"))
  hf_tokenizer.write_vocabulary(str(tmp_path), letters)
  hf_tokenizer.write_tokenizer(str(tmp_path), letters, 64, None)
  assert json.loads((tmp_path / "tokenizer.json").read_text())["normalizer"] is None
  config = json.loads((tmp_path / "tokenizer_config.json").read_text())
  assert config["letters"] and config["pad_token"] == "a" and "do_lower_case" not in config
  assert (tmp_path / "letters.txt").read_text() == "a b" and not (tmp_path / "vocab.txt").exists()


def test_without_a_tokenizer_json_transformers_is_told_so(tmp_path):
  """It would make up a tokenizer whose ids are all 0."""

  class Letters(WordPieceTokenizer):
    kind, transformers_files = "letters", {}

  letters = Letters(("[UNK]", "a", "b"))
  hf_tokenizer.write_vocabulary(str(tmp_path), letters)
  hf_tokenizer.write_tokenizer(str(tmp_path), letters, 64, None)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer", "tokenizer_config.json"]
  assert "NotInTransformers: letters" in (tmp_path / "tokenizer_config.json").read_text()
