"""Dead letters: why a message could not be handled, where it is stored, and what people do with it."""
