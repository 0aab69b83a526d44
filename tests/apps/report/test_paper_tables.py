"""The paper's numbers agree with each other and with what the tasks say of themselves."""

import statistics

import pytest

from gpt_jax.apps.paper import glue
from gpt_jax.apps.report import paper_tables as paper
from gpt_jax.tasks.task import find


def test_rows_fit_their_columns():
  for table in paper.TABLES.values():
    assert {len(row) for row in table.rows.values()} == {len(table.columns)}


@pytest.mark.parametrize("number", [2, 3, 4])
def test_tasks_say_the_same(number):
  table = paper.TABLES[number]
  for column, value in zip(table.columns, table.rows[paper.OURS], strict=True):
    if column == paper.GLUE:
      assert {test_set.task for test_set in glue.TEST_SETS if test_set.metrics} == set(column.tasks)
      continue
    (task,) = column.tasks
    assert find(task).paper.startswith(f"{value} "), task
    assert f"table {number}" in find(task).paper


def test_the_averages_of_table_5_are_the_printed_ones():
  for name, row in paper.TABLES[5].rows.items():
    assert statistics.fmean(row) == pytest.approx(paper.PRINTED_AVERAGES[name], abs=0.07)


def test_the_full_model_of_table_5_is_that_of_tables_2_and_4():
  elsewhere = {}
  for number in (2, 4):
    table = paper.TABLES[number]
    pairs = zip(table.columns, table.rows[paper.OURS], strict=True)
    elsewhere |= {column.tasks[0]: value for column, value in pairs if column != paper.GLUE}
  full = next(iter(paper.TABLES[5].rows.values()))
  for column, value in zip(paper.TABLES[5].columns, full, strict=True):
    assert statistics.fmean(elsewhere[task] for task in column.tasks) == pytest.approx(
      value, abs=0.06
    )
