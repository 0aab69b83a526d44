"""Kinds of answers: what a task asks of an example, one file each.

labels.py      any number of the labels
number.py      a number
tags.py        a label for each word
text.py        a text that the model writes: the label in words
"""
