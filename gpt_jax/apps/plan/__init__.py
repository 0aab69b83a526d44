"""Plans a pre-training run before it starts: launch/plan.py."""
