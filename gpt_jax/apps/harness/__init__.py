"""EleutherAI's harness: launch/harness.py."""
