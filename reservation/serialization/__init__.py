"""Between dataclasses and the JSON text of the store, within the limits of PostgreSQL's jsonb."""
