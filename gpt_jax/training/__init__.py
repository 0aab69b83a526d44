"""Training: optimizer and schedules, the compiled step, the loop with its hooks, and the trainer.

Start at recipe.py, what a run trains, and run.py, what every run does with it; trainer.py is the
compiled step, loop.py the loop itself and hooks.py what runs between updates. step.py has gradient
and update, reporter.py metrics.jsonl, the console and MFU.
May import checkpoints and the subpackages above; knows no objective.
"""
