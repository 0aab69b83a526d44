"""Models of other software, read and written: transformers folders, ONNX, StableHLO.

Nothing imports it: checkpoints/formats finds its formats, as it finds its own.
"""
