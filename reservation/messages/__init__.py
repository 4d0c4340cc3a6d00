"""Messages as they are stored: their ids, types, metadata and the names of their streams.

Nothing here reads or writes the store.
"""
