"""Draining consumers within a test, and waiting for those that run."""

import time
from collections.abc import Sequence
from typing import Any

from psycopg import Connection, conninfo

import consumers
from bank import account
from bank.invariants import check_invariants, progress
from consumers import Drained
from consumers.batch.batch_runner import BatchRunner
from consumers.runtime.context import ConsumerContext
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session
from reservation import Component, MessageStore
from tests.support.started import PATIENCE

RESERVED = "accountTransaction"
READS = ["account:command", RESERVED]


def new_batch(connection: Connection[Any], component: Component, category: str) -> BatchRunner:
    """Return a runner of batches of a category, with nothing claimed."""
    return BatchRunner(ConsumerContext.of(connection, component, category))


def session(database_url: str) -> Session:
    """Return the session of a consumer, to be entered."""
    return Session(database_url, "reservation test", Log("test", "test"))


def address(connection: Connection[Any]) -> str:
    """Return the address that a connection was opened with, its password included."""
    info = connection.info
    return conninfo.make_conninfo(
        info.dsn, **({"password": info.password} if info.password else {})
    )


def drain(connection: Connection[Any], component: Component = account, **options: Any) -> Drained:
    """Handle all messages of a component's categories, as if their holders were gone."""
    connection.execute("DELETE FROM reservation.members")
    return consumers.drain(component, address(connection), **options)


def event_types(store: MessageStore, account_id: str = "123") -> list[str]:
    """Return the types of an account's events, in order."""
    return [message.type for message in store.read_stream(f"account-{account_id}")]


def wait_until_drained(
    connection: Connection[Any], *running: Any, categories: Sequence[str] = READS
) -> None:
    """Wait until the consumers have handled everything, and check that they run.

    It does not matter who commits, so it looks at the stored positions.
    """
    deadline = time.monotonic() + PATIENCE
    while any(progress(connection)[category][0] for category in categories):
        for started in running:
            assert started.process.poll() is None, started.log
        assert time.monotonic() < deadline, progress(connection)
        time.sleep(0.02)


def holder(connection: Connection[Any], category: str) -> int:
    """Return the process that holds the first partition of a category."""
    rows = connection.execute(
        "SELECT process FROM reservation.positions p JOIN reservation.members m "
        "ON m.member = p.holder WHERE p.category = %s AND p.partition = 0",
        [category],
    ).fetchall()
    return int(rows[0][0].rpartition(":")[2])


def lengthen_leases(connection: Connection[Any]) -> None:
    """Let no lease expire, however long a process gets no time; sessions that end still count."""
    connection.execute(
        """
        CREATE FUNCTION public.lengthen() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          NEW.expires_at := NEW.expires_at + interval '5 minutes';
          RETURN NEW;
        END $$;
        CREATE TRIGGER lengthen BEFORE INSERT OR UPDATE ON reservation.heartbeats
        FOR EACH ROW EXECUTE FUNCTION public.lengthen();
        """
    )


def broken(connection: Connection[Any], acknowledged: Any = ()) -> dict[str, list[str]]:
    """Return the broken invariants, with what breaks them."""
    found = check_invariants(connection, acknowledged)
    return {invariant.name: invariant.broken_by for invariant in found if not invariant.holds}
