"""``reservation check``: its options, the work, its table and its JSON."""
