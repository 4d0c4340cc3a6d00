"""Shared parts of the Spark jobs: results, errors, files, times."""
