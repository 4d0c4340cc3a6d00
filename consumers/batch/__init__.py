"""One batch, one transaction: read, decide, write, move the position, commit."""
