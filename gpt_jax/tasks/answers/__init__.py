"""Kinds of answers: what a task asks of an example, one file each.

A file has the head that learns the answer, its targets, loss, metrics and decoding, and what
programs, the server, exports and model cards say of it. To add a kind: a new file here, and a head
in gpt_jax/models/heads/ if none fits.
answer.py has the base class, with defaults; ../task.py is the kind with one label per example.
"""
