"""What became of a command: the question, its outcome, and waiting for it."""
