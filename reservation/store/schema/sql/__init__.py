"""The store's SQL. A file takes effect only if `reservation.store.schema.install` lists it.

A file with a number is a migration: it changes tables, and runs once. The other files are run again
by each upgrade.
"""
