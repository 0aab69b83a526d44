"""Finds the texts that are nearest to a query by a model's embeddings.

The first command makes an index, and given again embeds only what is new. With --judged it measures
retrieval on judged queries, in BEIR's layout.

python launch/search.py --checkpoint=DIR --index=DIR --source=FILES [--text_column=NAME]
python launch/search.py --checkpoint=DIR --index=DIR --query=TEXT [--query=TEXT] [--count=10]
python launch/search.py --checkpoint=DIR --index=DIR --queries=FILE
python launch/search.py --checkpoint=DIR --judged=DIR [--split=test]
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("search")
CHECKPOINT = command_line.define_checkpoint()
INDEX = flags.DEFINE_string("index", "", "folder of the index")
SOURCE = flags.DEFINE_string(
  "source", DEFAULTS["source"], "texts to index: text files, one text each, or tables, one a row"
)
TEXT_COLUMN = flags.DEFINE_string("text_column", DEFAULTS["text_column"], "the text of a table")
QUERY = flags.DEFINE_multi_string("query", [], "a text to search for")
QUERIES = flags.DEFINE_string("queries", "", "file with a query a line")
COUNT = flags.DEFINE_integer("count", DEFAULTS["count"], "answers to each query")
JUDGED = flags.DEFINE_string(
  "judged", "", "folder with corpus.jsonl, queries.jsonl and qrels/: measure retrieval on it"
)
SPLIT = flags.DEFINE_string("split", "test", "with --judged: the judgments, qrels/SPLIT.tsv")
IGNORE_IDENTICAL_IDS = flags.DEFINE_boolean(
  "ignore_identical_ids",
  False,
  "with --judged: a text with the id of a query is no answer to it, as in ArguAna",
)


def main():
  from gpt_jax.apps.search import search
  from gpt_jax.errors import InputError

  if bool(INDEX.value) == bool(JUDGED.value):
    raise InputError("--index, --judged: give one of them")
  if JUDGED.value:
    if SOURCE.value or QUERY.value or QUERIES.value:
      raise InputError("--judged: has its own texts; leave --source, --query and --queries out")
    measures = search.evaluate(
      CHECKPOINT.value,
      JUDGED.value,
      SPLIT.value,
      ignore_identical_ids=IGNORE_IDENTICAL_IDS.value,
    )
    for name, value in measures.items():
      print(f"{name}\t{value:.4f}")
    return
  queries = list(QUERY.value)
  if QUERIES.value:
    queries += search.read_queries(QUERIES.value)
  if not queries and not SOURCE.value:
    raise InputError("--source, --query, --queries: give at least one of them")
  answers = search.run(
    CHECKPOINT.value,
    INDEX.value,
    source=SOURCE.value,
    text_column=TEXT_COLUMN.value,
    queries=queries,
    count=COUNT.value,
  )
  if queries:
    search.show(queries, answers)


if __name__ == "__main__":
  command_line.run(main)
