"""Strategies that make a handler idempotent, a module or a package each, and idempotence keys.

The consumers ask a strategy through `strategy.Strategy`; nothing here handles a message.
"""
