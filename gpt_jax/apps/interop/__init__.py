"""Other software: its models (transformers folders, ONNX, StableHLO) and vocabularies.

Nothing imports it: the rooms find its files as they find their own, see extensions.py.
"""
