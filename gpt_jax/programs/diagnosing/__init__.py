"""The parts of launch/diagnose.py: short runs of small models, and what is measured."""
