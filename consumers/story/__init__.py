"""The story of a command: what became of it, from a key, a stream or the id of a message.

`reading` holds the reads, `following` finds what belongs together, `story` says what it is.
"""
