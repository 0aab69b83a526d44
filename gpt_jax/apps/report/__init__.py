"""A page about a run, and its pictures: launch/report.py, plot.py and visualize.py.

All other apps may import it. record.py reads a run's folder; page.py fills page.html, answers.py
writes the sentences on it and chart.py draws.
"""
