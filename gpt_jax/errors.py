"""Errors in a user's input: launch/ prints their single line and exits with code 2."""


class InputError(ValueError):
  """Bad user input; the message is one line: file, line or field, value, what would be right."""


class MissingInput(InputError):
  """A missing file or folder; the caller may try another."""
