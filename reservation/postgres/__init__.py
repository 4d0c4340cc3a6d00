"""What all code that talks to PostgreSQL shares: connections, errors, arrays and named queries.

Nothing here knows of messages.
"""
