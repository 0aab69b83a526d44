"""The flags: those of a program's arguments, --config with dotted changes, a multi-process run."""

import __future__

import ast
import importlib
import inspect
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from absl import flags

import gpt_jax
from gpt_jax.checkpoints.formats import describe_formats, find_format
from gpt_jax.errors import InputError
from gpt_jax.programs.config_files import load_config, named_configs, override_all

# Flags defined by functions of this file belong to the script that calls them.
flags.disclaim_key_flags()


FLAGS = flags.FLAGS
FLAG_OF = {  # argument, or PROGRAM.ARGUMENT -> its flag, where it is called otherwise
  "data_dir": "data",
  "checkpoints": "checkpoint",
  "path": "checkpoint",
  "adapters": "adapter",
  "output": "out",
  "previous": "from",
  "prompts": "prompt",
  "queries": "query",
  "texts": "text",
  "workdirs": "workdir",
  **dict.fromkeys([f"{name}.source" for name in ("backtranslate", "label", "predict")], "input"),
  "visualize.source": "input",
}
# Lists whose values may have commas, as names of columns, which the program splits.
_WHOLE = {"adapter", "checkpoint", "keep", "prompt", "query", "text", "vary", "workdir"}
_JOINED = {"text_column"}  # a text with commas, of which each part may have a flag of its own
_LOWEST = {
  **dict.fromkeys(("seeds", "folds", "longest", "pool_rows", "max_tokens", "num_samples"), 1),
  **dict.fromkeys(("examples", "limit", "microbatches", "num_fewshot", "price"), 0),
  **dict.fromkeys(("temperature", "top_k", "top_p", "precision", "threshold"), 0),
}
_HIGHEST = dict.fromkeys(("precision", "threshold", "top_p"), 1)
_CHECKPOINT = (
  "WORKDIR (newest checkpoint), WORKDIR/best, WORKDIR/checkpoints/STEP, an exported folder, "
  "a folder of OpenAI's or transformers' files, minilm (an installed package), or OWNER/MODEL of "
  "the Hugging Face Hub"
)
OR_TFIDF = ", or WORKDIR/tfidf of label"
config_names: list[str] = []  # of configs/, which the program takes
config_classes: list[tuple[str, str]] = []  # module and name; the last is what the program takes
changes: list[tuple[str, str]] = []  # (NAME, VALUE) of every --config.NAME=VALUE
checks: list[Callable[[], Any]] = []  # of flags, without JAX; see check_settings


def own_flags() -> list[flags.Flag]:
  """The flags that the running script defines, without absl's own."""
  return [flag for module in FLAGS.flags_by_module_dict().values() for flag in module]


class Program:
  """The function run of a module in programs/ or in an app, with a flag for each argument.

  Type and default of a flag are those in its signature, the help is what its docstring says of the
  argument. An argument without a default is a required flag; one of another type than a text, a
  number, a bool, a list of these or a config has none.
  """

  def __init__(self, name: str, without: tuple[str, ...], defaults: dict[str, Any]):
    package = pathlib.Path(gpt_jax.__file__).parent
    (path,) = [*package.glob(f"programs/{name}.py"), *package.glob(f"apps/*/{name}.py")]
    self._module = ".".join(("gpt_jax", *path.relative_to(package).with_suffix("").parts))
    self._flags = {}  # argument -> flag
    signature, about = _read_run(path.read_text(encoding="utf-8"))
    names = {word: FLAG_OF.get(f"{name}.{word}", FLAG_OF.get(word, word)) for word in about}
    for parameter in signature.parameters.values():
      if parameter.name not in without:
        default = defaults.get(parameter.name, parameter.default)
        flag = names[parameter.name]
        help = _spell(about[parameter.name], names)
        kind = parameter.annotation
        if kind.endswith("Config"):
          config_classes.append((self._module, kind))
        if _define(flag, kind, default, help):
          self._flags[parameter.name] = flag

  def arguments(self) -> dict[str, Any]:
    """The values of the flags, by argument."""
    return {
      name: config() if flag == "config" else _value(FLAGS[flag])
      for name, flag in self._flags.items()
    }

  def run(self) -> Any:
    """Imports the module and calls its function with the flags."""
    return self.call(self.arguments())

  def call(self, arguments: dict[str, Any], **further: Any) -> Any:
    """As run, with arguments() that the script has read or changed, and further ones."""
    return importlib.import_module(self._module).run(**arguments, **further)


def program(name: str, *without: str, **defaults: Any) -> Program:
  """Defines the flags of a program.

  Args:
    name: of its module.
    without: arguments that get no flag.
    defaults: of flags, where they are not those of the arguments.
  """
  return Program(name, without, defaults)


def _read_run(source: str) -> tuple[inspect.Signature, dict[str, str]]:
  """The signature of the function run, and what its docstring says of each argument.

  The function is defined without the imports of its module, which take JAX: they would slow --help
  down. Its annotations stay texts.
  """
  body = ast.parse(source).body
  run = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "run"]
  scope: dict[str, Any] = {}
  code = compile(ast.Module([*run], []), "run", "exec", __future__.annotations.compiler_flag)
  exec(code, scope)
  return inspect.signature(scope["run"]), dict(_arguments(inspect.getdoc(scope["run"]) or ""))


def _arguments(doc: str) -> Iterator[tuple[str, str]]:
  """(name, text) of each entry below Args, without the full stop."""
  section = doc.partition("\nArgs:\n")[2].partition("\n\n")[0]
  for entry in re.split(r"^  (?! )", section, flags=re.MULTILINE)[1:]:
    names, _, text = entry.partition(": ")
    for name in names.split(", "):
      yield name, " ".join(text.split()).removesuffix(".")


def _spell(text: str, names: dict[str, str]) -> str:
  """What a docstring says of an argument, as a shell's user reads it."""
  text = text.replace("see load_model", _CHECKPOINT)
  text = text.replace("see load_any", f"{_CHECKPOINT}{OR_TFIDF}")
  if "see list_formats" in text:
    text = text.replace("see list_formats", describe_formats())
  return re.sub(r"`(\w+)`", lambda word: f"--{names.get(word[1], word[1])}", text)


def _define(name: str, annotation: str, default: Any, help: str) -> bool:
  """Defines the flag of an argument; False if its type is none that a flag can have."""
  required = default is inspect.Parameter.empty
  settings: dict[str, Any] = {"required": required, "help": help}
  settings["default"] = None if required else default
  kind = annotation.partition(" | ")[0]
  if kind in ("int", "float"):
    define = flags.DEFINE_integer if kind == "int" else flags.DEFINE_float
    settings |= {"lower_bound": _LOWEST.get(name), "upper_bound": _HIGHEST.get(name)}
    define(name=name, **settings)
  elif kind == "bool":
    flags.DEFINE_boolean(name=name, **settings)
  elif kind.endswith("Config"):
    define_config(settings["default"], kind)
  elif re.match(r"(str \| )?(Sequence|tuple)\[(float \| )?str\b", annotation):
    if not required:
      settings["default"] = list(default)
    flags.DEFINE_multi_string(name=name, **settings)
  elif kind == "str":
    define_text = flags.DEFINE_multi_string if name in _JOINED else flags.DEFINE_string
    define_text(name=name, **settings)
  else:
    return False
  return True


def _value(flag: flags.Flag) -> Any:
  """The value of a flag; a list is given by commas, by the flag again, or both."""
  if not isinstance(flag, flags.MultiFlag) or flag.name in _WHOLE:
    return flag.value
  if flag.name in _JOINED:
    return ",".join(flag.value or ())
  return split_list(flag.value or ())


def split_list(values: Iterable[str]) -> list[str]:
  """The items of values, each of which may be several with commas between them."""
  return [part.strip() for part in ",".join(values).split(",") if part.strip()]


def config() -> Any:
  """The config of --config, with the changes."""
  if FLAGS.config is None:
    raise InputError("--config is needed: a name or a Python file, such as --config=gpt1:small")
  return override_all(load_config(FLAGS.config), changes)


def check_settings() -> None:
  """Refuses flags, and a config or fields of it, that are wrong on any device."""
  if "config" in FLAGS and FLAGS.config is not None:
    given = config()
    if config_classes:
      importlib.import_module(config_classes[-1][0]).check_type(given)
  if "format" in FLAGS:
    find_format(FLAGS.format)
  for check in checks:
    check()


def set_fields() -> tuple[str, ...]:
  """The fields that the command line sets, be it to the value that the file has."""
  return tuple(name for name, _ in changes)


def define_config(default: str | None = None, takes: str = "") -> None:
  """Defines --config, --config.NAME=VALUE and --print_config; see config().

  Args:
    default: of --config; None: it is required.
    takes: the class of the configs that the program takes; "": of any.
  """
  # By their source, since running all of them would import JAX.
  for name, path in named_configs().items():
    if takes in pathlib.Path(path).read_text(encoding="utf-8"):
      config_names.append(name)
  help = (
    f"{', '.join(config_names)}, or a Python file with get_config(); plus :ARGUMENT if it takes "
    "one; --config.NAME=VALUE changes a field"
  )
  flags.DEFINE_string("config", default, help, required=default is None)
  listing = "list every field of the config, with the default and the file's value if they differ"
  flags.DEFINE_boolean("print_config", False, listing)


def define_checkpoints(several: str) -> flags.FlagHolder[list[str]]:
  """Defines --checkpoint, which may be repeated; `several` says what for."""
  help = f"{_CHECKPOINT}; {several}"
  return flags.DEFINE_multi_string("checkpoint", None, help, required=True)


def define_observers() -> Callable[[], dict[str, Any]]:
  """Defines --profile, the steps of which a trace is written, and --tracker, where metrics go
  beside WORKDIR/metrics.jsonl; returns a function that gives both as arguments of `run`.
  """
  help = "START:STOP: write a trace of the steps after update START, up to STOP, to WORKDIR/profile"
  profile = flags.DEFINE_string("profile", "", help)
  help = "where metrics go beside metrics.jsonl: tensorboard, wandb, or both with a comma; empty: "
  help += "nowhere; auto: tensorboard, if it is installed"
  tracker = flags.DEFINE_string("tracker", "auto", help)

  def arguments() -> dict[str, Any]:
    from gpt_jax.training.profile import parse_span
    from gpt_jax.training.trackers import parse_trackers

    trackers = parse_trackers(tracker.value, FLAGS.workdir)
    return {"trackers": trackers, "profile": parse_span(profile.value)}

  checks.append(arguments)
  return arguments


def define_distributed() -> None:
  """Defines the flags of a multi-process run; run() joins the processes."""
  help = "join the other processes of the run, found by the cluster or the next three flags"
  flags.DEFINE_boolean("distributed", False, help)
  flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0")
  flags.DEFINE_integer("num_processes", None, "number of processes", lower_bound=1)
  flags.DEFINE_integer("process_id", None, "index of this process, from 0", lower_bound=0)
