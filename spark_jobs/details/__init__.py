"""What `--details` adds to a report: latency, volume, and who sends again."""
