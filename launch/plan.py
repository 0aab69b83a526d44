"""Says what a pre-training would need, before it runs: memory and time, on devices that need
not be there.

python launch/plan.py --config=configs/gpt1.py --topology=v5e:4x4 [--data=DIR]
python launch/plan.py --config=configs/gpt1.py --topology=v5e:4x4 --config.trunk.dtype=bfloat16
  --vary=data.batch_size=128,512 --vary=train.remat=none,dots --price=1.2
"""

from absl import flags

import command_line

DEFAULTS = command_line.defaults("plan")
CONFIG = command_line.define_config(default="gpt1", takes="PretrainConfig")
TOPOLOGY = flags.DEFINE_string(
  "topology",
  DEFAULTS["topology"],
  "devices, such as v5e:4x4, v5p:2x2x2, v6e:8x8 (compiled; extra tpu) or h100:8 (a formula); "
  "default: those of this machine",
)
VARY = flags.DEFINE_multi_string(
  "vary", [], "FIELD=VALUE,VALUE,… of the config: a plan for each, side by side"
)
DATA = command_line.define_folders(
  DEFAULTS["data"], "folders that launch/prepare.py wrote: their vocabulary and length"
)
PRICE = flags.DEFINE_float("price", DEFAULTS["price"], "of one device for an hour", lower_bound=0)
OUT = flags.DEFINE_string("out", DEFAULTS["out"], "JSON file for the numbers")
OVERWRITE = command_line.define_overwrite()


def main():
  from gpt_jax.apps.plan import plan

  plan.run(
    CONFIG.value,
    TOPOLOGY.value,
    VARY.value,
    ",".join(DATA.value),
    price=PRICE.value,
    out=OUT.value,
    overwrite=OVERWRITE.value,
  )


if __name__ == "__main__":
  command_line.run(main)
