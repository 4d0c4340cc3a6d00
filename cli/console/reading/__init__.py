"""Contents of pages, read with few statements whatever is stored."""
