"""The parts of launch/label.py: one table, the probe's checkpoint, and what is measured."""
