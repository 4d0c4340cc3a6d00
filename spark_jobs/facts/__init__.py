"""Facts: one row of numbers a message, made by SQL in the server."""
