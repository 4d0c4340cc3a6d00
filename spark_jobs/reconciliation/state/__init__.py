"""What runs leave to the next ones, and how a run goes on from there."""
