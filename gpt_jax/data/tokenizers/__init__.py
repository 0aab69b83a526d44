"""Tokenizers: text to ids and back. May import gpt_jax.errors, gpt_jax.files and numpy; never jax.

`base.load_tokenizer(folder)` loads any of them. To add one, write one file that declares KINDS,
`detect(folder)` and `load(folder, metadata)` (see base.TokenizerFile); it is found by its place in
this folder, or in apps/<app>/tokenizers/, and nothing else is edited. Optional packages are
imported by `released.require`.
"""
