"""Calls of the consumers and of what is kept beside the log, each on one batch."""

import dataclasses
import uuid
from datetime import UTC, datetime

import structlog

from bank import account
from bank.entity import Account
from bank.messages import Deposit
from consumers.batch.batch_runner import BatchRunner
from consumers.failures.failure import Failure, Reason, Unhandled
from consumers.failures.letters import DeadLetters
from consumers.group.membership import Membership, new_worker
from consumers.runtime.context import ConsumerContext
from consumers.runtime.session import Session
from reservation import MessageStore, StoredMessage
from reservation.entity.projection import Loaded
from reservation.entity.snapshots import Snapshots
from reservation.http.stored import stored_requests
from reservation.http.wire.answers import HttpAnswer
from reservation.http.wire.incoming import Parked
from reservation.idempotence.followed import Followed
from reservation.idempotence.passes import Pass, PassReason, record_passes
from reservation.idempotence.strategy import Incoming
from reservation.messages.ids import uuid7
from reservation.postgres.exchange.exchange import exchange
from reservation.store.statements import run
from reservation.store.writing.scheduling import ScheduledRow, write_due
from reservation.strategies import Processed
from tests.support.controls import deposit
from tests.support.large_log import BATCH, COMMANDS, LONG, LONG_ENTITY, SMALL, Size, Work

COPIES = "accountTransaction"
PAST = datetime(2026, 1, 1, tzinfo=UTC)
FUTURE = datetime(2030, 1, 1, tzinfo=UTC)

# Where a consumer stands, unless the log ends before: then at its start.
STAND_AT = """
UPDATE reservation.moves SET position = m.global_position, message_id = m.id
FROM message_store.messages m
WHERE consumer = 'account' AND category = %s AND m.global_position = %s
"""


def joined(c, category, position):
    """Return a member of the consumer's group, which stands at a position."""
    session = Session(c.info.dsn, "test", structlog.get_logger())
    member = Membership(session, "account", category, None, new_worker(), structlog.get_logger())
    member.join(c)
    c.execute(STAND_AT, [category, position])
    member.rebalance(c)
    return member


def batch(category, position, size=BATCH):
    """Return a call that takes a consumer forward by a batch, from becoming a member on."""

    def run(c):
        positions = joined(c, category, position).positions
        result = next(BatchRunner(ConsumerContext.of(c, account, category)).run(positions, size))
        # A slow machine is no paused client.
        c.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        return result

    return run


def reserve_next(position, size):
    """Return a call that reads commands, reserves them and moves the position."""

    def run(c):
        positions = joined(c, COMMANDS, position).positions
        batch = BatchRunner(ConsumerContext.of(c, account, COMMANDS))
        request = batch._reserver.request(positions, positions.next(), size)
        return exchange(c, [request])

    return run


def incoming(first, prefix="new"):
    """Return a batch of messages for handlers."""
    time = datetime(2026, 1, 1)  # noqa: DTZ001  as the store gives it
    return [
        Incoming(
            StoredMessage(str(uuid7()), f"{COPIES}-{n}", "Deposit", 0, n, None, None, time),
            deposit(f"{prefix}{n}"),
            f"account-{n}",
        )
        for n in range(first, first + BATCH)
    ]


def recognize(c, first):
    """Look which messages led to something, and record that none did."""
    found = run(c, Followed().look("account", COPIES, incoming(first)))
    passes = [Pass(one.message, PassReason.NOTHING) for one in incoming(first)]
    exchange(c, [record_passes("account", COPIES, passes)])
    return found


def remember(c, first, prefix):
    """Look which messages were processed, and record the others."""
    messages = incoming(first, prefix)
    check = run(c, Processed(key="deposit_id").look("account", COPIES, messages))
    known = [check.is_duplicate(one) for one in messages]
    exchange(c, check.record())
    return known


def bury(c):
    """Record a batch of dead letters, each of an entity of its own."""
    failure = Failure(Reason.HANDLER, "raised", wait=0.0)
    letters = [Unhandled(one.message, one.entity_stream, failure) for one in incoming(SMALL + 500)]
    return exchange(c, DeadLetters("account", COPIES).recording(letters))


def scheduled_rows(due):
    return [
        ScheduledRow(uuid7(), f"{COMMANDS}-later-{n}", "Deposit", "{}", None, due)
        for n in range(BATCH)
    ]


def schedule(c):
    """Schedule a batch, and once more."""
    later = scheduled_rows(FUTURE)
    MessageStore(c).schedule_encoded(later)
    return MessageStore(c).schedule_encoded(later)


def write_later(c):
    """Write what is due, with much that is not."""
    MessageStore(c).schedule_encoded(scheduled_rows(PAST))
    return write_due(c, BATCH)


def ask(c, key, **options):
    """Return the outcome of a deposit, which a question names."""
    question = account.question(Deposit, key=key, entity="1")
    question = dataclasses.replace(question, asked=question.asked | options)
    return MessageStore(c).outcome(question)


def request(c, id_):
    """Take a request from its beginning to its answer."""
    parked = Parked("POST", "/deposits", {}, b"asked")
    answer = HttpAnswer(200, (), b"answer")
    statements = [
        stored_requests.begin(id_, b"asked"),
        stored_requests.park(id_, parked),
        stored_requests.answer(id_, answer),
        stored_requests.begin(id_, b"asked"),
        stored_requests.find(id_),
    ]
    for statement in statements:
        found = MessageStore(c)._run(statement)
    return found


def snapshots_again(c):
    """Read snapshots that are there, and replace them by what is no newer."""
    snapshots = Snapshots(c, Account, 1, "1")
    names = [f"{COMMANDS}-{n}" for n in range(SMALL + 1, SMALL + 10 * BATCH, 10)]
    found = snapshots.read(names)
    exchange(c, snapshots.writing({name: Loaded(Account(), 0, started=True) for name in names})[0])
    return found


def consumer_calls(size: Size) -> dict[str, Work]:
    """Return the calls of consumers and of what is beside the log, however long that is."""
    middle = size.sent // 2
    copy = size.sent + size.reserved // 2 * 2
    handled = size.reserved // 20 * 10  # a copy of which there is an event
    return {
        "a batch of commands": Work(260, 2900, batch(COMMANDS, middle)),
        "few commands that are reserved at once": Work(40, 420, reserve_next(middle, 10)),
        "many commands that are reserved at once": Work(260, 2900, reserve_next(middle, BATCH)),
        "few reserved commands": Work(30, 420, batch(COPIES, copy, 10)),
        "a batch of reserved commands": Work(140, 2600, batch(COPIES, copy)),
        "recognizing what led to nothing": Work(10, 1800, lambda c: recognize(c, size.sent // 2)),
        "recognizing by a table": Work(20, 4200, lambda c: remember(c, size.sent // 2, "d")),
        "remembering in a table": Work(10, 4400, lambda c: remember(c, size.sent // 2, "new")),
        "recording dead letters": Work(1_000, 3_000, bury),
        # Thirteen steps for each of a hundred, twice, and their indexes become deeper.
        "scheduling a batch": Work(260, 2800, schedule),
        "writing what is due": Work(380, 4500, write_later),
        "the outcome of what was handled": Work(
            40, 110, lambda c: ask(c, f"d{handled}", entityStream=LONG_ENTITY)
        ),
        "the outcome of what was reserved": Work(10, 40, lambda c: ask(c, f"d{size.reserved}")),
        "the outcome of what is unknown": Work(10, 30, lambda c: ask(c, "unknown")),
        "a new request": Work(10, 60, lambda c: request(c, uuid.uuid4())),
        "snapshots that are there": Work(700, 2700, snapshots_again),
    }


def growing_consumer_calls(size: Size) -> dict[str, Work]:
    """Return those that look through a stream."""
    return {
        "the outcome of what is unknown, in a long stream": Work(
            size.sent // 4,
            size.sent // 16 + 50,
            lambda c: ask(c, "unknown", sentTo=LONG, entityStream=LONG_ENTITY),
        ),
    }
