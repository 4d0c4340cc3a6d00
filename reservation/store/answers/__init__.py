"""The outcome of a command: asking for it, and waiting for it."""
