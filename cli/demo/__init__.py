"""``reservation demo``: the whole, on real processes and an embedded PostgreSQL."""

from cli.demo.command import demo

__all__ = ["demo"]
