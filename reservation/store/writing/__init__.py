"""Writing: messages are encoded, checked, and sent one by one, in batches, or later."""
