"""The guards of conftest.py hold."""

import socket
import warnings

import jax.numpy as jnp
import pytest


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
