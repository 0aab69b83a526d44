"""The parts of launch/finetune.py: its config, what a run starts from, and what it measures."""
