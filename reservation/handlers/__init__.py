"""Handlers: the types and checks of their declaration, their copies of entities, their results.

Calling handlers is the consumers' work (`consumers.calls`).
"""
