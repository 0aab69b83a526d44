"""What needs no device, such as the fields of a config, before JAX is imported: in a second, not
five.

Config classes stand in the files of the modules that they describe, which import JAX. Here these
imports give stand-ins, as autodoc_mock_imports of Sphinx does, in a process of its own.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

from gpt_jax.errors import InputError

_ROOTS = ("jax", "jaxlib", "flax", "optax", "orbax")


class _NeedsJax(BaseException):
  """A value was asked of a stand-in; no Exception, which would be taken for the config file's."""


class _StandIn:
  """A module of JAX, and all in it: it is called, inherited or part of a type, and has no value."""

  __version_info__ = (0, 0)

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"):
      raise AttributeError(f"_StandIn has no {name}")
    return _StandIn()

  def __call__(self, *arguments: Any, **_: Any) -> Any:
    is_decorator = bool(arguments) and isinstance(arguments[0], type)
    return arguments[0] if is_decorator else _StandIn()

  def __mro_entries__(self, bases: tuple) -> tuple:
    return ()

  def __getitem__(self, key: Any) -> Any:
    return _StandIn()

  __or__ = __ror__ = __getitem__  # in a type, such as Array | None

  def __eq__(self, other: Any) -> bool:
    return self._value() if isinstance(other, (str, int, float, tuple)) else self is other

  __hash__ = object.__hash__

  def _value(self, *_: Any) -> Any:
    raise _NeedsJax

  __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __str__ = __repr__ = _value
  __lt__ = __le__ = __gt__ = __ge__ = __instancecheck__ = __subclasscheck__ = _value


class _Finder:
  """Gives the stand-ins to the import system, before what is installed."""

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    is_jax = name.partition(".")[0] in _ROOTS
    return ModuleSpec(name, self, is_package=True) if is_jax else None  # type: ignore[arg-type]

  def create_module(self, spec: ModuleSpec) -> Any:
    return _StandIn()

  def exec_module(self, module: Any) -> None:
    pass


def stand_in() -> None:
  """Imports stand-ins for JAX from now on."""
  sys.meta_path.insert(0, _Finder())


def ahead(function: Callable[[], Any], silent: bool = True) -> bool:
  """Calls a function in another process, with stand-ins; raises its InputError.

  Returns whether it came to its end there: False where JAX is needed, or imported already. What it
  prints is seen only then, and not if it is `silent`.
  """
  if "jax" in sys.modules:
    return False
  reading, writing = os.pipe()
  child = os.fork()
  if not child:
    outcome, out, err = "needs JAX", io.StringIO(), io.StringIO()
    try:
      stand_in()
      with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        function()
      if not silent:
        print(err.getvalue(), end="", file=sys.stderr, flush=True)
        print(out.getvalue(), end="", flush=True)
      outcome = "done"
    except InputError as error:
      if "_StandIn" not in str(error):  # or Python's error about one, such as the type of a sum
        outcome = f"error: {error}"
    finally:  # after whatever else, the program itself tells it
      os.write(writing, outcome.encode("utf-8", "surrogatepass"))  # names may be no UTF-8
      os._exit(0)
  os.close(writing)
  with open(reading, encoding="utf-8", errors="surrogatepass") as answer:
    outcome = answer.read()
  os.waitpid(child, 0)
  if outcome.startswith("error: "):
    raise InputError(outcome.removeprefix("error: "))
  return outcome == "done"
