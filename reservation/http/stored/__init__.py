"""What is kept in the database: requests, their answers, and which are in progress."""
