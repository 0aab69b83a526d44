"""Text sources: files and data sets to documents. May import gpt_jax.errors, the standard library
and the rest of gpt_jax.data; never jax.

`source.find(name)` and `source.documents(name)` serve all of them. To add one (say, Arrow), write
one file that declares USAGE, FOLDER_SUFFIXES, `reads(name)` and `documents(name, field)` (see
source.SourceFile); it is found by its place in this folder, or in apps/<app>/sources/, and nothing
else is edited. A file source that is plain or compressed bytes opens them with utf8.open_bytes.
"""
