"""Reading the JSON object of a request: every field with its type and range, and no others."""

import math
from typing import Any

from gpt_jax.errors import InputError
from gpt_jax.files import parse_json


class Refusal(Exception):
  def __init__(self, message: str, status: int = 400, param: str | None = None, retry_after=0):
    """HTTP's status, the field at fault, and seconds after which to try again; 0: do not."""
    super().__init__(str(InputError(message)))  # one line, values cut
    self.status, self.param, self.retry_after = status, param, retry_after

  @property
  def body(self) -> dict[str, Any]:
    """As OpenAI's API writes errors."""
    kinds = {404: "not_found_error", 500: "server_error", 503: "overloaded_error"}
    kind = kinds.get(self.status, "invalid_request_error")
    return {"error": {"message": str(self), "type": kind, "param": self.param, "code": None}}


class Fields:
  """The fields of a JSON object. The methods raise Refusal for a value that is not allowed."""

  def __init__(self, body: bytes):
    try:
      # Python also reads NaN and Infinity; they fail every range, as 1e999 does.
      values = parse_json(body)
    except ValueError as error:
      raise Refusal(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
      raise Refusal("the body should be one JSON object")
    self._values: dict[str, Any] = {k: v for k, v in values.items() if v is not None}
    self._known: set[str] = set()

  def take(self, name: str) -> Any:
    """Any value; None if the field is absent or null."""
    self._known.add(name)
    return self._values.get(name)

  def integer(self, name: str, default: int, low: int, high: int) -> int:
    value = self.take(name)
    if value is None:
      return default
    is_allowed = _is_number(value) and low <= value <= high and value == int(value)
    _check(is_allowed, value, f"an integer from {low:,} to {high:,}", name)
    return int(value)

  def number(self, name: str, default: float, low: float, high: float, *, above=False) -> float:
    """above: whether the value must be above `low`."""
    value = self.take(name)
    if value is None:
      return default
    is_allowed = _is_number(value) and low <= value <= high and not (above and value == low)
    _check(is_allowed, value, f"a number {'above' if above else 'from'} {low:g} to {high:g}", name)
    return float(value)

  def boolean(self, name: str) -> bool:
    value = self.take(name)
    _check(isinstance(value, bool | None), value, "true or false", name)
    return bool(value)

  def strings(self, name: str, most: int) -> list[str]:
    """A string, or a list of 1 to `most` strings."""
    value = self.take(name)
    values = [value] if isinstance(value, str) else value
    _check(isinstance(values, list), value, "a string or a list of strings", name)
    if not 1 <= len(values) <= most:
      raise Refusal(f"{name}: {len(values):,} entries; give 1 to {most:,}", param=name)
    for number, text in enumerate(values):
      check_text(text, f"{name}[{number}]", name)
    return values

  def refuse_others(self) -> None:
    """Raises Refusal for a field that none of the other methods has read."""
    for name in self._values:
      if name not in self._known:
        known = ", ".join(sorted(self._known))
        name = name.encode(errors="backslashreplace").decode()  # half of a surrogate pair
        raise Refusal(f"{name}: no such field; the fields are {known}", param=name)

  def refuse_unless(self, name: str, neutral: Any) -> None:
    """Raises Refusal if a field that is not supported has another than its neutral value."""
    value = self.take(name)
    same_kind = isinstance(value, bool) == isinstance(neutral, bool)  # Python's True equals 1
    if value is not None and not (same_kind and value == neutral):
      raise Refusal(f"{name} is not supported; leave it out", param=name)


def check_text(text: Any, place: str, param: str) -> None:
  """Raises Refusal for what is not a string of Unicode characters."""
  _check(isinstance(text, str), text, "a string", place, param)
  if any("\ud800" <= character <= "\udfff" for character in text):
    raise Refusal(f"{place}: has half of a surrogate pair, which is not Unicode", param=param)


def _check(is_allowed: bool, value: Any, wanted: str, place: str, param: str = "") -> None:
  if not is_allowed:
    raise Refusal(f"{place}: {_shown(value)} should be {wanted}", param=param or place)


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
  if isinstance(value, float) and not math.isfinite(value):
    return "a number that is not finite"
  if isinstance(value, int) and abs(value) >= 10**20:
    return "an integer of more than 20 digits"
  return "nothing" if value is None else repr(value)[:200]
