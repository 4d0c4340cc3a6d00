"""What the framework costs, as ratios against a peer or the limit, measured in one run."""
