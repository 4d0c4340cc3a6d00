"""Entry points: a single job for ``spark-submit``, archiving, and storing Java's classes."""
