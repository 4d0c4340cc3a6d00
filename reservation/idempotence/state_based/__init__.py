"""state_based."""
