"""Diagnoses how a language model trains, scales and samples: launch/diagnose.py.

gradients.py, scaling.py, short_runs.py (learning rates) and sampling.py measure, sections.py shows.
"""
