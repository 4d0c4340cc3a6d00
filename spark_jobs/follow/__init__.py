"""follow."""
