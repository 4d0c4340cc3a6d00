"""Reading where the consumers are: stored positions, lag, and who holds each partition."""
