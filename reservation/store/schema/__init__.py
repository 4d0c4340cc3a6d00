"""The schemas of the store in a database: installing them, checking them, and rights of roles."""
