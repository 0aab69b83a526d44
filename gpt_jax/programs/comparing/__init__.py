"""The parts of programs/compare.py: pre-training objectives in one table."""
