"""Messages as they are stored, what they are named by, and what they carry beside their data.

Nothing here reads or writes the store.
"""
