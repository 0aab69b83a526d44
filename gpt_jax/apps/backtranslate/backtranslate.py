"""Writes synthetic training pairs for a translation: real text of its target language, and what a
model of the other direction makes of it (Sennrich et al. 2016, arXiv 1511.06709).
"""

import collections
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax.checkpoints.load import LoadedModel, load_model
from gpt_jax.data.file_kinds import write_table
from gpt_jax.errors import InputError
from gpt_jax.files import atomic_file
from gpt_jax.inference.beam import check_search
from gpt_jax.inference.generate import written_answers
from gpt_jax.inference.stream import Sampling
from gpt_jax.parallel.processes import log
from gpt_jax.programs.outputs import check_out
from gpt_jax.tasks.answers.translation import Pair
from gpt_jax.tasks.readers import BlankRow, Table, no_column, read_every_line

FILLER = "_"  # in the place of a word that noise has removed
_MOVES = 3  # places that noise moves a word by, at most
_BATCH = 2048  # texts translated between two reports


def run(
  checkpoint: str,
  source: str,
  out: str,
  *,
  back: str = "",
  column: str = "",
  original: str = "",
  beams: int = 1,
  temperature: float = 0.0,
  top_k: int = 0,
  noise: float = 0.0,
  tag: str = "<BT>",
  longest: int = 250,
  ratio: float = 1.5,
  seed: int = 0,
  overwrite: bool = False,
) -> dict[str, int]:
  """Translates every line of a text, and writes the pairs that pass the filters.

  With `back` it writes a table with one text of each row translated there and back (CERT, 2020).

  Args:
    checkpoint: see load_model; translates from the language of the text.
    source: text to translate, a sentence a line; with `back` a table.
    out: TSV file to write, with a column for each language, named as in the checkpoint's task: the
      tag and the translation, and the line. With `back` it has the columns of the table.
    back: model of the way back: write paraphrases of a table's rows; empty: there is none.
    column: with `back`, the table's text to paraphrase.
    original: with `back`, a further column for the text as it was, for contrastive learning.
    beams: candidates of a beam search; 1: one token after the other.
    temperature: 1 samples translations from the model, 0 is greedy.
    top_k: tokens to sample among; 0: all.
    noise: probability that a word of a translation is removed, and that it is replaced by a filler;
      words also move by up to 3 places (Edunov et al. 2018, section 3); 0: none.
    tag: word before each translation, marks it as synthetic (Caswell et al. 2019); paraphrases get
      none; empty: nothing does.
    longest: leave out pairs with more words on a side.
    ratio: leave out pairs whose longer side has more than so many times the words of the shorter.
    seed: of samples and noise.
    overwrite: replace an existing output.

  Returns:
    How many lines were read and kept, and how many left out for which reason.
  """
  check_search(beams, 1.0)
  sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed)
  if beams > 1 and temperature:
    raise InputError(f"temperature={temperature:g}: a search of beams={beams} does not sample")
  faults = {
    "back and column: paraphrases need both, pairs neither": bool(back) != bool(column),
    f"original={original}: paraphrases alone have such a column": original and not back,
    f"noise={noise:g}: must be from 0 to 0.5": not 0 <= noise <= 0.5,
    f"ratio={ratio:g}: must be from 1 to 100": not 1 <= ratio <= 100,
    # That of a text is higher, and has 32 bits.
    f"seed={seed}: must be from 0 to {2**31}": not 0 <= seed <= 2**31,
    f"tag={tag!r}: must be one word, or empty": tag.split() not in ([], [tag]),
    f"out={out}: should be a .tsv file": not out.endswith(".tsv"),
  }
  for fault, is_there in faults.items():
    if is_there:
      raise InputError(fault)
  check_out(out, overwrite)
  models = [load_model(path, check=_check) for path in (checkpoint, back) if path]
  task = models[0].meta["task"]  # that of the checkpoint: the pairs are for the other direction
  if back:
    _check_way_back(back, models[1].meta["task"], task)
    rows, changed, tag = _table(source, column, original), column, ""
  else:
    column, changed = task["source"], task["target"]
    rows = [{changed: "", column: line} for _, line in read_every_line(source)]
  texts = [_cell(row[column]) for row in rows]
  counts = collections.Counter(read=len(texts), blank=texts.count(""))
  pairs: list[list[str]] = [list(rows[0])] if rows else []
  with atomic_file(out) as file:
    for number, translation in translated(models, texts, beams, sampling):
      problem = why_left_out(texts[number], translation, longest, ratio)
      counts[problem or "kept"] += 1
      if problem:
        continue
      words = noised((translation or "").split(), noise, seed, number)
      cells = rows[number] | {changed: " ".join([*tag.split(), *words])}
      own = [str(cells.get(name, "")) for name in rows[0]]  # of a table as they were
      pairs.append(own if back else list(map(_cell, own)))
    summary = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    if not counts["kept"]:
      raise InputError(f"{source}: no pair can be kept: {summary or 'it is empty'}")
    write_table(file, pairs, "\t")
  log(f"{out}: {summary}")
  return dict(counts)


def _check_way_back(back: str, own: dict, task: dict) -> None:
  """Refuses a second model whose task is not the first one's in the other direction."""
  way_back = task["target"], task["source"]
  if (own["source"], own["target"]) != way_back:
    raise InputError(
      f"back={back}: translates from {own['source']} to {own['target']}, and the way back is "
      f"from {way_back[0]} to {way_back[1]}"
    )


def why_left_out(text: str, translation: str | None, longest: int, ratio: float) -> str:
  """Why a pair is left out, see run; "": it is kept."""
  if translation is None:
    return "without an end"
  shorter, longer = sorted((len(text.split()), len(translation.split())))
  if not shorter:
    return "empty"
  if longer > longest:
    return "too long"
  if longer > ratio * shorter:
    return "of unequal length"
  return "copied" if text == translation else ""


def translated(
  models: Sequence[LoadedModel], texts: Sequence[str], beams: int, sampling: Sampling
) -> Iterator[tuple[int, str | None]]:
  """The number of each text that is not blank, and what all models in turn make of it; None: it has
  no end.
  """
  numbers = [number for number, text in enumerate(texts) if text]
  for begin in range(0, len(numbers), _BATCH):
    batch = numbers[begin : begin + _BATCH]
    # A text's seed, of the first model, is that of its number among those with words.
    own = dataclasses.replace(sampling, seed=sampling.seed + begin)
    written: dict[int, str | None] = {number: texts[number] for number in batch}
    for model in models:
      usable = {number: text for number, text in written.items() if text}
      written = dict.fromkeys(batch)
      if usable:  # a model may have ended none of its texts
        pairs = [Pair(text, None, f"line {text[:40]!r}") for text in usable.values()]
        encoded: Any = model.encode(model.task, pairs)
        generator, params = model.generator(), jax.device_put(model.params)
        translations = written_answers(
          generator, params, encoded, model.tokenizer, sampling=own, beams=beams
        )
        written |= dict(zip(usable, translations, strict=True))
    yield from written.items()
    log(f"{begin + len(batch):,} of {len(numbers):,} texts translated")


def _cell(value: Any) -> str:
  """A value in one cell of one line."""
  return re.sub(r"[\t\r\n]+", " ", str(value)).strip()


def _table(path: str, column: str, original: str) -> list[dict[str, Any]]:
  """The rows of a table that are not blank, with their texts in a further column if it is named."""
  rows = []
  for record in Table(path).records((column,)):
    if type(record) is BlankRow:  # tables may have some between their rows
      continue
    if not isinstance(record, dict):
      raise record
    if column not in record:
      raise no_column(path, column, record)
    if original and original in record:
      raise InputError(f"original={original}: is a column of {path}; name another")
    rows.append(record)
    row = f"{path}: row {len(rows)}"
    if record.keys() != rows[0].keys():
      raise InputError(f"{row}: has the columns {', '.join(record)}, not {', '.join(rows[0])}")
    for name, value in record.items():
      if not isinstance(value, str) and (name == column or type(value) not in (int, float)):
        raise InputError(f"{row}: {name} = {value!r}: must be text")
  if original:
    for record in rows:
      record[original] = record[column]
  return rows


def _check(loaded: LoadedModel) -> None:
  if loaded.task is None or loaded.task.kind != "translation":
    kind = loaded.without_task if loaded.task is None else f"a model of {loaded.task.name}"
    raise InputError(f"checkpoint={loaded.path}: {kind}; it should be fine-tuned on text pairs")


def noised(words: Sequence[str], noise: float, seed: int, number: int) -> list[str]:
  """The words of text `number` without some, with a filler in place of others, in nearly the same
  order; noise is the probability of each.
  """
  if not noise:
    return list(words)
  rng = np.random.default_rng([seed, number])
  kept = np.array(words)[rng.random(len(words)) >= noise]
  if not len(kept):
    kept = np.array(words[:1])  # at least one: a pair has no empty side
  filled = np.where(rng.random(len(kept)) < noise, FILLER, kept)
  # By sorting places of which each is moved by less than 4, no word passes more than 3 others.
  order = np.argsort(np.arange(len(filled)) + rng.uniform(0, _MOVES + 1, len(filled)))
  return filled[order].tolist()
