"""Runs whose senders write through pgbouncer in transaction mode."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from reservation.errors import StoreError
from reservation.postgres.connection import connect
from tests.reference.plans import build
from tests.reference.world import World
from tests.soak.chaos.alone import Alone
from tests.soak.chaos.skipping import Skipped
from tests.support.pgbouncer import PROGRAM, pgbouncer

if TYPE_CHECKING:
    from tests.soak.chaos.stores import Stores


class Pooler(Alone):
    """Consumers connect directly, and refuse to start behind the pooler."""

    def world(self, stores: "Stores") -> World:
        """Return a store whose senders are behind a pooler."""
        if PROGRAM is None:
            raise Skipped("pgbouncer is not installed")
        made = World(stores.shared())
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        address = self._stack.enter_context(pgbouncer(made.owner, folder, "transaction"))
        made.sender = self._stack.enter_context(connect(address, autocommit=True))
        self._behind = address
        return made

    def play(self) -> list[str]:
        """Play it; return the violations."""
        direct, self.played.address = self.played.address, self._behind
        try:
            self.played.plan = self.history.plan
            self.played.component = build(self.played.plan)
            self.played.drain("thing:command", 1, {}, 1)
        except StoreError:
            self.played.address = direct
            return super().play()
        return ["a consumer started behind a pooler in transaction mode"]

    def close(self) -> None:
        """Stop the pooler."""
        self.played.close()
        self._stack.close()
