"""Diagnoses how a language model trains, scales and samples: launch/diagnose.py.

Each part takes measurements (gradients.py, rates.py, sampling.py, scaling.py) and has a section of
the page.
"""
