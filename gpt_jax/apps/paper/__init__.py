"""The paper repeated: launch/reproduce.py, zero_shot.py, glue.py and quickstart.py."""
