"""``reservation store`` and ``reservation prune``: schemas, rights, notices, repair and removal."""
