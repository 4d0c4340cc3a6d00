"""The message store: PostgreSQL with the schema of Message DB. Clients, statements, notifications.

The store knows nothing of components, strategies or consumers.
"""
