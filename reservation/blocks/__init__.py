"""The blocks of a handler: an ORM on the batch's connection, and a connection of its own.

SQLAlchemy and Django are imported by the first block that needs them.
"""
