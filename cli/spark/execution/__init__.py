"""What the Spark commands do. It imports Spark, so `cli.common.lazy` loads it for a run only."""
