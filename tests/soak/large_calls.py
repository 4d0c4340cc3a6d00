"""Calls of the store, of the strategies and of the story, each on one batch of a large log."""

import hashlib
import itertools
import uuid
from datetime import datetime, timedelta

from bank import account
from bank.entity import Account
from bank.messages import Deposit
from consumers.story.story import read_story
from reservation import Component, MessageStore, Metadata, StoredMessage, Write
from reservation.declaration.table import declarations
from reservation.entity.projection import Loaded
from reservation.entity.snapshots import Snapshots
from reservation.idempotence.reserve import (
    compare_initiations,
    first_initiated,
    first_reserved,
    reserve,
)
from reservation.idempotence.server_keys import read_commands, server_rules
from reservation.idempotence.state_based.clean_up import clean_up_states, count_removable
from reservation.idempotence.state_based.states import Version, appending, looking
from reservation.idempotence.strategy import Incoming
from reservation.maintenance.event_types import unknown_types
from reservation.messages.ids import uuid7
from reservation.postgres.exchange.exchange import exchange
from reservation.store.category_part import CategoryPart
from reservation.store.statements import read_part, run
from reservation.strategies import MessageIdInEvents
from tests.support.controls import deposit
from tests.support.large_log import BATCH, COMMANDS, LONG, LONG_STATE, OLD_STATES, Size, Work, call

DAY = timedelta(days=1)
RULES = server_rules(declarations(account).own.reservations)


def part(**options):
    """Return a read of a part of the category, of one batch."""

    def read(c):
        found = MessageStore(c).read_category(COMMANDS, batch_size=BATCH, **options)
        return list(itertools.islice(found, BATCH))

    return read


def member(size, **options):
    """Return the options of a member that does not have the long stream."""
    return {"consumer_group_member": 1, "consumer_group_size": size, **options}


def reserve_reissues(c):
    """Reserve a batch of which one command is new."""
    commands = [(n, f"accountTransaction-1+d{n}") for n in range(1, BATCH + 1)]
    return reserve(c, commands, {"Deposit": ["time"]})


def write_again(c):
    """Write a batch, then the same one again with one message more."""
    writes = [Write(deposit(f"n{n}"), LONG, id=uuid7()) for n in range(BATCH)]
    MessageStore(c).write_batch(writes)
    return MessageStore(c).write_batch([*writes, Write(deposit("new"), LONG)])


def write_one_again(c):
    store, id_ = MessageStore(c), uuid7()
    return [store.write(deposit(), LONG, id=id_) for _ in range(2)]


def keep_snapshots(c):
    """Write a batch of snapshots, and read them."""
    snapshots = Snapshots(c, Account, 1, "1")
    entities = {f"{COMMANDS}-{n}": Loaded(Account(), 0, started=True) for n in range(1, BATCH + 1)}
    requests, refused = snapshots.writing(entities)
    assert not refused
    exchange(c, requests)
    return snapshots.read(entities)


def look_for_causes(c, size):
    """Look at the events of a long stream, and of others, from near their ends on."""
    handled = Metadata(local_properties={"messageId": "m"})
    MessageStore(c).write(deposit(), LONG, metadata=handled)
    time = datetime(2026, 1, 1)  # noqa: DTZ001  as the store gives it
    message = StoredMessage("m", LONG, "Deposit", 0, size.sent - 100, None, None, time)
    streams = [LONG, *(f"{COMMANDS}-{n}" for n in range(1, BATCH))]
    batch = [Incoming(message, deposit(), name) for name in streams]
    return run(c, MessageIdInEvents().look("account", COMMANDS, batch))


def version(n):
    """Return the id of the message that made a version."""
    return hashlib.md5(f"state {n}".encode(), usedforsecurity=False).hexdigest()


def look_at_states(c, wanted):
    """Look what is stored for messages, by their streams and ids."""
    return run(c, looking(wanted))


def append(c, size):
    """Store versions, in new streams and behind the end of the long one."""
    versions = [
        Version(stream, at, uuid.uuid4(), COMMANDS, n, at, "{}", "{}", "[]")
        for n in range(BATCH // 2)
        for stream, at in ((f"new:state-{n}", 0), (LONG_STATE, 10 * size.states + n))
    ]
    return exchange(c, [appending(versions)])


def of_transactions():
    """Return a component whose events would be what is reserved here."""
    component = Component("accountTransaction", entity=Account, id="account_id")
    component.handle(Deposit, once=None)(lambda *_: None)
    return component


CATEGORY = "SELECT * FROM message_store.get_category_messages(%s, %s, %s"


def store_calls(size: Size) -> dict[str, Work]:
    """Return the calls that read and write a batch, however long the log is."""
    first = size.sent * 3 // 16 + 1  # of the commands that are looked for
    middle = size.states // 40  # of the versions of the long stream
    return {
        "a batch from the start": Work(BATCH, 20, part()),
        "a batch from the middle": Work(BATCH, 20, part(position=size.sent // 2)),
        "a batch from the end": Work(BATCH, 30, part(position=size.sent - 10)),
        "a category that is empty": Work(
            0, 10, lambda c: run(c, read_part("empty", CategoryPart(), BATCH, None))
        ),
        "a frequent correlation": Work(BATCH, 40, part(correlation="frequent")),
        # One in ten is of the long stream; the rest is shared out evenly.
        "a member of two": Work(3 * BATCH, 20, part(**member(2))),
        "a member of five": Work(7 * BATCH, 40, part(**member(5))),
        "a member of five from the middle": Work(
            7 * BATCH, 40, part(**member(5, position=size.sent // 2))
        ),
        "a member and a frequent correlation": Work(
            9 * BATCH, 180, part(**member(4, correlation="frequent"))
        ),
        "commands with their keys": Work(
            BATCH, 20, lambda c: run(c, read_commands(COMMANDS, CategoryPart(), BATCH, RULES))
        ),
        "commands with their keys from the middle": Work(
            BATCH,
            20,
            lambda c: run(c, read_commands(COMMANDS, CategoryPart(size.sent // 2), BATCH, RULES)),
        ),
        "the start of a long stream": Work(
            BATCH,
            40,
            lambda c: list(
                itertools.islice(MessageStore(c).read_stream(LONG, batch_size=BATCH), BATCH)
            ),
        ),
        "many streams": Work(
            BATCH,
            500,
            lambda c: MessageStore(c).read_streams({f"{COMMANDS}-{n}": 0 for n in range(1, BATCH)}),
        ),
        # Each is held to the event that it names, when it is written and when it is read.
        "the snapshots of many streams": Work(3 * BATCH, 2700, keep_snapshots),
        # Of the long stream one in ten; of the others the last, to see that it is an old one.
        "what brought about the events": Work(BATCH + 15, 600, lambda c: look_for_causes(c, size)),
        # Of each its own version, the newest and what was removed.
        "states of messages that were handled before": Work(
            3 * BATCH,
            1500,
            lambda c: look_at_states(
                c,
                [(f"account:state-{n}", version(n)) for n in range(1, BATCH) if n % 10]
                + [(LONG_STATE, version(n)) for n in range(1010, 1100, 10)],
            ),
        ),
        # Of each the newest, twice, and what was removed.
        "states of messages that are new": Work(
            4 * BATCH,
            2000,
            lambda c: look_at_states(
                c, [(f"account:state-{n}", str(uuid7())) for n in range(1, BATCH)]
            ),
        ),
        # Nine changes at most to be made to each, and the one that is wanted to know which.
        "states of a long stream": Work(
            11 * BATCH,
            2300,
            lambda c: look_at_states(
                c, [(LONG_STATE, version(10 * n)) for n in range(middle, middle + BATCH)]
            ),
        ),
        "the newest state of a long stream": Work(
            12, 30, lambda c: look_at_states(c, [(LONG_STATE, str(uuid7()))])
        ),
        "storing versions": Work(1, 1200, lambda c: append(c, size)),
        # Of a hundred streams all four, twice, their ends twice, and those that are removed.
        "removing old versions": Work(
            11 * BATCH,
            2800,
            lambda c: clean_up_states(c, DAY, category=OLD_STATES, at_once=BATCH),
        ),
        "removing old versions from the middle": Work(
            11 * BATCH,
            2800,
            lambda c: clean_up_states(
                c, DAY, category=OLD_STATES, start=f"{OLD_STATES}-4", at_once=BATCH
            ),
        ),
        "counting what may be removed where there is nothing": Work(
            5, 30, lambda c: [count_removable(c, DAY, category="account:stat")]
        ),
        "the last message of a long stream": Work(
            1, 10, lambda c: MessageStore(c).last_message(LONG)
        ),
        "the version of a long stream": Work(1, 10, lambda c: MessageStore(c).stream_version(LONG)),
        "looking for ids": Work(
            0, 600, lambda c: MessageStore(c).stored_ids([uuid7() for _ in range(BATCH)])
        ),
        "writing one message": Work(1, 30, lambda c: MessageStore(c).write(deposit(), LONG)),
        "writing one message again": Work(2, 40, write_one_again),
        "writing the first message of a stream": Work(
            0, 30, lambda c: MessageStore(c).write_initial(deposit(), "account:command-new")
        ),
        "writing a batch": Work(
            BATCH,
            2200,
            lambda c: MessageStore(c).write_batch([Write(deposit(), LONG) for _ in range(BATCH)]),
        ),
        "writing a batch again": Work(5 * BATCH, 3200, write_again),
        "reserving what is new": Work(
            BATCH,
            2200,
            lambda c: reserve(c, [(n, f"new-{n}") for n in range(1, BATCH)], {"Deposit": ["time"]}),
        ),
        "reserving reissues": Work(3 * BATCH, 1600, reserve_reissues),
        "reserving many of one key": Work(
            3 * BATCH,
            2000,
            lambda c: reserve(c, [(n, f"new-{n % 3}") for n in range(1, BATCH)], {"Deposit": []}),
        ),
        "comparing what initiated": Work(
            3 * BATCH,
            1500,
            lambda c: compare_initiations(
                c,
                [(n, f"accountTransaction-1+d{n}") for n in range(2, BATCH)],
                {"Deposit": ["time"]},
            ),
        ),
        # The commands, what was reserved under the former name of some, and of the others.
        "what was reserved first": Work(
            4 * BATCH,
            1800,
            lambda c: first_reserved(
                c,
                [(n, f"accountTransaction-1+d{n}") for n in range(2, BATCH)],
                [f"accountTransaction-1+d{n - 1}" if n % 2 else None for n in range(2, BATCH)],
            ),
        ),
        # And the letters of those that were handled with other data.
        "what initiated": Work(
            4 * BATCH,
            1800,
            lambda c: first_initiated(
                c, [(n, f"accountTransaction-1+d{n}") for n in range(2, BATCH)]
            ),
        ),
        # Where two places are close, some events are looked at twice.
        "a sample of the types of events": Work(
            12 * 201, 4200, lambda c: unknown_types(c, of_transactions())
        ),
        "a category as Message DB reads it": Work(
            BATCH, 20, call(CATEGORY + ")", COMMANDS, 50, BATCH)
        ),
        # Each call is planned, and the planner itself looks for the end of an index.
        "a frequent correlation as Message DB reads it": Work(
            BATCH + 1, 30, call(CATEGORY + ", 'frequent')", COMMANDS, 50, BATCH)
        ),
        "a member as Message DB reads it": Work(
            7 * BATCH, 40, call(CATEGORY + ", NULL, 1, 5)", COMMANDS, 1, BATCH)
        ),
        "a condition as Message DB reads it": Work(
            2 * BATCH + 1,
            20,
            call(CATEGORY + ", NULL, NULL, NULL, 'global_position %% 2 = 0')", COMMANDS, 1, BATCH),
        ),
        "a stream as Message DB reads it": Work(
            BATCH,
            40,
            call("SELECT * FROM message_store.get_stream_messages(%s, 50, %s)", LONG, BATCH),
        ),
        "a condition on a stream as Message DB reads it": Work(
            2 * BATCH,
            80,
            call(
                "SELECT * FROM message_store.get_stream_messages(%s, 50, %s, 'position %% 2 = 0')",
                LONG,
                BATCH,
            ),
        ),
        "the last message as Message DB reads it": Work(
            1, 10, call("SELECT * FROM message_store.get_last_stream_message(%s)", LONG)
        ),
        "the story of a long stream": Work(120_000, 7_000, lambda c: read_story(c, LONG).entries),
        "writing as Message DB does": Work(
            2,
            30,
            call(
                "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit',"
                " '{}', NULL, message_store.stream_version(%s))",
                LONG,
                LONG,
            ),
        ),
        # It looks at so many messages, and at as many that are scheduled.
        "the story of a reissue": Work(
            120_000, 4_500, lambda c: read_story(c, f"{COMMANDS}-{first}").entries
        ),
    }


def growing_calls(size: Size) -> dict[str, Work]:
    """Return the calls that look through a share of the log, or of a stream."""
    first = size.sent * 3 // 16 + 1  # of the commands that are looked for
    return {
        # A key without its entity is looked for in the whole index of names.
        "the story of a key": Work(
            2 * size.sent + 120_000,
            size.sent // 3 + 4_500,
            lambda c: read_story(c, f"1+d{first}").entries,
        ),
        # All of it that may go is looked at: whether it is needed, and what comes first.
        "removing old versions of a long stream": Work(
            2 * size.states // 10 + 4 * BATCH,
            size.states // 20 + 500,
            lambda c: clean_up_states(
                c, DAY, category="account:state", start=LONG_STATE, at_once=BATCH
            ),
        ),
        # The index of a category has the correlations, and not in their order.
        "a rare correlation": Work(11, size.sent // 80 + 50, part(correlation="rare")),
        "a rare correlation from the middle": Work(
            6, size.sent // 80 + 50, part(correlation="rare", position=size.sent // 2)
        ),
        "a correlation that there is not": Work(
            0, size.sent // 80 + 50, part(correlation="absent")
        ),
        "a member and a rare correlation": Work(
            11, size.sent // 80 + 50, part(**member(2, correlation="rare"))
        ),
        "a rare correlation as Message DB reads it": Work(
            11, size.sent // 80 + 50, call(CATEGORY + ", 'rare')", COMMANDS, 1, BATCH)
        ),
        "a member and a rare correlation as Message DB reads it": Work(
            11, size.sent // 80 + 50, call(CATEGORY + ", 'rare', 1, 2)", COMMANDS, 1, BATCH)
        ),
        "all of it as Message DB reads it": Work(
            11,
            size.sent // 80 + 50,
            call(CATEGORY + ", 'rare', 1, 2, 'position = 0')", COMMANDS, 1, BATCH),
        ),
    }
