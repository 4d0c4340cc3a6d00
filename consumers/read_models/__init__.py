"""The versions of read models in a store: how far they are, switching views, proving the rows."""
