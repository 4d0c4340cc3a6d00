"""Scripts that change the tables for the versions after the first: ``002_….sql`` and so on.

Each runs once, in the transaction of its upgrade, which then makes all functions again. A new store
runs them too, before it has any function. A function whose arguments or result change is dropped
here first, with ``DROP FUNCTION IF EXISTS``.
"""
