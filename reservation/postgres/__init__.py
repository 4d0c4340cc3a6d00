"""Shared parts for PostgreSQL: connections, errors, arrays and named queries.

Nothing here knows of messages.
"""
