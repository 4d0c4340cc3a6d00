"""A report for people and programs: terminal, JSON, JUnit, Prometheus, an HTML page; and thresholds."""
