"""What a run found, shown to people and to programs."""
