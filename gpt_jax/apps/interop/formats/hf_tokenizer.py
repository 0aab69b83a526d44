"""The vocabulary of a transformers folder, in and out: tokenizer.json and tokenizer_config.json.

No text encodes to a special token: they are known to the template of a classifier's input only, and
transformers is told to read those it needs (the one it pads with) as ordinary text. But for a model
that fills masks, whose texts have to spell them.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.apps.interop.formats.hf.fields import TOKENIZER_FIELDS
from gpt_jax.apps.interop.tokenizer_json import find
from gpt_jax.apps.interop.tokenizers.tokenizer_json import SAVED, check_pieces
from gpt_jax.checkpoints.formats.folder import TOKENIZER
from gpt_jax.data.tokenizers.base import (
  METADATA,
  TRANSFORMERS_CONFIG,
  AddedToken,
  SpecialTokens,
  Tokenizer,
  load_released,
  load_tokenizer,
)
from gpt_jax.data.tokenizers.released import class_of, read_settings, spelled_tokens
from gpt_jax.errors import InputError
from gpt_jax.files import write_json
from gpt_jax.tasks.formats import Format

# Kinds of tokenizers that the files of a vocabulary alone decide; see class_of.
_CLASSES = "pretrained bert distilbert electra roberta gpt2 openaigpt albert t5".split()


class Template(NamedTuple):
  """The special tokens around a single text, and around a pair: their names, and "A" and "B"."""

  single: tuple[str, ...]
  pair: tuple[str, ...]
  types: bool = False  # whether token types tell the second text of a pair from the first


def template_of(format: Format, special: SpecialTokens) -> Template:
  # Texts of one negative id each: what `join` puts around them is the template.
  names = {i: name for name, i in special.items()} | {-1: "A", -2: "B"}

  def around(*texts: int) -> tuple[str, ...]:
    joined = format.join([np.array([text]) for text in texts], special)
    return tuple(names[i] for i in joined.tolist())

  return Template(around(-1), around(-1, -2), format.types((1, 1)) is not None)


GPT_TEMPLATE = Template(("start", "A", "extract"), ("start", "A", "delimiter", "B", "extract"))


def read_vocabulary(
  folder: str, vocab_size: int, load: Callable[[str], Tokenizer] = load_released
) -> Tokenizer:
  """Our vocabulary if there is one, since it names the word splitter; else that of transformers, by
  `load`, in which a text may spell the special tokens that the folder's tokenizer reads.
  """
  own = os.path.join(folder, TOKENIZER)
  if os.path.isdir(own):
    check_pieces(os.path.join(own, SAVED), vocab_size)
    return load_tokenizer(own)
  check_pieces(os.path.join(folder, METADATA), vocab_size)
  path = os.path.join(folder, TRANSFORMERS_CONFIG)
  if reason := TOKENIZER_FIELDS.unsupported(path, read_settings(folder, {})):
    raise InputError(f"{path}: {reason}")
  kind = class_of(folder)
  if kind and kind not in _CLASSES and not os.path.isfile(os.path.join(folder, METADATA)):
    raise InputError(
      f"{path}: tokenizer_class is that of {kind!r}: without a {METADATA} only one of "
      f"{', '.join(_CLASSES[1:])} is supported; transformers' AutoTokenizer writes one by "
      "save_pretrained"
    )
  tokenizer = load(folder)
  if "spelled" not in {field.name for field in dataclasses.fields(tokenizer)}:
    return tokenizer  # of a kind of ours
  return dataclasses.replace(tokenizer, spelled=spelled_tokens(folder, tokenizer))


def write_vocabulary(folder: str, tokenizer: Tokenizer) -> None:
  """Our vocabulary, and the files that transformers' own class of this kind reads."""
  tokenizer.save(os.path.join(folder, TOKENIZER))
  for name, content in tokenizer.transformers_files.items():
    with open(os.path.join(folder, name), "wb") as file:
      file.write(content)


def write_tokenizer(
  folder: str,
  tokenizer: Tokenizer,
  context: int,
  template: Template | None,
  fills_masks: bool = False,
) -> None:
  """Writes both files, or for a kind of tokenizer without a tokenizer.json one that says so.

  Args:
    context: the longest sequence, in tokens.
    template: what is to stand around a text, or a pair of them; None: they are encoded as
      `tokenizer.encode` does.
    fills_masks: whether a text that spells a special token inside the vocabulary means it.
  """
  writer = find(tokenizer.kind)
  if writer is None:
    # Without a class transformers would make up a tokenizer whose ids are all 0.
    absent = {"tokenizer_class": f"NotInTransformers: {tokenizer.kind}, see README.md"}
    write_json(os.path.join(folder, TRANSFORMERS_CONFIG), absent)
    return
  # A pipeline that generates decodes the continuation alone.
  parts = writer.describe(tokenizer, of_parts=template is None)
  special = _special_tokens(tokenizer)
  added = parts.get("added_tokens") or []
  has = {token["id"] for token in added}
  parts["added_tokens"] = [*added, *(token for token in special if token["id"] not in has)]
  content = {"version": "1.0", **parts, "truncation": None, "padding": None}
  content["post_processor"] = _post_processor(tokenizer, template) if template else None
  with open(os.path.join(folder, METADATA), "w", encoding="utf-8") as file:
    json.dump(content, file, ensure_ascii=False)
  config: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    # Without it GPT's classes would add embeddings of token types, and it was trained without.
    "model_input_names": ["input_ids", "attention_mask"],
    "model_max_length": context,
    "padding_side": "right",
    "truncation_side": "right",
    "clean_up_tokenization_spaces": False,
    "split_special_tokens": not (fills_masks or any(token.special for token in tokenizer.spelled)),
  }
  names = {token["id"]: token["content"] for token in special}
  for name in ("cls", "sep", "mask"):
    if name in tokenizer.special and tokenizer.special[name] in names:
      config[f"{name}_token"] = names[tokenizer.special[name]]
  config |= tokenizer.transformers_settings
  if template and template.types:
    config["model_input_names"].insert(1, "token_type_ids")
  if tokenizer.padding_id is not None:
    config["pad_token"] = tokenizer.spelling(tokenizer.padding_id)
  write_json(os.path.join(folder, TRANSFORMERS_CONFIG), config)


def _special_tokens(tokenizer: Tokenizer) -> list[dict[str, Any]]:
  """The tokenizer.json entries of the special tokens inside the vocabulary."""
  inside = tokenizer.special_inside
  # A mask takes the space before it, as that of the released RoBERTa, since pieces have theirs.
  mask = inside.get("mask")
  tokens = {i: AddedToken(tokenizer.piece(i), lstrip=i == mask) for i in inside.values()}
  if tokenizer.spelled:
    ids = {tokenizer.piece(i): i for i in range(tokenizer.vocab_size)}
    tokens |= {ids[token.content]: token for token in tokenizer.spelled}
  return [{"id": i, **tokens[i]._asdict()} for i in sorted(tokens)]


def _post_processor(tokenizer: Tokenizer, template: Template) -> dict[str, Any]:
  """The template in the words of tokenizer.json."""
  tokens: dict[str, Any] = {}

  def parts(names: tuple[str, ...]) -> list[dict[str, Any]]:
    items = []
    for n, name in enumerate(names):
      # The second text and what follows it.
      of_type = int(template.types and "B" in names[: n + 1])
      kind, text = "Sequence", name
      if name not in ("A", "B"):
        i = tokenizer.special[name]
        kind, text = "SpecialToken", tokenizer.spelling(i)
        tokens[text] = {"id": text, "ids": [i], "tokens": [text]}
      items.append({kind: {"id": text, "type_id": of_type}})
    return items

  return {
    "type": "TemplateProcessing",
    "single": parts(template.single),
    "pair": parts(template.pair),
    "special_tokens": tokens,
  }
