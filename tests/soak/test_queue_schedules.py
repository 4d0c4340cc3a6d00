"""Two holders of partitions that an entity's letters are in: no order of statements strands one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from consumers.effects.blocking import FailurePolicy
from consumers.failures.letters import DeadLetters
from consumers.failures.retries import Retries
from consumers.group.positions import HeldPartition, HeldPartitions
from consumers.loop.retrying.attempts import CountedAttempts
from consumers.loop.retrying.due_letters import DueLetters
from consumers.loop.retrying.letter_retry import Retrying
from consumers.runtime.running_calls import RunningCalls
from consumers.runtime.stopping import Stop
from reservation import MessageStore, Write
from reservation.postgres.error_translation import TO_BE_RETRIED
from tests.apps.bank import new_batch
from tests.apps.orders import PAYMENTS, Captured, new_orders
from tests.support.explorer import Explorer
from tests.support.liveness import stuck
from tests.support.stored_positions import store_position

LETTERS = DeadLetters("order", PAYMENTS)
STOP = Stop(takes_signals=False)


@dataclass(frozen=True)
class Queue:
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
    "one ends a letter, one parks": Queue(((0, "waiting"),), (1,)),
    "two end letters": Queue(((0, "waiting"), (1, "parked"), (0, "parked"), (1, "parked")), ()),
}


def holder(partition: int) -> Callable[[Any], bool]:
    """Return what the holder of a partition does in one round: look for due letters, then read.

    The function returns whether it did anything.
    """
    component = new_orders()
    retries = Retries(component, PAYMENTS)

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
        positions = HeldPartitions("order", PAYMENTS, 2, [HeldPartition(*rows[0])])
        batch = new_batch(connection, component, PAYMENTS)
        attempts, running = CountedAttempts(), RunningCalls()
        retrying = Retrying(LETTERS, DueLetters(), retries, repeat, attempts, running, 100)
        if retrying.run(connection, batch.retry_transaction, positions, STOP).result is not None:
            return True
        policy = FailurePolicy()
        result = repeat(
            lambda recheck: next(batch.run(positions, 100, recheck=recheck, policy=policy)), STOP
        )
        return bool(result.read)

    return consume


def explorer(address: str, queue: Queue, *, kills: int = 0) -> Explorer:
    holders = holder(0), holder(1)
    names = [f"p{n}" for n, _ in enumerate(queue.partitions)]

    def prepare(connection: Any) -> None:
        ids = []
        for name, partition in zip(names, queue.partitions, strict=True):
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
        passed = ids[: len(queue.letters)]
        for id_, (_, state) in zip(passed, queue.letters, strict=True):
            connection.execute(
                "INSERT INTO reservation.dead_letters (consumer, category, global_position,"
                " message_id, stream_name, type, entity, state, reason, process, next_attempt_at)"
                " SELECT 'order', %(category)s, global_position, id, stream_name, type,"
                " 'order-o1', %(state)s, 'handler', 'a:1',"
                " CASE %(state)s WHEN 'waiting' THEN now() END"
                " FROM message_store.messages WHERE stream_name = %(stream)s",
                {"category": PAYMENTS, "state": state, "stream": f"{PAYMENTS}-{id_}"},
            )
        connection.execute(
            "INSERT INTO reservation.groups (consumer, category, partitions)"
            " VALUES ('order', %s, 2)",
            [PAYMENTS],
        )
        ((position, id_),) = connection.execute(
            "SELECT global_position, id FROM message_store.messages WHERE stream_name = %s",
            [f"{PAYMENTS}-{passed[-1]}"],
        ).fetchall()
        for partition in range(2):
            store_position(connection, "order", PAYMENTS, position, partition, message_id=id_)

    def check(connection: Any) -> None:
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
