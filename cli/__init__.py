"""The command line: thin commands over the library, the consumers and the Spark jobs."""
