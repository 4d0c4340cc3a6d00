"""The commands that run Spark: their options and help; `execution` holds the work they do."""
