"""Correcting messages that could not be handled: what a correction must say, and writing it."""
