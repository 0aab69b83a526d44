"""Text in large quantities: no duplicates, no evaluation rows, and the work on a cluster."""
