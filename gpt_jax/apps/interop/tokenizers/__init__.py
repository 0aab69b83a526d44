"""Vocabularies of other software, see data/tokenizers."""
