"""Trunks: token ids to hidden states. A trunk is a config, a module and its tensor-parallel rules, in one file."""
