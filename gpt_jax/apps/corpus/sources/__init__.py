"""Texts in the files of other software, see data/sources."""
