"""Parts of the program prepare: what is removed from a text, and runners that share the work."""
