"""Calls on letters and revisions beside a large log, and of senders, each on one batch."""

import os
import uuid
from contextlib import suppress
from datetime import datetime, timedelta

from psycopg import sql

from bank import account
from bank.messages import Open
from consumers.dead_letters.corrections import Corrections
from consumers.failures.failure import Failure, Reason
from consumers.failures.letters import DeadLetters, DueLetter, LettersChanged
from consumers.group.positions import HeldPartition, HeldPartitions
from reservation import MessageStore, StoredMessage, Write
from reservation.idempotence.revision_counters import DatabaseRevisions
from reservation.idempotence.strategy import Incoming
from reservation.messages.ids import uuid7
from reservation.postgres.exchange.exchange import exchange
from reservation.store.category_part import CategoryPart
from reservation.store.schema.roles import grant
from reservation.store.statements import read_part, run
from reservation.store.writing.batch import WriteBatch
from reservation.strategies import Processed, Revisions
from tests.soak.large_consuming import COPIES, FUTURE, ask, scheduled_rows
from tests.support.controls import deposit
from tests.support.large_log import BATCH, COMMANDS, LONG, SMALL, Size, Work
from tests.support.stored_positions import store_position

LETTERS = DeadLetters("account", COMMANDS)
FAILED = Failure(Reason.HANDLER, "raised")
DAY = datetime(2026, 1, 1)  # noqa: DTZ001  as the store gives it


class Numbered:
    """A command with a revision."""

    def __init__(self, revision: int) -> None:
        self.revision = revision


def of_type(type_, first, command):
    """Return a batch of copies of a type, each of an entity of its own."""
    return [
        Incoming(
            StoredMessage(str(uuid7()), f"{COPIES}-{n}", type_, 0, n, None, None, DAY),
            command(n),
            f"account-{n}",
        )
        for n in range(first, first + BATCH)
    ]


def raise_revisions(c, first):
    """Compare a batch with the last revisions of its entities, and raise them."""
    batch = of_type("Deposit", first, lambda _: Numbered(2))
    check = run(c, Revisions(source=None).look("account", COPIES, batch))
    known = [check.is_duplicate(one) for one in batch]
    exchange(c, check.record())
    return known


def draw(c, size):
    """Draw revisions for entities that have some, and for one that has none."""
    revisions = DatabaseRevisions(c)
    return [revisions.next(f"account-{size.sent // 2 + n}") for n in (1, 2)]


def remember_for_a_time(c, first, prefix):
    """Look which messages a handler processed that forgets, and record the others."""
    batch = of_type("Withdraw", first, lambda n: deposit(f"{prefix}{n}"))
    strategy = Processed(key="deposit_id", keep=timedelta(days=3650))
    check = run(c, strategy.look("account", COPIES, batch))
    known = [check.is_duplicate(one) for one in batch]
    exchange(c, check.record())
    return known


def line_up(c):
    return LETTERS.due(c, [0], 1, BATCH).letters


def retry(c):
    """Handle a batch of letters again, and look what is left of their entities."""
    letters = line_up(c)
    LETTERS.mark_handled(c, letters)
    return LETTERS.heads(c, {"account-0", *(letter.entity for letter in letters if letter.entity)})


def fail_again(c):
    """Fail to handle a batch of letters."""
    letters = line_up(c)
    LETTERS.fail_again(c, [(one, one.entity, FAILED) for one in letters])
    return letters


def try_one(c):
    """Count an attempt at one letter, and take it back."""
    message = StoredMessage(str(uuid7()), LONG, "Deposit", 0, 1, None, None, DAY)
    letter = (line_up(c) or [DueLetter(message, False, None, 0, 0, False, None, None)])[0]
    with suppress(LettersChanged):  # there are none while the log is empty
        attempts = LETTERS.count_attempt(c, letter)
        LETTERS.uncount_attempt(c, letter)
        return attempts


def count_attempt(c):
    """Count an attempt at a message that is handled by itself, and take it back."""
    c.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions) VALUES ('counts', %s, 1)",
        [COMMANDS],
    )
    store_position(c, "counts", COMMANDS, epoch=0)
    positions = HeldPartitions("counts", COMMANDS, 1, [HeldPartition(0, 0, 0)])
    message = StoredMessage(str(uuid7()), LONG, "Deposit", 0, 1, None, None, DAY)
    attempts = positions.attempt(c, message)
    positions.uncount_attempt(c, message)
    return attempts


def corrected(c):
    """Look for the corrections of a batch."""
    held = HeldPartitions("account", COMMANDS, 1, [HeldPartition(0, 0, 0)])
    batch = run(c, read_part(COMMANDS, CategoryPart(SMALL), BATCH, None))
    return Corrections("account", COMMANDS, {}).of(c, held, batch)


def write_each(c):
    """Write a batch that one message keeps from being a set."""
    writes = [Write(deposit(), LONG) for _ in range(BATCH)]
    batch = WriteBatch([*writes, Write(deposit(), LONG, expected_version=1)], 1 << 20)
    return MessageStore(c)._run(batch.statement_of_each())


def as_sender(do):
    """Return a call by a role that may do no more than send."""

    def run(c):
        role = f"sender_{os.getpid()}_{uuid.uuid4().hex}"
        grant(c, "sender", role, [COMMANDS])
        c.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
        result = do(c)
        c.execute("RESET ROLE")
        return result

    return run


def cancel(c):
    """Cancel what is scheduled, and what was never."""
    scheduled = c.execute("SELECT md5('scheduled 1')::uuid").fetchone()[0]
    return [MessageStore(c).cancel(id_) for id_ in (scheduled, uuid7())]


def read_range(log, **options):
    """Return a read of a part of the category that ends long before the category does."""
    first = log.sent // 4
    part = CategoryPart(first, first + BATCH // 2, **options)
    return lambda c: run(c, read_part(COMMANDS, part, BATCH, None))


def id_at(c, position):
    """Return the id of a message; of none while the log is empty."""
    query = "SELECT id FROM message_store.messages WHERE global_position = %s"
    found = c.execute(query, [position]).fetchone()
    return uuid7() if found is None else found[0]


def keeping_calls(size: Size) -> dict[str, Work]:
    """Return the calls on what is beside the log, however long that is."""
    middle = size.sent // 2
    return {
        # Of a loop's first fifty rows, what lies behind its end.
        "a part that ends before its category": Work(BATCH + 10, 30, read_range(size)),
        "partitions that end before their category": Work(
            BATCH + 10, 30, read_range(size, partitions=(0, 2), size=4)
        ),
        "raising revisions": Work(2 * BATCH, 1500, lambda c: raise_revisions(c, middle)),
        "drawing revisions": Work(4, 40, lambda c: draw(c, size)),
        "recognizing by a table that forgets": Work(
            20, 3000, lambda c: remember_for_a_time(c, middle, "d")
        ),
        "remembering in a table that forgets": Work(
            10, 3000, lambda c: remember_for_a_time(c, middle, "new")
        ),
        "the entities that are blocked": Work(
            2 * BATCH, 3 * BATCH, lambda c: LETTERS.blocked(c, [0], 1)
        ),
        "how many letters wait": Work(2 * BATCH + 10, 200, lambda c: LETTERS.waiting(c, [0], 1)),
        "the first letters of a batch's entities": Work(
            2 * BATCH + 10,
            400,
            lambda c: [
                c.execute(LETTERS.has_open.query, LETTERS.has_open.parameters).fetchall(),
                LETTERS.heads(c, [f"account-{n}" for n in range(BATCH)]),
            ],
        ),
        "lining up letters": Work(10 * BATCH, 3000, line_up),
        "handling letters again": Work(20 * BATCH, 16_000, retry),
        "failing letters again": Work(20 * BATCH, 16_000, fail_again),
        "counting an attempt at a letter": Work(10 * BATCH, 3000, try_one),
        "counting an attempt at a message": Work(10, 60, count_attempt),
        "corrections of a batch": Work(4 * BATCH, 600, corrected),
        "writing each of a batch": Work(3 * BATCH, 6000, write_each),
        "sending a batch": Work(
            BATCH,
            2300,
            as_sender(lambda c: MessageStore(c).write_batch([Write(deposit(), LONG)] * BATCH)),
        ),
        "sending one message": Work(
            10, 60, as_sender(lambda c: MessageStore(c).write(deposit(), LONG))
        ),
        "scheduling a batch as a sender": Work(
            260,
            2800,
            as_sender(lambda c: MessageStore(c).schedule_encoded(scheduled_rows(FUTURE))),
        ),
        "cancelling what is scheduled": Work(10, 60, cancel),
        "cancelling as a sender": Work(10, 80, as_sender(cancel)),
        "asking as a sender": Work(10, 60, as_sender(lambda c: ask(c, f"d{size.reserved}"))),
        "the outcome of what has an id": Work(
            40,
            110,
            lambda c: MessageStore(c).outcome(
                account.question(deposit(f"d{middle}"), message_id=id_at(c, middle))
            ),
        ),
    }


def growing_keeping_calls(size: Size) -> dict[str, Work]:
    """Return those that look through a share of what is beside the log, or a stream."""
    return {
        # What was sent to its stream, and is not read yet.
        "the outcome of what initiates": Work(
            size.sent // 4,
            size.sent // 16 + 50,
            lambda c: MessageStore(c).outcome(account.question(Open, key="long")),
        ),
    }
