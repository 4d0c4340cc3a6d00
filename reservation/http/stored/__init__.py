"""State in the database: requests, their answers, and those in progress."""
