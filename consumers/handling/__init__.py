"""Deciding on the messages of a batch: decoding, handler calls, blocking.

No effects are written here; a two-phase strategy stores its states.
"""
