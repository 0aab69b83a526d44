"""Kinds of answers: what a task asks of an example, one file each.

A file has the head that learns the answer, its targets, loss, metrics and decoding, and what
programs, the server, exports and model cards say of it. To add a kind: a new file here, and a head
in gpt_jax/models/heads/ if none fits.

answer.py      LabeledTask, the base class: what a kind may say, with defaults
../task.py     one of the labels, or one of the choices
labels.py      any number of the labels
number.py      a number
tags.py        a label for each word
span.py        a part of a context, or none
text.py        a text that the model writes: the label in words
"""
