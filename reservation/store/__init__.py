"""The message store: PostgreSQL, as Message DB lays it out."""
