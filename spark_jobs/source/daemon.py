"""The process that Spark forks its Python workers from, with what they need imported beforehand.

Spark's own daemon imports nothing, so each worker would, and would take a second for it.
"""

import sys
from zipimport import zipimporter

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import spark_jobs.source.reading  # noqa: F401

# Each worker would read the contents of Spark's zip files again, which takes it 0.2 seconds.
for place, finder in [*sys.path_importer_cache.items()]:
    if isinstance(finder, zipimporter):
        del sys.path_importer_cache[place]

if __name__ == "__main__":
    manager()
