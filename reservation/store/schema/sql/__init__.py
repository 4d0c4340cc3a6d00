"""The store's SQL. A file takes effect if `reservation.store.schema.scripts` lists it."""
