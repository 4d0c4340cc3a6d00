"""Runs in which the server crashes, or a replica takes over that lost the last transactions."""

from typing import TYPE_CHECKING

from psycopg import conninfo, sql

from reservation.postgres.connection import connect
from tests.reference.drawing import FAULTS, Seeded, history
from tests.reference.histories import Action, Run, Send
from tests.reference.world import World, send
from tests.soak.chaos.alone import Alone

if TYPE_CHECKING:
    from tests.soak.chaos.stores import Stores
    from tests.support.servers import OwnServer


class _Crashing(World):
    """A store whose server is stopped at once and started again."""

    server: "OwnServer"

    def outage(self, kind: str) -> None:
        self.environment.mend()
        self.server.crash()
        self.server.start()
        self.control.close()
        self.connect()


class _FailingOver(World):
    """A store that is replaced by an earlier copy, as by a replica that lost the tail.

    The replica is a copy of the database, made before messages are sent or consumers run. What was
    sent since then is sent again: a sender of which nothing is known any more does so. Nothing of
    an earlier run is lost: each category would be read again, and events come in another order.
    """

    copied = False
    ran = False

    def before(self, action: Action) -> None:
        self.copied = self.copied and not self.ran
        self.ran = isinstance(action, Run)
        if isinstance(action, Run) and not any(fault.kind == "failover" for fault in action.faults):
            self.copied = False
        elif not self.copied:
            self.sent: list[Send] = []
            self._copy()
        if isinstance(action, Send):
            self.sent.append(action)

    def outage(self, kind: str) -> None:
        if not self.copied:
            return
        self.copied = False
        self._swap()
        for action in self.sent:
            send(self.control, action.messages)

    def _copy(self) -> None:
        self._admin(
            "DROP DATABASE IF EXISTS {copy} WITH (FORCE)",
            "CREATE DATABASE {copy} TEMPLATE {name} STRATEGY file_copy",
        )
        self.copied = True

    def _swap(self) -> None:
        self._admin(
            "ALTER DATABASE {name} ALLOW_CONNECTIONS false",
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = {text}",
            "ALTER DATABASE {name} RENAME TO {old}",
            "ALTER DATABASE {copy} RENAME TO {name}",
            "DROP DATABASE {old} WITH (FORCE)",
        )

    def _admin(self, *statements: str) -> None:
        """Change the database while nobody of ours is connected to it."""
        name = str(conninfo.conninfo_to_dict(self.owner)["dbname"])
        self.close()
        with connect(conninfo.make_conninfo(self.owner, dbname="postgres"), autocommit=True) as on:
            for statement in statements:
                on.execute(
                    sql.SQL(statement).format(
                        name=sql.Identifier(name),
                        copy=sql.Identifier(f"{name}_copy"),
                        old=sql.Identifier(f"{name}_old"),
                        text=sql.Literal(name),
                    )
                )
        self.connect()

    def drop(self) -> None:
        """Drop the copy."""
        self._admin("DROP DATABASE IF EXISTS {copy} WITH (FORCE)")


class Crash(Alone):
    """The server crashes between two statements."""

    def draw(self, seed: int) -> None:
        kinds = [*FAULTS, *["crash"] * len(FAULTS)]
        self.history = history(Seeded(seed), kills=3, kinds=kinds)

    def world(self, stores: "Stores") -> World:
        made = _Crashing(stores.own())
        made.server = stores.server
        return made


class Failover(Alone):
    """A replica that lost its tail takes over between two statements."""

    def draw(self, seed: int) -> None:
        kinds = [*FAULTS, *["failover"] * len(FAULTS)]
        self.history = history(Seeded(seed), kills=3, kinds=kinds)

    def world(self, stores: "Stores") -> World:
        return _FailingOver(stores.shared())

    def close(self) -> None:
        self.played.drop()
        super().close()
