"""Models: trunks, heads, and the model that puts them together; all flax Linen.

trunk.py and heads/head.py say what a trunk and a head are; model.py assembles them, loss.py sums
the heads' losses. Configs are registered by name and travel with checkpoints. May import ops/,
parallel/ and the subpackages above. To add a trunk: one file like lstm.py; a head: one file in
heads/; a bias on attention scores: one file like alibi.py.
"""
