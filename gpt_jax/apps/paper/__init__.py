"""The paper repeated: launch/reproduce.py, tasks.py, zero_shot.py, glue.py and quickstart.py."""
