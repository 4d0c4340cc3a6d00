"""The process that Spark forks its Python workers from, with what they need imported beforehand.

Spark's own daemon imports nothing, so each worker would, and would take a second for it.
"""

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import spark_jobs.source.reading  # noqa: F401

if __name__ == "__main__":
    manager()
