"""The code of Spark commands. It imports Spark, so `cli.common.lazy` loads it for a run only."""
