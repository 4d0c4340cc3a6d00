"""A bank's accounts: the example that the demo runs, ``bank:account``."""

from bank.component import account

__all__ = ["account"]
