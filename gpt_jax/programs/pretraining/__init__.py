"""The parts of launch/pretrain.py: its config, and the text with what is measured on it."""
