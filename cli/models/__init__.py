"""``reservation models``: the versions of read models."""
