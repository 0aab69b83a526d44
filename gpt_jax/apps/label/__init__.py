"""Checks the labels of a table, and labels the rest: launch/label.py.

label.py is the program; measures.py what it promises, probe.py its linear model, page.py its page.
"""
