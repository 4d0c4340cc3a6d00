"""Deciding what each message brings about: decoding, handler calls, blocking.

Nothing here writes.
"""
