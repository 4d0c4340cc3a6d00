"""``reconcile --follow``: round after round, and violations that persist."""
