"""Statements that are prepared once and sent together, in one round trip.

A consumer that waits for messages sends few, small statements, and each round trip and each plan
counts. psycopg's own pipeline mode takes longer than the round trips that it saves there; this is
libpq's.
"""
