"""Says what a pre-training would need, before it runs: memory and time, on devices that need
not be there.

python launch/plan.py --config=configs/gpt1.py --topology=v5e:4x4 [--data=DIR]
python launch/plan.py --config=configs/gpt1.py --topology=h100:8 --config.trunk.dtype=bfloat16
python launch/plan.py --config=configs/gpt1.py --topology=v5e:4x4 --config.trunk.dtype=bfloat16
  --vary=data.batch_size=128,512 --vary=train.remat=none,dots --price=1.2
"""

import command_line

PROGRAM = command_line.program("plan", config="gpt1")

if __name__ == "__main__":
  command_line.run(PROGRAM.run, needs_jax=False)  # the formula for GPUs
