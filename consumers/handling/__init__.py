"""Deciding what each message brings about: decoding, calling handlers, blocking. Nothing here writes."""
