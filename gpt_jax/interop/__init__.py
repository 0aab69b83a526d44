"""Parameters to and from other formats."""
