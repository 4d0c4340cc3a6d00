"""The message store: PostgreSQL, as Message DB lays it out. Clients, statements, notifications.

The store knows nothing of components, strategies or consumers.
"""
