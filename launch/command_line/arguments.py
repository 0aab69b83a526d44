"""The words of a command to flags, with one line for those that are wrong."""

import contextlib
import importlib
import itertools
import os
import re
import shlex
from typing import NoReturn

from absl import flags

from command_line import fields, usage
from command_line.definitions import (
  FLAGS,
  OR_TFIDF,
  changes,
  config,
  config_classes,
  own_flags,
)
from gpt_jax.checkpoints.released import locate, no_network, tfidf_folder
from gpt_jax.config import fields_of
from gpt_jax.errors import InputError, did_you_mean, meant_number
from gpt_jax.files import check_path, is_url, split_names
from gpt_jax.programs.config_files import (
  describe_config,
  load_config,
  named_like,
  read_config_file,
)

_NO_PATHS = ("coordinator", "text")  # flags that may hold ://; text: of the quickstart, a source
_RENAMED = {  # names of version 0.1
  "data_dir": "data",
  "output": "out",
  "json": "out",
  "prompts_file": "input",
  "field": "text_column",
  **dict.fromkeys(("pretrained", "checkpoints", "path", "a", "b"), "checkpoint"),
}
_INPUTS = {
  **dict.fromkeys(("data", "checkpoint", "from", "tokenizer", "extend"), "folder"),
  "input": "file",
}


def parse(argv: list[str], doc: str, positional: str | None, looks: bool = True) -> bool:
  """Parses the flags; False if --help or --print_config was answered instead.

  `looks` is whether files, folders and stores of their values are looked for.
  """
  words = {word.lstrip("-") for word in argv[1:] if word.startswith("-")}
  if {"help", "h", "helpfull"} & words:
    print(usage.describe(doc, own_flags(), positional))
    return False
  if wrong := [word for word in words if word.startswith("help=")]:
    listing = "; --print_config lists the fields of the config" if "config" in FLAGS else ""
    raise InputError(f"--{wrong[0]}: --help alone describes the flags{listing}")
  argv = _take_changes(argv)
  missing: list[str] = []
  try:
    rest = FLAGS(argv)[1:]
  except flags.UnrecognizedFlagError as error:
    name = error.flagname
    fields.ahead(lambda: _refuse_unknown(name))
    _refuse_unknown(name)
  except flags.IllegalFlagValueError as error:
    missing = re.findall(r"Flag --(\w+) must have a value other than None", str(error))
    rest = _stray_words(argv)
    if not missing:
      raise InputError(_illegal_value(str(error))) from error
  except flags.Error as error:
    message = re.sub(r"^Missing value for flag (--\w+)$", r"\1 needs a value: \1=VALUE", str(error))
    raise InputError(f"{message} (--help describes the flags)") from error
  if rest:
    # Of several words the first, if it is a file, may be the one that needs no flag.
    is_second = len(rest) > 1 and positional == "input" and os.path.isfile(rest[0])
    word = rest[1] if is_second else rest[0]
    name, equals, _ = word.partition("=")
    meant = word if equals and name in FLAGS else ""
    # A file is what the program reads, whether or not that is missing.
    possible = FLAGS if os.path.isfile(word) else missing
    inputs = [name for name in ("input", "source") if name in possible]
    inputs += ["prompt"] if "prompt" in FLAGS and not FLAGS["prompt"].present else []
    if not meant and not is_second and (wanted := [*inputs, *missing]):
      meant = f"{wanted[0]}={shlex.quote(word)}"
    advice = "every setting is a flag, --NAME=VALUE"
    advice += f"; did you mean --{meant}?" if meant else ""
    raise InputError(f"unexpected argument {word!r}: {advice} (--help lists them)")
  _refuse_repeats()
  if "print_config" in FLAGS and FLAGS.print_config:

    def show() -> None:
      print(describe_config(config(), load_config(FLAGS.config)))

    if not fields.ahead(show, silent=False):
      show()
    return False
  for flag in own_flags():
    if looks and isinstance(flag.value, str) and flag.name not in _NO_PATHS:
      check_path(flag.value)
  for flag in own_flags():  # tasks of the story world have an empty --data
    if flag.name in usage.GROUPS["what to write"] and flag.value == "" and usage.is_required(flag):
      raise InputError(f"--{flag.name}= is empty; give a name (--help describes the flags)")
  if missing:
    names = ", ".join(f"--{name}" for name in missing)
    raise InputError(f"missing {names} (--help describes the flags)")
  if "config" in FLAGS and FLAGS.config:
    read_config_file(FLAGS.config)
  if looks:
    _check_inputs()
  return True


def _refuse_repeats() -> None:
  """Raises InputError for a flag of one value that was given again: absl would take the last."""
  for flag in own_flags():
    if flag.present > 1 and not isinstance(flag, flags.MultiFlag):
      raise InputError(f"--{flag.name} is given {flag.present} times: it takes one value")


def _illegal_value(message: str) -> str:
  """absl's message about the value of a flag, with Python's about a number in our words."""
  message = re.sub(r"^flag (--\w+)=(.*?): ", r"\1=\2: ", message, flags=re.DOTALL)
  if percent := re.fullmatch(r"--\w+=(100|\d\d(?:\.\d+)?): .* in the range \[0, 1\]", message):
    return f"{message}{meant_number(f'{percent[1]}%')}"
  for words, wanted in (
    ("invalid literal for int()", "an integer"),
    ("could not convert string to float", "a number"),
    ("Non-boolean argument to boolean flag", "true or false"),
  ):
    given, found, _ = message.partition(f": {words}")
    given, also_found, _ = given.partition(f": ('{words}")  # a tuple, for booleans
    if found or also_found:
      guess = meant_number(given.partition("=")[2], wanted == "an integer")
      return f"{given}: should be {wanted}{guess}"
  return message


def _check_inputs() -> None:
  """Raises InputError for a file or folder that is not there, before JAX is imported."""
  for name, kind in _INPUTS.items():
    value = (FLAGS[name].value or "") if name in FLAGS else ""
    folders = split_names(value) if name == "data" else [value]  # several: a mixture
    for path in value if isinstance(value, list) else folders:
      is_special = path in ("", "-", "none") or is_url(path) or path.startswith("tfds:")
      place = locate(path) if name == "checkpoint" else path
      there = os.path.abspath(place).removesuffix("/best")  # of a workdir
      if not is_special and not os.path.exists(there):
        fault = f"no such {kind}{_neighbors(path)}"
        if os.path.islink(path):
          fault = f"a link to {os.readlink(path)}, which is not there"
        raise InputError(f"--{name}={path}: {fault}")
      if name == "checkpoint" and not is_special and OR_TFIDF not in FLAGS[name].help:
        if tfidf_folder(path):
          raise no_network(path)


def _neighbors(path: str) -> str:
  """For the end of a message about a path that is not there: what may be meant, beside it."""
  folder, name = os.path.split(path)
  with contextlib.suppress(OSError):
    return did_you_mean(name, os.listdir(folder or "."), prefix=os.path.join(folder, ""))
  return ""


def _take_changes(argv: list[str]) -> list[str]:
  """Moves --config.NAME=VALUE, which absl cannot parse, from argv to changes."""
  left, arguments = argv[:1], iter(argv[1:])
  for argument in arguments:
    if argument == "--":
      return [*left, argument, *arguments]
    match = re.fullmatch(r"--?config\.([^=]*)(?:=(.*))?", argument, re.DOTALL)
    if match is None:
      left.append(argument)
      continue
    if "config" not in FLAGS:
      raise InputError(f"{argument}: this program takes no config")
    name, value = match.groups()
    if value is None:
      value = next(arguments, "--")
      if value.startswith("--"):
        raise InputError(f"--config.{name} needs a value: --config.{name}=VALUE")
    changes.append((name, value))
  return left


def with_flag_name(argv: list[str], name: str) -> list[str]:
  """Puts --name= before the only argument that is no flag, unless the flag is there already."""
  words = _stray_words(argv)
  if len(words) != 1 or any(re.match(rf"--?{name}(=|$)", argument) for argument in argv):
    return argv
  index = argv.index(words[0], 1)
  return [*argv[:index], f"--{name}={words[0]}", *argv[index + 1 :]]


def _stray_words(argv: list[str]) -> list[str]:
  """The arguments that are neither flags nor values of the flag before them."""
  words = []
  for before, word in itertools.pairwise(argv):
    name = before.lstrip("-") if before.startswith("-") else ""
    takes_value = name in FLAGS and not FLAGS[name].boolean
    if not word.startswith("-") and not takes_value:
      words.append(word)
  return words


def _refuse_unknown(name: str) -> NoReturn:
  names = [flag.name for flag in own_flags()]
  if _RENAMED.get(name) in names:
    raise InputError(f"--{name} is now --{_RENAMED[name]}")
  guess = did_you_mean(name, names, prefix="--", most=2)
  paths: list[str] = []
  if "." in name and "config" in names:
    paths = [name]
  elif not guess and "config" in names and config_classes:
    module, kind = config_classes[-1]
    default = vars(importlib.import_module(module))[kind]()
    paths = named_like(name, [path for path, _, _ in fields_of(default)])
  if paths:
    guess = f"; did you mean {' or '.join(f'--config.{path}' for path in paths)}?"
  raise InputError(f"unknown flag --{name}{guess} (--help lists the flags)")
