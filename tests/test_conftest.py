"""The guards of conftest.py hold."""

import collections
import itertools
import socket
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest


@pytest.fixture
def conftest(request):
  """The module; tests/attack has another one of its name."""
  return request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))


def test_every_test_is_in_one_suite(conftest):
  for chosen in itertools.product([False, True], repeat=len(conftest.MARKS)):
    marks = dict(zip(conftest.MARKS, chosen, strict=True))
    selected = [name for name, (marked, _) in conftest.SUITES.items() if eval(marked, {}, marks)]
    assert len(selected) == 1, (marks, selected)


@pytest.mark.parametrize(
  "suite, more, says", [("core", 0, ""), ("core", 1, "more than"), (None, 1, "")]
)
def test_a_suite_that_compiles_more_than_its_budget_fails(conftest, suite, more, says):
  budget = conftest.SUITES["core"][1]
  stash = {conftest.COMPILED: collections.Counter(misses=budget + more)}
  config = SimpleNamespace(stash=stash, getoption=lambda name: suite)
  assert says in conftest.over_budget(config) and bool(says) == bool(conftest.over_budget(config))
  session = SimpleNamespace(config=config, exitstatus=0)
  conftest.pytest_sessionfinish(session)
  assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if says else 0)


def test_what_all_workers_use_is_made_once(make_once):
  made = []

  def make(folder):
    (folder / "part").touch(exist_ok=False)  # not there any more where an attempt has failed
    made.append(folder)
    if len(made) == 1:
      raise OSError("no room")

  with pytest.raises(OSError, match="no room"):
    make_once("of_test_conftest", make)
  assert make_once("of_test_conftest", make) == make_once("of_test_conftest", make) == made[0]
  assert len(made) == 2


def test_no_network():
  with pytest.raises(AssertionError, match="tried to reach the network"):
    socket.create_connection(("192.0.2.1", 80), timeout=1)


def test_loopback_is_allowed():
  with (
    socket.create_server(("127.0.0.1", 0)) as server,
    socket.create_connection(server.getsockname(), timeout=5),
  ):
    pass


def test_broadcasting_between_ranks_is_an_error():
  with pytest.raises(ValueError, match="rank_promotion"):
    jnp.ones((2, 3)) + jnp.ones(3)


@pytest.mark.parametrize(
  "module, is_error", [("gpt_jax.data.tokens", True), ("gpt_jax", True), ("other", False)]
)
def test_our_warnings_are_errors(module, is_error):
  with warnings.catch_warnings(record=True):
    try:
      warnings.warn_explicit("old", DeprecationWarning, f"{module}.py", 1, module=module)
    except DeprecationWarning:
      assert is_error
    else:
      assert not is_error
