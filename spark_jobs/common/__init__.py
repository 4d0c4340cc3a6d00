"""What all packages of Spark jobs share: results, errors, files, times."""
