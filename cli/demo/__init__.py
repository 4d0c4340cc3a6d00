"""``reservation demo``: the whole, on real processes and an embedded PostgreSQL."""
