"""The store's SQL, a file for each step of the installation."""
