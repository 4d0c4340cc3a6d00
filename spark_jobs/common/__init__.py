"""What all packages of the Spark jobs share: results, errors, files, times."""
