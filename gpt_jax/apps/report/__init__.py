"""A page about a run, and its pictures: launch/report.py, plot.py and visualize.py.

All other apps may import it.
"""
