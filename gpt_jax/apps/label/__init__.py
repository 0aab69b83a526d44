"""Checks the labels of a table, and labels the rest: launch/label.py."""
