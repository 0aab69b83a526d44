"""Checks the labels of a table, and labels the rest: launch/label.py.

label.py is the program; measures.py what it promises, pool.py the rows to label next, page.py its
page.
"""
