"""Faults of the consumers' environment: none of them is the fault of a message."""

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import Connection

from reservation.store.schema.preconditions import repair_sequence
from reservation.store.schema.roles import grant

ROLE = "chaos_consumer"
LATE = "thing:command-late%"  # the streams of rows that become visible late, as a pattern

ENVIRONMENT = ["insert revoked", "update revoked", "select revoked", "sequence", "late"]

_RIGHTS = {
    "insert revoked": "INSERT ON message_store.messages",
    "update revoked": "UPDATE ON reservation.leases",
    "select revoked": "SELECT ON message_store.messages",
}


class Environment:
    """A database whose rights, sequence and writers are faulty until it is repaired."""

    control: Connection[Any]

    def __init__(self, address: str) -> None:
        self._address = address
        self._mends: list[Callable[[], object]] = []
        self._writers: list[Connection[Any]] = []

    def make_role(self) -> None:
        """Make the role of the consumers."""
        control = self.control
        if not control.execute("SELECT FROM pg_roles WHERE rolname = %s", [ROLE]).fetchall():
            control.execute(f"CREATE ROLE {ROLE} LOGIN")
        granted = "SELECT has_table_privilege(%s, 'reservation.leases', 'UPDATE')"
        if not control.execute(granted, [ROLE]).fetchall()[0][0]:
            grant(control, "consumer", ROLE)

    def disturb(self, kind: str) -> None:
        """Cause a fault that lasts until `mend`."""
        if right := _RIGHTS.get(kind):
            self.control.execute(f"REVOKE {right} FROM {ROLE}")
            self._mends.append(lambda: self.control.execute(f"GRANT {right} TO {ROLE}"))
        elif kind == "sequence":
            self._set_back()
        elif kind == "late":
            self._insert_late()

    def mend(self) -> bool:
        """Repair everything; return whether anything was wrong."""
        wrong = bool(self._mends or self._writers)
        while self._writers:  # first, because a repair of the sequence waits for writers
            with self._writers.pop() as writer:
                writer.commit()
        while self._mends:
            self._mends.pop()()
        return wrong

    def _set_back(self) -> None:
        """Set the sequence back, not to a gap: what is written there would be behind positions."""
        self.control.execute(
            "SELECT setval('message_store.messages_global_position_seq', max(global_position) - 1)"
            " FROM message_store.messages HAVING max(global_position) > 1"
        )
        self._mends.append(lambda: repair_sequence(self.control))

    def _insert_late(self) -> None:
        """Have a writer without a lock commit after its successors."""
        writer = psycopg.connect(self._address)
        writer.execute(
            "INSERT INTO message_store.messages (stream_name, type, position, data)"
            " VALUES (%s, 'Ignored', 0, '{}')",
            [LATE.replace("%", str(uuid.uuid4()))],
        )
        self._writers.append(writer)
