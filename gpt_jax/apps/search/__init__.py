"""Search: nearest texts by their embeddings, and how good they are: launch/search.py."""
