"""Seeded runs of drawn components under faults, compared with the reference interpreter."""
