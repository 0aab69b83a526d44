"""How a language model trains, scales and samples: launch/diagnose.py."""
