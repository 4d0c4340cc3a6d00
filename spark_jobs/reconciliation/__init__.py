"""One reconciliation: what is read, a full or an incremental run, and the state between runs."""
