"""Ways to make the handling of a command idempotent."""
