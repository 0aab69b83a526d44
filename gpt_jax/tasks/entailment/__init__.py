"""Natural language inference outside GLUE: SNLI and SciTail."""
