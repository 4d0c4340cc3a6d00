"""One snapshot of the store: the consumers' positions, heads, tallies and checksums."""
