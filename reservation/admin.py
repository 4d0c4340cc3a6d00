"""The schemas of a database: install them, or add ours to a Message DB and take it away again."""

from reservation.store.schema.install import attach, detach, install

__all__ = ["attach", "detach", "install"]
