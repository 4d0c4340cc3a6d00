"""Seeded runs of drawn components under faults, held against the reference interpreter."""
