"""The group of processes that share a category: members, positions, and their administration."""
