"""handling."""
