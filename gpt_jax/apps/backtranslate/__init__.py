"""Back-translation: synthetic training pairs from text of the target language alone."""
