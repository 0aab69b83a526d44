"""Heads: what is computed from a trunk's hidden states, one file each or for two that go together.

A file has the config (registered by name), the flax module, the loss, and the decoding of a head;
see head.py for what it must offer. A model has a tuple of heads with loss weights. To add one: a
new file here; an objective or a task then names it.
"""
