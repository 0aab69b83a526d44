"""Pre-trains a language model on prepared text (launch/prepare.py).

python launch/pretrain.py --config=configs/gpt1.py:small --data=DIR[,DIR…] --workdir=DIR
  [--checkpoint=DIR] [--config.trunk.layers=2 …]
"""

import contextlib
import os
import shlex
import warnings

from absl import flags

import command_line
from gpt_jax.errors import InputError
from gpt_jax.files import split_names

PROGRAM = command_line.program("pretrain")
CHECKPOINT = flags.DEFINE_string(
  "checkpoint",
  "",
  "checkpoint whose trunk and vocabulary to start from: a run, an export, or a folder of OpenAI's "
  "or transformers' files",
)
OBSERVERS = command_line.define_observers()
command_line.define_distributed()


def check_data():
  """Refuses a file or folder of texts that are still to be prepared, with the command for it."""
  from gpt_jax.data.sources.source import find

  for folder in split_names(command_line.FLAGS.data):
    texts = []
    if os.path.exists(folder) and not os.path.exists(os.path.join(folder, "train.json")):
      with contextlib.suppress(InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files that prepare would leave out
        texts = find(folder)
    if texts:
      out = f"data/{os.path.splitext(os.path.basename(os.path.abspath(folder)))[0]}"
      source, out = shlex.quote(folder), shlex.quote(out)
      command = f"python launch/prepare.py --source={source} --out={out}, then --data={out}"
      fault = f"{texts[0].name} is text, of which tokens are made first: {command}"
      raise InputError(f"--data={folder}: {fault}")


command_line.checks.append(check_data)


def main():
  from gpt_jax.apps.report.report import write_report
  from gpt_jax.programs.pretrain_mixture import with_sources
  from gpt_jax.programs.pretrain_samples import with_samples
  from gpt_jax.programs.pretrain_start import from_checkpoint

  arguments = PROGRAM.arguments()
  config, workdir = arguments["config"], arguments["workdir"]
  folders = split_names(arguments["data"])  # run loads the first, with_sources the others
  make_recipe = with_samples(with_sources(folders, from_checkpoint(CHECKPOINT.value)))
  arguments |= {"data": folders[0], "make_recipe": make_recipe}
  PROGRAM.call(arguments, on_end=[write_report], **OBSERVERS())
  commands = [("evaluate", {"checkpoint": workdir, "data": folders[0]})]
  finetuning = {"config": "finetune:TASK", "data": "DIR", "checkpoint": workdir}
  if config.objective.attention == "causal":
    commands.append(("generate", {"checkpoint": workdir, "prompt": "TEXT"}))
  else:  # has no next token, see configs/finetune.py
    finetuning["config.lm_weight"] = "0"
  commands.append(("finetune", finetuning | {"workdir": "DIR"}))
  command_line.print_closing(
    f"the newest checkpoint is {workdir}, that with the lowest valid_loss {workdir}/best", *commands
  )


if __name__ == "__main__":
  command_line.run(main)
