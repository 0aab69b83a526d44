"""Finds the texts that are nearest to a query by a model's embeddings.

With --judged it measures retrieval on judged queries, in BEIR's layout.

python launch/search.py --checkpoint=DIR --source=FILES --query=TEXT [--query=TEXT] [--count=10]
python launch/search.py --checkpoint=DIR --source=TABLE --text_column=NAME --queries=FILE
python launch/search.py --checkpoint=DIR --judged=DIR [--split=test]
"""

from absl import flags

import command_line
from gpt_jax.errors import InputError

PROGRAM = command_line.program("search", source="", queries=())
QUERIES = flags.DEFINE_string("queries", "", "file with a query a line")
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
  arguments = PROGRAM.arguments()
  queries = list(arguments["queries"])
  texts_given = arguments["source"] or queries or QUERIES.value
  if bool(arguments["source"]) == bool(JUDGED.value):
    raise InputError("--source, --judged: give one of them")
  if JUDGED.value and texts_given:
    raise InputError("--judged: has its own texts; leave --source, --query and --queries out")
  if not (queries or QUERIES.value or JUDGED.value):
    raise InputError("--query, --queries: give at least one of them")
  from gpt_jax.apps.search import search

  if JUDGED.value:
    given = arguments["checkpoint"], JUDGED.value, SPLIT.value
    measures = search.evaluate(*given, ignore_identical_ids=IGNORE_IDENTICAL_IDS.value)
    for name, value in measures.items():
      print(f"{name}\t{value:.4f}")
    return
  if QUERIES.value:
    queries += search.read_queries(QUERIES.value)
  search.show(queries, search.run(**arguments | {"queries": queries}))


if __name__ == "__main__":
  command_line.run(main)
