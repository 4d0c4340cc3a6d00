"""Spark jobs that compare what is stored with what the consumers promise.

The packages, from the top: `jobs`, `report`, `follow`, `reconciliation`, `archive`, `analysis`,
`snapshot`, `session`, `source`, `common`. Each imports only from those after it.
"""
