"""What gives messages their verdicts: rules, fingerprints, and comparison by meaning.

What is read and how findings are counted is in the jobs above.
"""
