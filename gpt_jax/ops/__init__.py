"""Array operations of models: dropout by a counter hash, attention, chunked cross-entropy.

Pure functions of arrays, no parameters, no configs; may import parallel/ and the subpackages above.
To add an attention backend: a file attention_<name>.py with `attend`, see attention.py; a trunk
chooses it by name.
"""
