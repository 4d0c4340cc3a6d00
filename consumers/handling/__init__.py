"""Deciding on the messages of a batch: decoding them, and calling their handlers.

No effects are written here.
"""
