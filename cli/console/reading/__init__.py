"""What the pages show, read with few statements whatever is stored."""
