"""The rows of findings: what is reported of each, and which people have accepted."""
