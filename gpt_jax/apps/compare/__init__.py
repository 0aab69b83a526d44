"""Pre-training objectives in one table: launch/compare.py."""
