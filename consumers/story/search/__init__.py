"""Finding the messages of a story: from a text to a command, and to all that belongs to it."""
