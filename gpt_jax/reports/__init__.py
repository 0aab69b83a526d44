"""What the folder of a run says, as a page to read: record -> answers, charts -> page.

Reads files that runs wrote and copes where some are missing; computes nothing with a model.
"""
