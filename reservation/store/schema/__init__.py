"""The schemas of the store in a database: installing them, what roles may do, and what has to be there."""
