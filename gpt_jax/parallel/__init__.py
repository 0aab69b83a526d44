"""Devices and processes: the mesh, path rules that partition parameters, placing batches.

A model knows nothing of this but `constrain` and `axis_size`; rules on parameter paths stand beside
each trunk. May import the root files only, besides jax.
"""
