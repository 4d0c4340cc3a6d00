"""What runs leave to the next ones: summaries, where they were read up to, and a manifest."""
