"""The one exception for what a user can mend: launch/ prints its single line and exits with code
2.
"""


class InputError(ValueError):
  """Bad input. The message is one line: which file, line, field and value, and what would be
  right.
  """


class MissingInput(InputError):
  """A file or folder that is not there; where several could do, another may be tried."""
