"""The process that Spark forks its Python workers from, with what they need imported beforehand.

Spark's own imports nothing, so that each worker does by itself, which takes it a second.
"""

import adbc_driver_postgresql.dbapi  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import spark_jobs.source.reading  # noqa: F401

if __name__ == "__main__":
    manager()
