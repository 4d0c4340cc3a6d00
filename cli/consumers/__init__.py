"""The commands that start consumers, and that show or change their state in the store."""
