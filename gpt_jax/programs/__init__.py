"""Programs: one module with a `run(…)` for each command in launch/.

A program reads from top to bottom and names every part once; whatever two of them need lives in the
room it belongs to. `run` takes plain values and never reads flags, so notebooks call the same code.
User errors raise InputError before the expensive part.
May import every subpackage of the package; nothing imports programs but other programs and launch/.
"""
