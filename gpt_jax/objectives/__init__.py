"""Pre-training objectives: windows of token ids to batches with predictions.

A file an objective or a family, registered by name; numpy only, may import data/ and root files.
To add one: a frozen config dataclass with `attention`, `special`, `heads`, `format` and
`bind(tokenizer, length)`, see objective.py; its head is a file in models/heads/. Noise comes from
the `draw` it is given.
"""
