"""Experiment trackers, see training/trackers."""
