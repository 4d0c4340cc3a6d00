"""Declarations of a component's messages, and of those of the categories it subscribes to."""
