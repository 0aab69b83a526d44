"""The parts of launch/benchmark.py that are more than a few lines.

timing: calls in turns; training, finetuning, generation: their speed, and that of peers;
attention: its backends; memory: planned and measured; growth: how the cost grows with each size;
peers/: the same work in PyTorch and transformers.
"""
