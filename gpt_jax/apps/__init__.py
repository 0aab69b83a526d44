"""Products that stand on the core: a folder each, with its program, measures and pages.

An app imports the core and at most apps/report and apps/study; the core imports no app.
"""
