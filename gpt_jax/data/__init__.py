"""Text to tokens to rows, in NumPy: sources, cleaning, tokenizers, token files, windows.

May import the root files (errors, config, files, batch), the standard library and numpy; never jax,
so that preparing data and its workers start fast. Optional packages are imported inside functions.
A tokenizer is added as one file in tokenizers/, a text source as one file in sources/; both rooms
find their files by themselves, see their docstrings.
"""
