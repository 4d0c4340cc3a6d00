"""Running consumers within a test: to the end of their categories, or batch by batch."""

import time
from collections.abc import Sequence
from typing import Any

from psycopg import Connection, conninfo

import consumers
from bank import account
from bank.invariants import check_invariants, progress
from consumers import Drained
from consumers.batch.batch import Batch, BatchResult
from consumers.decisions.blocking import ALL_OR_NOTHING, FailurePolicy
from consumers.group.membership import GroupShare, Membership
from consumers.group.positions import Positions
from consumers.runtime.context import ConsumerContext
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session
from reservation import Component, MessageStore
from tests.processes import PATIENCE

RESERVED = "accountTransaction"
READS = ["account:command", RESERVED]


def new_batch(connection: Connection[Any], component: Component, category: str) -> Batch:
    """Return a runner of batches of a category, with nothing claimed."""
    return Batch(ConsumerContext.of(connection, component, category))


class Claimed:
    """A category that was taken over from its holder, handled batch by batch."""

    def __init__(self, connection: Connection[Any], component: Component, category: str) -> None:
        self._batch = new_batch(connection, component, category)
        self.positions = claim(connection, component.name, category)

    def run(
        self, limit: int, *, careful: bool = False, policy: FailurePolicy = ALL_OR_NOTHING
    ) -> BatchResult:
        """Run one batch."""
        return self._batch.run(self.positions, limit, careful=careful, policy=policy)


def claim(connection: Connection[Any], consumer: str, category: str) -> Positions:
    """Take a category over, as if its holder were gone."""
    connection.execute("DELETE FROM reservation.members")
    log = Log(consumer, category)
    membership = Membership(session(connection.info.dsn), consumer, category, GroupShare(), log)
    membership.join(connection)
    # A connection that was cut a moment ago may still move the position; a member would not wait.
    connection.execute(
        "SELECT FROM reservation.positions WHERE consumer = %s AND category = %s FOR UPDATE",
        [consumer, category],
    )
    membership.turn(connection)
    return membership.positions


def batch(connection: Connection[Any], category: str, component: Component = account) -> Claimed:
    """Claim a category for a component."""
    return Claimed(connection, component, category)


def session(database_url: str) -> Session:
    """Return the session of a consumer, to be entered."""
    return Session(database_url, "reservation test", Log("test", "test"))


def address(connection: Connection[Any]) -> str:
    """Return the address that a connection was opened with, its password included."""
    info = connection.info
    return conninfo.make_conninfo(
        info.dsn, **({"password": info.password} if info.password else {})
    )


def drain(connection: Connection[Any], component: Component = account) -> Drained:
    """Handle all messages of a component's categories, as if their holders were gone."""
    connection.execute("DELETE FROM reservation.members")
    return consumers.drain(component, address(connection))


def batches(connection: Connection[Any], component: Component = account) -> list[BatchResult]:
    """Take every category to its end, and return each batch; a failing message is an error."""
    results = []
    for category in (component.command_category, *component.reservation_categories):
        claimed = batch(connection, category, component)
        while (result := claimed.run(100)).read:
            results.append(result)
    return results


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
        CREATE TRIGGER lengthen BEFORE INSERT OR UPDATE ON reservation.leases
        FOR EACH ROW EXECUTE FUNCTION public.lengthen();
        """
    )


def broken(connection: Connection[Any], acknowledged: Any = ()) -> dict[str, list[str]]:
    """Return the broken invariants, with what breaks them."""
    found = check_invariants(connection, acknowledged)
    return {invariant.name: invariant.broken_by for invariant in found if not invariant.holds}
