"""Features where they meet: async handlers, policies, rejections, schedules, subscriptions."""

import asyncio
from dataclasses import dataclass

import consumers
from consumers.loop import letter_retry
from reservation import Component, Retry, Write

PATIENT = Retry(attempts=5, first="1h", on=ConnectionError)


@dataclass(frozen=True)
class Refund:
    payment_id: str


@dataclass(frozen=True)
class Refunded:
    payment_id: str


def make_due(connection):
    """Let the next attempts at all messages that wait be due."""
    connection.execute(
        "UPDATE reservation.dead_letters SET next_attempt_at = now() WHERE state = 'dead'"
    )


def states(connection):
    """Return the states of all letters, in the order of the log."""
    rows = connection.execute("SELECT state FROM reservation.dead_letters ORDER BY global_position")
    return [state for (state,) in rows]


def test_async_messages_that_waited_are_handled_at_a_time_again(
    connection, store, database_url, monkeypatch
):
    """However long each call takes, so many letters share a batch as calls may run at a time."""
    monkeypatch.setattr(letter_retry, "SLICE", 0.0)  # each set takes longer
    payments = Component("payment", id="payment_id")
    down, together = True, asyncio.Barrier(4)

    @payments.handle(Refund, retry=PATIENT, concurrency=4)
    async def refund(command, entity, context):
        if down:
            raise ConnectionError
        async with asyncio.timeout(2):
            await together.wait()
        return Refunded(command.payment_id)

    names = [str(n) for n in range(12)]
    store.write_batch([Write(Refund(name), f"payment:command-{name}") for name in names])
    assert consumers.drain(payments, database_url).counts == {"waiting": 12}
    down = False
    make_due(connection)
    consumers.drain(payments, database_url, batch_size=8)
    assert states(connection) == ["handled"] * 12


def test_what_an_async_handler_left_running_is_cancelled_in_the_end(store, database_url):
    """The event loop is closed with its consumer, and leaves no file open."""
    payments = Component("payment", id="payment_id")
    left = []

    @payments.handle(Refund)
    async def refund(command, entity, context):
        left.append(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)
        return Refunded(command.payment_id)

    store.write(Refund("1"), "payment:command-1")
    assert consumers.drain(payments, database_url).counts == {"handled": 1}
    (task,) = left
    assert task.cancelled()
    assert task.get_loop().is_closed()
