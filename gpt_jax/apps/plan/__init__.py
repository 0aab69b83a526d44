"""What a pre-training would need, before it runs: launch/plan.py."""
