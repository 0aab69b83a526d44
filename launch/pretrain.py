"""Pre-trains a language model on prepared text (launch/prepare.py).

python launch/pretrain.py --config=configs/gpt1_small.py --data=DIR --workdir=DIR
  [--checkpoint=DIR] [--config.trunk.layers=2 …]
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("pretrain")
CONFIG = command_line.define_config(takes="PretrainConfig")
DATA = flags.DEFINE_string("data", None, "folder that launch/prepare.py wrote", required=True)
CHECKPOINT = flags.DEFINE_string(
  "checkpoint",
  DEFAULTS["pretrained"],
  "checkpoint whose trunk and vocabulary to start from: a run, an export, or a folder of OpenAI's "
  "or transformers' files",
)
WORKDIR = command_line.define_workdir()
PROFILE = command_line.define_profile()
TRACKER = command_line.define_tracker(DEFAULTS["tracker"])
command_line.define_distributed()


def main():
  from gpt_jax.apps.report.report import write_report
  from gpt_jax.programs import pretrain

  config, data, workdir = CONFIG.value, DATA.value, WORKDIR.value
  pretrain.run(
    config,
    data,
    workdir,
    pretrained=CHECKPOINT.value,
    profile=PROFILE.value,
    tracker=TRACKER.value,
    on_end=[write_report],
  )
  commands = [("evaluate", {"checkpoint": workdir, "data": data})]
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
