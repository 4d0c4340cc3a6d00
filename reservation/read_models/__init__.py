"""Read models: tables made from events, in a schema for each version, and views for readers."""
