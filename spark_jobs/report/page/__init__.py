"""The report as one HTML page, with its pictures."""
