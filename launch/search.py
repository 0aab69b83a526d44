"""Finds the texts that are nearest to a query by a model's embeddings.

python launch/search.py --checkpoint=DIR --source=FILES --query=TEXT [--query=TEXT] [--count=10]
python launch/search.py --checkpoint=DIR --source=TABLE --text_column=NAME --queries=FILE
"""

from absl import flags

import command_line
from gpt_jax.errors import InputError

PROGRAM = command_line.program("search", queries=())
QUERIES = flags.DEFINE_string("queries", "", "file with a query a line")


def main():
  arguments = PROGRAM.arguments()
  queries = list(arguments["queries"])
  if not (queries or QUERIES.value):
    raise InputError("--query, --queries: give at least one of them")
  from gpt_jax.apps.search import search

  if QUERIES.value:
    queries += search.read_queries(QUERIES.value)
  search.show(queries, search.run(**arguments | {"queries": queries}))


if __name__ == "__main__":
  command_line.run(main)
