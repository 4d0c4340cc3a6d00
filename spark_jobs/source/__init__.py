"""The Spark data source ``message_store``, for batches and streams, and the SQL of its reads."""

from spark_jobs.source.source import MessageStoreSource

__all__ = ["MessageStoreSource"]
