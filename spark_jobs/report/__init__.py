"""A report for people and for programs, and the thresholds that decide the exit status."""
