"""A TF-IDF classifier as an ONNX graph of texts, whose features are those of scikit-learn.

onnxruntime runs it, whose Tokenizer is an operation of its own. onnxruntime's lower case needs a
locale that small images lack, so the graph has its own: a Σ at the end of a word becomes σ, not ς.

Letters: N texts, T pieces of the longest, F features, K classes.
"""

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.apps.interop.formats.function import DESCRIPTION, SOFTMAX
from gpt_jax.checkpoints.formats.folder import write_sums
from gpt_jax.config import from_json
from gpt_jax.errors import InputError, require
from gpt_jax.files import atomic_folder, write_json

_FILE = "model.onnx"

# Strings [N] of each column -> one lower-case string with a space at each end. Terms of characters
# have spaces at their ends alone, so that none reaches over a space from one word to the next.
_TEXTS = """
<ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 3, "com.microsoft": 1]>
tfidf (INPUTS) => (float[N, K] logits) {
  zero = Constant <value_int=0> ()
  one = Constant <value_int=1> ()
  unit = Constant <value_float=1.0> ()
  space = Constant <value_strings=[" "]> ()
  nothing = Constant <value_strings=[""]> ()
  JOINED
  begun = StringConcat (space, TEXT)
  padded = StringConcat (begun, space)
  letters = com.microsoft.Tokenizer <mark=0, mincharnum=1, pad_value="", tokenexp="(?s)."> (padded)
  small = ai.onnx.ml.LabelEncoder <default_string=""> (letters)
  is_small = Equal (small, nothing)
  lower = Where (is_small, letters, small)
  first = Gather <axis=1> (lower, zero)
  shape = Shape (lower)
  longest = Gather <axis=0> (shape, one)
  lowered = Loop (longest, , first) <
    body = join (int64 at, bool go, string[N] before) => (bool go_on, string[N] after) {
      go_on = Identity (go)
      letter = Gather <axis=1> (lower, at)
      after = StringConcat (before, letter)
    }
  >
  FEATURES
  weighed = MatMul (features, kernel)
  logits = Add (weighed, bias)
}
"""
# Each kind of terms: (1 + log of a term's count) * its rarity, in rows of length 1: float32 [N, F].
_FEATURES = """
  KIND_pieces = com.microsoft.Tokenizer <mark=0, mincharnum=1> (lowered)
  KIND_numbers = ai.onnx.ml.LabelEncoder (KIND_pieces)
  KIND_counts = TfIdfVectorizer <mode="TF", max_skip_count=0> (KIND_numbers)
  KIND_is_there = Min (KIND_counts, unit)
  KIND_at_least_one = Max (KIND_counts, unit)
  KIND_log = Log (KIND_at_least_one)
  KIND_more = Add (KIND_log, unit)
  KIND_frequency = Mul (KIND_more, KIND_is_there)
  KIND_weights = Mul (KIND_frequency, KIND_rarity)
  KIND_features = LpNormalization <axis=-1, p=2> (KIND_weights)
"""
_PATTERNS = {"char_wb": ("(?s).", " "), "word": (r"[\p{L}\p{N}_]+", "")}  # RE2's; and the padding


def save(folder: str, params: dict[str, Any], meta: dict) -> None:
  """Writes a folder of the graph and its description, model.json, atomically.

  params, meta: those of a TfidfClassifier; the logits are divided by the temperature.
  """
  task = from_json(meta["task"]).build("")
  names = {f"text_{number}": column for number, column in enumerate(task.columns, start=1)}
  temperature, of_rows = meta.get("temperature", 1.0), {"dtype": "string", "shape": ["N"]}
  model = _make_model(params["tfidf"].terms, params["linear"], list(names), temperature)
  description = {
    "file": _FILE,
    "inputs": [{"name": name, "column": column, **of_rows} for name, column in names.items()],
    "outputs": [{"name": "logits", "dtype": "float32", "shape": ["N", len(task.labels)]}],
    "use": f"For onnxruntime: the texts of each column as they are. {SOFTMAX}",
    "task": task.name,
    "labels": task.labels,
    "temperature": temperature,
  }
  with atomic_folder(folder) as partial:
    with open(os.path.join(partial, _FILE), "wb") as file:
      file.write(model.SerializeToString())
    write_json(os.path.join(partial, DESCRIPTION), description)
    write_sums(partial)


def _make_model(
  terms: dict[str, Any], linear: Any, names: Sequence[str], temperature: float
) -> Any:
  """The graph above, with its constants and the settings of its nodes."""
  onnx = require("onnx", "format=onnx", "onnx", "onnx")
  if not terms:
    raise InputError("format=onnx: this classifier knows no term, so all its answers are equal")
  text, joined = names[0], ""
  for name in names[1:]:  # as TfidfClassifier.encode joins them
    joined += f"{name}_before = StringConcat ({text}, line)\n"
    joined += f"{name}_joined = StringConcat ({name}_before, {name})\n"
    text = f"{name}_joined"
  capitals = [c for c in map(chr, range(sys.maxunicode)) if c.lower() != c]
  settings: dict[str, Any] = {  # of the nodes, by their outputs
    "small": {"keys_strings": capitals, "values_strings": [c.lower() for c in capitals]}
  }
  constants = {
    "kernel": np.float32(linear.kernel / temperature),
    "bias": np.float32(linear.bias / temperature),
    "line": np.array(["\n"], object),
  }
  features = ""
  for kind, (of_kind, rarity) in terms.items():
    constants[f"{kind}_rarity"] = np.float32(rarity)
    pattern, padding = _PATTERNS[kind]
    settings[f"{kind}_pieces"] = {"tokenexp": pattern, "pad_value": padding}
    grams = [term.split(" ") if kind == "word" else list(term) for term in of_kind]
    settings[f"{kind}_numbers"], settings[f"{kind}_counts"] = _counting(grams)
    features += _FEATURES.replace("KIND", kind)
  features += f"features = Concat <axis=1> ({', '.join(f'{kind}_features' for kind in terms)})"
  source = _TEXTS.replace("INPUTS", ", ".join(f"string[N] {name}" for name in names))
  for place, value in (("JOINED", joined), ("TEXT", text), ("FEATURES", features)):
    source = source.replace(place, value)
  model = onnx.parser.parse_model(source.replace("K]", f"{len(linear.bias)}]"))
  for node in model.graph.node:
    for name, value in settings.get(node.output[0], {}).items():
      node.attribute.append(onnx.helper.make_attribute(name, value))
  for name, array in constants.items():
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
  return model


def _counting(grams: list[list[str]]) -> tuple[dict[str, Any], dict[str, Any]]:
  """Settings of two nodes: one numbers the pieces of n-grams, the next one counts n-grams."""
  numbers = {piece: n for n, piece in enumerate(sorted({*itertools.chain(*grams)}))}
  pool: list[int] = []
  begins, columns, lengths = [], [], {len(gram) for gram in grams}
  for length in range(1, 1 + max(lengths)):
    begins.append(len(pool))
    for column, gram in enumerate(grams):
      if len(gram) == length:
        pool += [numbers[piece] for piece in gram]
        columns.append(column)
  if " " in numbers:  # any white space ends a word
    numbers |= dict.fromkeys(filter(str.isspace, map(chr, range(sys.maxunicode))), numbers[" "])
  numbering: dict[str, Any] = {"default_int64": -1}  # of a piece that is in no term
  numbering |= {"keys_strings": [*numbers], "values_int64s": [*numbers.values()]}
  counting: dict[str, Any] = {"min_gram_length": min(lengths), "max_gram_length": max(lengths)}
  counting |= {"ngram_counts": begins, "ngram_indexes": columns, "pool_int64s": pool}
  return numbering, counting
