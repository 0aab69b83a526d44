"""Training: optimizer and schedules, the compiled step, the loop with its hooks, and the trainer.

Start at trainer.py, which assembles the parts; loop.py is the loop itself and hooks.py what runs
between updates. step.py has gradient and update, reporter.py metrics.jsonl and the console,
flops.py MFU, transfer.py what fine-tuning takes from a checkpoint.
May import checkpoints and the subpackages above; knows no task and no objective.
"""
