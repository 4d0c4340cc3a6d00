"""Arrow tables of a few numbers for each message, by which groups are found to be in order."""
