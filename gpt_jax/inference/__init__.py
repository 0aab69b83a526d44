"""A trained model at work: generate, score, evaluate, predict, look at attention.

model.py is what gpt_jax.load gives. Functions take a LoadedModel or a flax model with parameters;
none trains, reads flags or prints. May import training/ and what stands above it.
"""
