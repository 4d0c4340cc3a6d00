"""Dead letters: why a message was not handled, how it is stored, and changing its state."""
