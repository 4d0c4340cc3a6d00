"""Two holders of partitions that an entity's letters are in: no order of statements strands one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from consumers.calls.error_reports import ErrorReports
from consumers.dead_letters.letters import DeadLetters
from consumers.decisions.blocking import FailurePolicy
from consumers.group.positions import HeldPartition, Positions
from consumers.loop.retrying.attempts import Attempts
from consumers.loop.retrying.letter_retry import Retrying
from consumers.runtime.observability.logs import Log
from consumers.runtime.stopping import Stop
from reservation import MessageStore, Write
from reservation.postgres.error_translation import TO_BE_RETRIED
from tests.apps.bank import new_batch
from tests.apps.orders import PAYMENTS, Captured, new_orders
from tests.support.explorer import Explorer, Violation
from tests.support.liveness import stuck

LETTERS = DeadLetters("order", PAYMENTS)
STOP = Stop(takes_signals=False)


@dataclass(frozen=True)
class Line:
    """What there is at the beginning, in the order of the log.

    Attributes:
        letters: those that were passed, each with its partition and state.
        unread: the partitions of the messages that follow and are to be read.
    """

    letters: tuple[tuple[int, str], ...]
    unread: tuple[int, ...]

    @property
    def partitions(self) -> list[int]:
        return [partition for partition, _ in self.letters] + list(self.unread)


LINES = {
    "one ends a letter, one parks": Line(((0, "retry"),), (1,)),
    "two end letters": Line(((0, "retry"), (1, "retry"), (0, "parked"), (1, "parked")), ()),
}


def holder(partition: int) -> Callable[[Any], bool]:
    """Return what the holder of a partition does in one round, and when it takes the partition.

    The function returns whether it did anything.
    """
    component = new_orders()
    log = Log("order", PAYMENTS)
    reports = ErrorReports(component, PAYMENTS, log, debug=False, heartbeat=lambda: None)

    def consume(connection: Any) -> bool:
        def repeat(call: Callable[[bool], Any], stop: Stop) -> Any:
            lost = False
            while True:
                try:
                    return call(lost)
                except TO_BE_RETRIED as error:
                    getattr(connection, "begin_again", lambda error: None)(error)
                    lost = True

        rows = connection.execute(
            "SELECT partition, position, epoch FROM reservation.positions"
            " WHERE (consumer, category, partition) = ('order', %s, %s)",
            [PAYMENTS, partition],
        ).fetchall()
        positions = Positions("order", PAYMENTS, 2, [HeldPartition(*rows[0])])
        batch = new_batch(connection, component, PAYMENTS)
        retrying = Retrying(LETTERS, Attempts(3), repeat, reports, 100)
        LETTERS.look_again(connection, LETTERS.stranded(connection))
        transaction = batch.retry_transaction
        retried = retrying.run(connection, transaction, positions, STOP, singly=False)
        if retried.tries:
            return True
        policy = FailurePolicy(in_part=True)
        result = repeat(
            lambda careful: batch.run(positions, 100, careful=careful, policy=policy), STOP
        )
        if result.blocked:
            retrying.look_again(connection, result.blocked, STOP)
        return bool(result.read)

    return consume


def explorer(address: str, line: Line, *, kills: int = 0) -> Explorer:
    holders = holder(0), holder(1)
    names = [f"p{n}" for n, _ in enumerate(line.partitions)]

    def prepare(connection: Any) -> None:
        ids = []
        for name, partition in zip(names, line.partitions, strict=True):
            ((found,),) = connection.execute(
                "SELECT %(name)s || 'x' || n FROM generate_series(1, 100) AS n"
                " WHERE reservation.partition_of('payment-' || %(name)s || 'x' || n, 2) = %(of)s"
                " LIMIT 1",
                {"name": name, "of": partition},
            ).fetchall()
            ids.append(found)
        MessageStore(connection).write_batch(
            [Write(Captured(id_, "o1", 0), f"{PAYMENTS}-{id_}") for id_ in ids]
        )
        passed = ids[: len(line.letters)]
        for id_, (_, state) in zip(passed, line.letters, strict=True):
            connection.execute(
                "INSERT INTO reservation.dead_letters (consumer, category, global_position,"
                " message_id, stream_name, type, entity, state, reason, process)"
                " SELECT 'order', %s, global_position, id, stream_name, type, 'order-o1', %s,"
                " 'handler', 'a:1' FROM message_store.messages WHERE stream_name = %s",
                [PAYMENTS, state, f"{PAYMENTS}-{id_}"],
            )
        connection.execute(
            "INSERT INTO reservation.groups (consumer, category, partitions)"
            " VALUES ('order', %s, 2)",
            [PAYMENTS],
        )
        connection.execute(
            "INSERT INTO reservation.positions"
            " (consumer, category, partition, epoch, position, message_id)"
            " SELECT 'order', %s, n, 1, m.global_position, m.id"
            " FROM generate_series(0, 1) AS n, message_store.messages m WHERE m.stream_name = %s",
            [PAYMENTS, f"{PAYMENTS}-{passed[-1]}"],
        )

    def check(connection: Any) -> None:
        assert not LETTERS.stranded(connection), "a letter is parked behind nothing"
        while holders[0](connection) | holders[1](connection):
            pass
        assert stuck(connection) == []
        ((handled,),) = connection.execute("SELECT count(*) FROM reservation.passes").fetchall()
        assert handled == len(names)

    return Explorer(
        address,
        ("order", "order"),
        (holder(0), holder(1)),
        prepare,
        check,
        kills=kills,
        together=True,
        alike=False,
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LINES)
def test_whatever_the_order_no_letter_is_left_behind(database_url, record_property, name):
    """In every order of their round trips, all are handled."""
    explored = explorer(database_url, LINES[name]).explore()
    record_property("explored", str(explored))
    assert explored.schedules > 1


@pytest.mark.timeout(1800)
def test_a_look_before_the_commit_alone_is_found(database_url, monkeypatch):
    """Without the second look the explorer finds the order in which a letter is left behind."""
    monkeypatch.setattr(DeadLetters, "look_again", lambda self, connection, entities: set())
    with pytest.raises(Violation, match="a letter is parked behind nothing"):
        explorer(database_url, LINES["one ends a letter, one parks"]).explore()
