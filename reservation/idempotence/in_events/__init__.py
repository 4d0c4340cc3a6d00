"""Strategies that recognize a handled message by what the events of its entity say of it."""
