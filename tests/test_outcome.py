"""What became of a command: each state, for each way to be idempotent."""
