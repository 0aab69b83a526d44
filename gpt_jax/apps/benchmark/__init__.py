"""The speed of everything, beside peers: launch/benchmark.py."""
