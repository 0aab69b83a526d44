"""Baselines of the benchmark: the same work in PyTorch and transformers, as their users write it.

plain_gpt: a GPT in PyTorch; training: its training step and transformers'; generation:
transformers' GPT-2 with its cache; packages, transformers_model, update: shared code.
"""
