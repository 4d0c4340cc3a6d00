"""Spark jobs that hold what is stored against what the consumers promise."""
