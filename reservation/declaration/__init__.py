"""What a component declares of messages: its own, and those of the categories it subscribes to."""
