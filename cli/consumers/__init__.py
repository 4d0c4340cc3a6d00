"""The commands that start consumers and look at or change what they left."""
