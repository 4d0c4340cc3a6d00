"""Between dataclasses and the JSON text that the store holds, and what PostgreSQL's jsonb takes of it."""
