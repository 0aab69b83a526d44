"""The server: launch/serve.py."""
