"""Products that stand on the core: a folder each, with its program, measures and pages.

An app imports the core, apps/report and the files beside this one; the core imports no app.
"""
