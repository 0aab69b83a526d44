"""The flags that several programs have, and --config with dotted changes."""

import ast
import importlib.util
import pathlib
from typing import Any

from absl import flags

from gpt_jax.errors import InputError
from gpt_jax.files import split_names
from gpt_jax.programs.config_files import load_config, named_configs, override_all

# Flags defined by functions of this file belong to the script that calls them.
flags.disclaim_key_flags()


FLAGS = flags.FLAGS
_CHECKPOINT = (
  "WORKDIR (newest checkpoint), WORKDIR/best, WORKDIR/checkpoints/STEP, an exported folder, "
  "or a folder of OpenAI's or transformers' files"
)
config_names: list[str] = []  # of configs/, which the program takes
config_classes: list[str] = []  # the last: of the configs that the program takes
changes: list[tuple[str, str]] = []  # (NAME, VALUE) of every --config.NAME=VALUE


def own_flags() -> list[flags.Flag]:
  """The flags that the running script defines, without absl's own."""
  return [flag for module in FLAGS.flags_by_module_dict().values() for flag in module]


class ConfigFlag:
  """The flag --config; .value loads the file and applies the overrides."""

  @property
  def value(self):
    if FLAGS.config is None:
      raise InputError("--config is needed: a name or a Python file, such as --config=gpt1_small")
    return override_all(load_config(FLAGS.config), changes)

  @property
  def set_fields(self) -> tuple[str, ...]:
    """The fields that the command line sets, be it to the value that the file has."""
    return tuple(name for name, _ in changes)


def define_config(default: str | None = None, takes: str = "") -> ConfigFlag:
  """Defines --config, --config.NAME=VALUE and --print_config.

  Args:
    default: of --config; None: it is required.
    takes: the class of the configs that the program takes; "": of any.
  """
  config_names.extend(_configs_of(takes))
  config_classes.append(takes)
  help = (
    f"{', '.join(config_names)}, or a Python file with get_config(); plus :ARGUMENT if it takes "
    "one; --config.NAME=VALUE changes a field"
  )
  flags.DEFINE_string("config", default, help, required=default is None)
  listing = "list every field of the config, with the default and the file's value if they differ"
  flags.DEFINE_boolean("print_config", False, listing)
  return ConfigFlag()


def _configs_of(takes: str) -> list[str]:
  """Names of the files in configs/ whose source has the name of a class: running all of them would
  import JAX.
  """
  names = []
  for name, path in named_configs().items():
    with open(path, encoding="utf-8") as file:
      if takes in file.read():
        names.append(name)
  return names


def define_workdir() -> flags.FlagHolder[str]:
  """Defines --workdir, the folder of a run."""
  help = "folder for config, metrics and checkpoints; repeating the command resumes the run"
  return flags.DEFINE_string("workdir", None, help, required=True)


def define_checkpoint() -> flags.FlagHolder[str]:
  """Defines --checkpoint, the trained model to use."""
  return flags.DEFINE_string("checkpoint", None, _CHECKPOINT, required=True)


def define_checkpoints(several: str) -> flags.FlagHolder[list[str]]:
  """Defines --checkpoint, which may be repeated; `several` says what for."""
  help = f"{_CHECKPOINT}; {several}"
  return flags.DEFINE_multi_string("checkpoint", None, help, required=True)


def define_adapters() -> flags.FlagHolder[list[str]]:
  """Defines --adapter, which may be repeated."""
  help = "NAME=DIR, an adapter trained on --checkpoint; repeat it: all share the base's memory"
  return flags.DEFINE_multi_string("adapter", [], help)


class _Paths(flags.ListParser):
  """Paths separated by commas; one that exists may have commas itself."""

  def parse(self, argument: Any) -> list[str]:
    return argument if isinstance(argument, list) else split_names(argument) if argument else []


def define_folders(default: str | None, help: str, required: bool = False) -> flags.FlagHolder:
  """Defines --data, prepared folders."""
  serializer = flags.CsvListSerializer(",")
  return flags.DEFINE(_Paths(), "data", default, help, serializer=serializer, required=required)


def define_overwrite() -> flags.FlagHolder[bool]:
  """Defines --overwrite, for programs that write a single file."""
  return flags.DEFINE_boolean("overwrite", False, "replace the output file if it exists")


def define_profile() -> flags.FlagHolder[str]:
  """Defines --profile, the steps of which a trace is written."""
  help = "START:STOP: write a trace of the steps after update START, up to STOP, to WORKDIR/profile"
  return flags.DEFINE_string("profile", "", help)


def define_tracker(default: str) -> flags.FlagHolder[str]:
  """Defines --tracker, where metrics go beside WORKDIR/metrics.jsonl."""
  help = (
    "where metrics go beside metrics.jsonl: tensorboard, wandb, or both with a comma; empty: "
    "nowhere; auto: tensorboard, if it is installed"
  )
  return flags.DEFINE_string("tracker", default, help)


def define_distributed() -> None:
  """Defines the flags of a multi-process run; run() joins the processes."""
  help = "join the other processes of the run, found by the cluster or the next three flags"
  flags.DEFINE_boolean("distributed", False, help)
  flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0")
  flags.DEFINE_integer("num_processes", None, "number of processes", lower_bound=1)
  flags.DEFINE_integer("process_id", None, "index of this process, from 0", lower_bound=0)


def defaults(program: str) -> dict[str, Any]:
  """Default values of the parameters of a program's run, in programs/ or in its app.

  They are read from the source: importing a program imports JAX, which would slow --help down.
  """
  spec = importlib.util.find_spec("gpt_jax")
  assert spec is not None and spec.origin is not None
  package = pathlib.Path(spec.origin).parent
  (path,) = [*package.glob(f"programs/{program}.py"), *package.glob(f"apps/*/{program}.py")]
  tree = ast.parse(path.read_text(encoding="utf-8"))
  functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
  (run,) = (function for function in functions if function.name == "run")
  positional = run.args.args[len(run.args.args) - len(run.args.defaults) :]
  pairs: list[tuple[ast.arg, ast.expr | None]] = [
    *zip(positional, run.args.defaults, strict=True),
    *zip(run.args.kwonlyargs, run.args.kw_defaults, strict=True),
  ]
  return {argument.arg: ast.literal_eval(node) for argument, node in pairs if node is not None}
