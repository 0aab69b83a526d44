"""Labeled tasks, one small file each; a new file here is a new task."""
