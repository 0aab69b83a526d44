"""Formats of other software, see checkpoints/formats; the files without HELP are shared by them."""
