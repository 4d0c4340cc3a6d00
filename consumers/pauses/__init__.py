"""Pauses: what people have stopped for a while, who did, and why.

`administration` pauses and resumes; `current` is what a running consumer knows of it.
"""
