"""The parts of the page of launch/diagnose.py: an answer, charts and tables each."""
