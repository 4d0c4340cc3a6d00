"""What all code that uses PostgreSQL shares: connections, errors, arrays and named queries.

Nothing here knows of messages.
"""
