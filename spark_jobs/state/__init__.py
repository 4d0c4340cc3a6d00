"""State for later runs: summaries, where they were read up to, and a manifest."""
