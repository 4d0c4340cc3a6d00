"""One reconciliation: a full or an incremental run, from the snapshot to the report."""
