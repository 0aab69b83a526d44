"""Pre-training objectives: windows of token ids to batches with predictions.

A file an objective or a family, registered by name; numpy only, may import data/ and root files.
To add one: a frozen config dataclass, see objective.py; its head is a file in models/heads/.
"""
