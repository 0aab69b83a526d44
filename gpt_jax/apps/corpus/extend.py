"""New tokens in a vocabulary, for frequent words that it splits, and in a model that reads it, each
the mean of its pieces' embeddings (Gee et al. 2022, Fast Vocabulary Transfer, section 3).
"""

import dataclasses
import importlib
import json
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from gpt_jax.apps.corpus import corpus
from gpt_jax.checkpoints.formats import find_format
from gpt_jax.checkpoints.saved import EXPORTS, SavedModel, read_model
from gpt_jax.config import to_json
from gpt_jax.data.passes import Passes, local_pool, take_survey
from gpt_jax.data.pieces import Corpus
from gpt_jax.data.sources.source import find_all
from gpt_jax.data.tokenizers.base import Tokenizer, load_tokenizer
from gpt_jax.data.tokenizers.openai_files import END_OF_WORD
from gpt_jax.errors import InputError
from gpt_jax.files import exists
from gpt_jax.models.model import parameter_shapes
from gpt_jax.programs.outputs import is_taken
from gpt_jax.programs.prepare import SETTINGS

MODEL = "model"  # the folder of the extended model, in that of the prepared text
_UNIGRAM, _BPE = 1, 2  # model_type in the file of a SentencePiece model
_PREFERRED = 0.1  # nats by which a unigram model prefers a new word to one piece more


class NewToken(NamedTuple):
  """A new token: its spelling, the ids of its pieces, and the pair that BPE merges into it."""

  piece: str
  parts: tuple[int, ...]
  pair: tuple[str, str] = ("", "")


def run(config: corpus.CorpusConfig, out: str, extend: str, add_tokens: int) -> str:
  """Extends a vocabulary by words of a text, and prepares that text with it, as corpus.run does.

  Args:
    config: names no other vocabulary.
    extend: the folder of a tokenizer, or of a model, see read_model.
    add_tokens: number of new tokens, those between the pieces and the words of BPE included.

  Returns:
    The folder of the extended model in `out`, an export that pretrain.run and finetune.run start
    from; "" if there is none.
  """
  if config.tokenizer or config.vocab_size or config.vocabulary != "sentencepiece":
    raise InputError(
      f"extend={extend}: brings a vocabulary; leave --tokenizer, --vocabulary and --vocab_size out"
    )
  if add_tokens < 1:
    raise InputError(f"add_tokens={add_tokens}: how many tokens to add to {extend}, 1 or more")
  if is_taken(out) and not exists(os.path.join(out, SETTINGS)):  # fail before the expensive part
    raise InputError(f"{out} is there already; choose another place")
  folder = re.sub(r"/(best|checkpoints/\d+)/?$", "", extend)
  files = (os.path.join(folder, name) for name in EXPORTS)
  model = read_model(extend) if any(map(exists, files)) else None  # or a tokenizer alone
  old = model.tokenizer if model else load_tokenizer(extend)
  sources = find_all(config.source)
  documents = Corpus(sources, config.text_column, np.empty((0, 2), np.int64))
  with local_pool(sources) as pool:  # words with the punctuation around them
    survey = take_survey(documents, Passes(pool), "bytes", config.vocabulary_share)
  counts = survey.words.words
  tokens, words = _choose(old, counts, add_tokens, extend)
  new = _extended(old, tokens)
  for word, ids in zip(words, _ids(new, words), strict=True):
    if len(ids) > 1:
      raise InputError(f"{extend}: this tokenizer makes no token of a new word such as {word!r}")
  export = _extended_model(model, new, tokens) if model else None
  before, after = _tokens_per_word(old, counts), _tokens_per_word(new, counts)
  print(
    f"{add_tokens:,} new tokens, ids {old.vocab_size} to {new.vocab_size - 1}: {len(words):,} "
    f"words ({', '.join(words[:5])}, …), {add_tokens - len(words):,} pieces that lead to them\n"
    f"tokens per word: {before:.3f} before, {after:.3f} after"
  )
  with tempfile.TemporaryDirectory() as folder:
    new.save(folder)
    corpus.run(dataclasses.replace(config, tokenizer=folder), out)
  if model is None or export is None:
    return ""
  written = os.path.join(out, MODEL)
  find_format("npz").save(written, *export, model.step, new)
  return written


def _choose(
  tokenizer: Tokenizer, counts: Mapping[str, int], number: int, name: str
) -> tuple[list[NewToken], list[str]]:
  """The new tokens, by their ids, and the words among them, which save most tokens for each; `name`
  says where the tokenizer is.
  """
  is_bpe = _has_merges(tokenizer, name)
  ids_of, count_of = _split_words(tokenizer, counts)

  def saved(word: str) -> int:
    # BPE needs a merge, and so a token, for each piece less; the others one token for a word.
    return count_of[word] * (1 if is_bpe else len(ids_of[word]) - 1)

  pieces = map(tokenizer.piece, range(tokenizer.vocab_size))
  taken: dict[str, NewToken | None] = dict.fromkeys(pieces)
  tokens: list[NewToken] = []
  words: list[str] = []
  for word in sorted(ids_of, key=lambda word: (-saved(word), word)):
    steps = _merges(tokenizer, ids_of[word])[0 if is_bpe else -1 :]
    further = [token for token in steps if token.piece not in taken]
    # Other words may begin alike. BPE may also have a piece, and not cut this word into it.
    fits = all(taken.get(token.piece, token) == token for token in steps)
    if fits and len(tokens) + len(further) <= number:
      taken |= {token.piece: token for token in further}
      tokens += further
      words.append(word)
      if len(tokens) == number:
        return tokens, words
  raise InputError(
    f"add_tokens={number}: the words of this text that {name} splits give {len(tokens)}; add "
    "fewer, or give more text"
  )


def _merges(tokenizer: Tokenizer, ids: Sequence[int]) -> list[NewToken]:
  """The tokens that lead from the pieces of a word to the word, from the end that is marked: none
  is in other words but at that end, and forms of a word share some.
  """
  order = list(zip(map(tokenizer.piece, ids), ids, strict=True))
  from_end = order[-1][0].endswith(END_OF_WORD)
  (whole, *parts), *others = reversed(order) if from_end else order
  steps = []
  for piece, i in others:
    pair = (piece, whole) if from_end else (whole, piece)
    whole = pair[0] + pair[1].removeprefix("##")
    parts.append(i)
    steps.append(NewToken(whole, tuple(parts), pair))
  return steps


def _extended(tokenizer: Any, tokens: Sequence[NewToken]) -> Any:
  """The tokenizer with tokens at the ids after its own; special tokens above them move up."""
  pieces, fields = tuple(token.piece for token in tokens), vars(tokenizer)
  if "merges" in fields:
    merges = tokenizer.merges + tuple(token.pair for token in tokens)
    return dataclasses.replace(tokenizer, pieces=tokenizer.pieces + pieces, merges=merges)
  if "pieces" in fields:
    return dataclasses.replace(tokenizer, pieces=tokenizer.pieces + pieces)
  if "model" in fields:
    proto = _proto(tokenizer)
    scores = [piece.score for piece in proto.pieces]
    is_bpe = proto.trainer_spec.model_type == _BPE
    for number, token in enumerate(tokens, start=1):
      # BPE merges two pieces that spell a third one, the one of the best score first.
      likely = sum(scores[i] for i in token.parts) + _PREFERRED * (len(token.parts) - 1)
      proto.pieces.add(piece=token.piece, score=min(scores) - number if is_bpe else likely)
    return dataclasses.replace(tokenizer, model=proto.SerializeToString(deterministic=True))
  content, first = json.loads(tokenizer.content), tokenizer.vocab_size
  vocab = content["model"]["vocab"]
  # An added token that is no piece would be numbered anew, after the new ones.
  vocab.update((added["content"], added["id"]) for added in content.get("added_tokens") or ())
  vocab.update(zip(pieces, range(first, first + len(pieces)), strict=True))
  return dataclasses.replace(tokenizer, content=json.dumps(content).encode())


def _has_merges(tokenizer: Any, name: str) -> bool:
  """Whether merges make words of pieces, as in BPE, and not whole words. InputError: neither."""
  # By what it holds: a vocabulary of another app's kind has no class here.
  kind, fields, algorithm = tokenizer.kind, vars(tokenizer), None
  if fields.keys() & {"pieces", "merges"}:  # WordPiece has no merges
    return "merges" in fields
  if "model" in fields:
    algorithm = _proto(tokenizer).trainer_spec.model_type
  elif "content" in fields:
    model = json.loads(tokenizer.content)["model"]
    kind, algorithm = f"{model['type']} in tokenizer.json", model.get("continuing_subword_prefix")
  if algorithm not in (_UNIGRAM, _BPE, "##"):  # the last is WordPiece's
    raise InputError(
      f"{name}: a vocabulary of kind {kind} cannot be extended; WordPiece, SentencePiece and "
      "OpenAI's files of merges can"
    )
  return algorithm == _BPE


def _proto(tokenizer: Any) -> Any:
  # Generated code of the sentencepiece package, without type hints.
  proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
  proto.ParseFromString(tokenizer.model)
  return proto


def _split_words(
  tokenizer: Tokenizer, counts: Mapping[str, int]
) -> tuple[dict[str, list[int]], dict[str, int]]:
  """The ids and the count of each word, as the tokenizer normalizes it, that it splits."""
  texts = list(filter(_letters, counts))
  ids_of: dict[str, list[int]] = {}
  count_of: dict[str, int] = {}
  for text, ids in zip(texts, _ids(tokenizer, map(_letters, texts)), strict=True):
    word = tokenizer.decode(ids).strip()
    # Unknown characters decode to punctuation; bytes, spelled <0xF0>, merge with nothing.
    in_bytes = any(tokenizer.piece(i).startswith("<0x") for i in ids.tolist())
    if len(ids) > 1 and _letters(word) == word and not in_bytes:
      ids_of[word] = ids.tolist()
      count_of[word] = count_of.get(word, 0) + counts[text]
  return ids_of, count_of


def _letters(text: str) -> str:
  """A word without the punctuation after it; "" if it is not all letters."""
  categories = "".join(unicodedata.category(character)[0] for character in text)
  word = re.fullmatch("([LM]+)[PS]*", categories)  # letters, their marks; punctuation, symbols
  return text[: word.end(1)] if word else ""


def _tokens_per_word(tokenizer: Tokenizer, counts: Mapping[str, int]) -> float:
  sizes = list(map(len, _ids(tokenizer, counts)))
  return float(np.average(sizes, weights=list(counts.values())))


def _ids(tokenizer: Tokenizer, words: Iterable[str]) -> list[np.ndarray]:
  """The ids of each word after another one."""
  return tokenizer.encode_many([f" {word}" for word in words])


def _extended_model(
  model: SavedModel, tokenizer: Tokenizer, tokens: Sequence[NewToken]
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The parameters and the metadata of a model with new tokens."""
  trunk, size, end = model.spec.trunk, model.spec.trunk.vocab_size, tokenizer.vocab_size
  larger = dataclasses.replace(trunk, vocab_size=end).with_pieces(tokenizer)
  # What has a row for each id has another shape in a model of twice the rows.
  more = dataclasses.replace(trunk, vocab_size=size + trunk.rows)
  shapes = parameter_shapes(dataclasses.replace(model.spec, trunk=more))
  arrays = flatten_dict(model.params, sep="/")
  for name, x in arrays.items():
    if x.shape != shapes[name]:
      arrays[name] = table = np.zeros((larger.rows, *x.shape[1:]), np.float32)
      table[:size] = x[:size]
      table[size:end] = [x[list(token.parts)].mean(axis=0) for token in tokens]
      table[end : end + trunk.special_tokens] = x[size : size + trunk.special_tokens]
  spec = dataclasses.replace(model.spec, trunk=larger)
  meta = {**model.meta, "model": to_json(spec), "tokenizer_hash": tokenizer.hash}
  return unflatten_dict(arrays, sep="/"), meta
