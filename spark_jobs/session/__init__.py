"""The Spark session, what it is given, and whether what it needs is there."""
