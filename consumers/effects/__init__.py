"""What the messages of a batch bring about, and which of them are set aside."""
