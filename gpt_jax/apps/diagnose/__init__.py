"""What a model does as it trains and grows: launch/diagnose.py.

Each part measures (gradients.py, rates.py, sampling.py, scaling.py) and has a section of the page.
"""
