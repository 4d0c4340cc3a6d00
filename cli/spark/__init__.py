"""The commands that run Spark: reconcile, archive and what Spark needs elsewhere."""
