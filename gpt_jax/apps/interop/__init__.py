"""Other software: its models (transformers folders, ONNX, StableHLO), vocabularies and trackers.

Nothing imports it: the rooms find its files as they find their own, see extensions.py.
"""
