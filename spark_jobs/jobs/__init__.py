"""Entry points: a job as ``spark-submit`` starts it, archiving, and preparing Java's classes."""
