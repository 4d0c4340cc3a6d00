"""A report's `--details`: latency, volume, and who sends again."""
