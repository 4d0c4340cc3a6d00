"""Handlers with a bug each for the crash kit to find, and some without one.

Each notes something on a box. Their tables are those that `prepare` makes, and their files are in
a folder of the test's own.
"""

import contextlib
import os
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from reservation import Component, MessageStore, Retry
from reservation.strategies import MessageIdInEvents

FOLDER = Path(os.environ.get("PLANTED_FOLDER", "/tmp"))


@dataclass(frozen=True)
class Put:
    put_id: str
    box_id: str
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Noted:
    box_id: str
    note: str
    time: datetime | None = None
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Took:
    left: int


@dataclass
class Box:
    notes: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


def prepare(connection):
    connection.execute(
        "CREATE TABLE puts (number bigserial PRIMARY KEY, key text UNIQUE, at timestamptz DEFAULT "
        "now()); CREATE TABLE stock (item text PRIMARY KEY, amount int NOT NULL);"
        "INSERT INTO stock VALUES ('lamp', 10)"
    )


def component(name, handlers, **options):
    """Return a component with a handler for each type of command."""
    made = Component(name, entity=Box, id="box_id")
    for name, handler in handlers.items():
        made.handle(TYPES[name], once=MessageIdInEvents(), **options)(handler)

    @made.project(Noted)
    def noted(box, event):
        box.notes.append(event.note)

    return made


def notes(command, box, context):
    """Do it well: through the context, the entity, and the connection of the batch."""
    context.connection.execute("INSERT INTO puts (key) VALUES (%s)", [command.put_id])
    with context.connection.transaction():
        context.connection.execute("UPDATE stock SET amount = amount - 1")
    note = f"{context.id('note')} {context.random.random()} {len(box.notes)} {context.sequence}"
    return Noted(command.box_id, note, context.time, sorted(set(command.labels)))


def own_id(command, box, context):
    return Noted(command.box_id, str(uuid.uuid4()))


def own_clock(command, box, context):
    return Noted(command.box_id, "", datetime.now(UTC))


def writes_file(command, box, context):
    with (FOLDER / "receipts").open("a") as file:
        file.write(f"{command.put_id}\n")
    return Noted(command.box_id, "")


NUMBERS = {"next": 0}


def counts(command, box, context):
    NUMBERS["next"] += 1
    return Noted(command.box_id, str(NUMBERS["next"]))


def own_connection(command, box, context):
    with psycopg.connect(context.connection.info.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO puts (key) VALUES (%s) ON CONFLICT DO NOTHING", [command.put_id]
        )
    return Noted(command.box_id, "")


def any_order(command, box, context):
    return Noted(command.box_id, "", labels=list(set(command.labels)))


def folder_order(command, box, context):
    return Noted(command.box_id, "", labels=[file.name for file in FOLDER.iterdir()])


def takes(context, expects):
    """Take one of what a stream says is left."""
    messages = list(MessageStore(context.connection).read_stream("stock-lamp"))
    left = messages[-1].decode(Took).left if messages else 10
    expected = {"expected_version": messages[-1].position if messages else -1} if expects else {}
    context.write(Took(left - 1), "stock-lamp", **expected)


def ignores_version(command, box, context):
    takes(context, expects=False)
    return Noted(command.box_id, "")


def expects_version(command, box, context):
    takes(context, expects=True)
    return Noted(command.box_id, "")


def overwrites(command, box, context):
    (amount,) = context.connection.execute("SELECT amount FROM stock").fetchone()
    context.connection.execute("UPDATE stock SET amount = %s", [amount - 1])
    return Noted(command.box_id, "")


class HeldError(Exception):
    """Another transaction has what is to be changed."""


def takes_locked(command, context, lock):
    """Take one from the stock, if the lock is free."""
    (is_free,) = context.connection.execute(
        "SELECT pg_try_advisory_xact_lock(hashtext(%s))", [lock]
    ).fetchone()
    if not is_free:
        raise HeldError
    (amount,) = context.connection.execute("SELECT amount FROM stock").fetchone()
    context.connection.execute("UPDATE stock SET amount = %s", [amount - 1])
    return Noted(command.box_id, "")


def tries_lock(command, box, context):
    return takes_locked(command, context, "stock")


def tries_row(command, box, context):
    try:
        with context.connection.transaction():
            context.connection.execute("SELECT FROM stock FOR UPDATE NOWAIT")
    except psycopg.errors.LockNotAvailable as error:
        raise HeldError from error
    context.connection.execute("UPDATE stock SET amount = amount - 1")
    return Noted(command.box_id, "")


def tries_own_lock(command, box, context):
    return takes_locked(command, context, command.box_id)


def changes_command(command, box, context):
    command.labels.append(command.put_id)
    return Noted(command.box_id, "", labels=command.labels)


def changes_entity(command, box, context):
    box.seen.append(command.put_id)
    return Noted(command.box_id, str(len(box.seen)))


LAST = []


def changes_event(command, box, context):
    if LAST:
        LAST[-1].labels.append("closed")
    LAST.append(Noted(command.box_id, "", labels=list(command.labels)))
    return LAST[-1]


class Labels:
    of_all: list[str] = []  # noqa: RUF012  it is the bug


def changes_default(command, box, context):
    Labels.of_all.append(command.put_id)
    return Noted(command.box_id, "", labels=list(Labels.of_all))


def swallows(command, box, context):
    try:
        with context.connection.transaction():
            context.connection.execute("INSERT INTO puts (key) VALUES (%s)", [command.put_id])
    except Exception:  # noqa: BLE001  it is the bug
        return Noted(command.box_id, "failed")
    return Noted(command.box_id, "done")


def goes_on(command, box, context):
    with contextlib.suppress(psycopg.Error):
        context.connection.execute("INSERT INTO puts (missing) VALUES (%s)", [command.put_id])
    return Noted(command.box_id, "")


def leaves_thread(command, box, context):
    threading.Thread(target=time.sleep, args=(3600,), name="mail", daemon=True).start()
    return Noted(command.box_id, "")


def leaves_process(command, box, context):
    subprocess.Popen(["sleep", "3600"])
    return Noted(command.box_id, "")


def leaves_lock(command, box, context):
    context.connection.execute("SELECT pg_advisory_lock(7)")
    return Noted(command.box_id, "")


HANDLERS = {
    handler.__name__: handler
    for handler in (
        notes,
        own_id,
        own_clock,
        writes_file,
        counts,
        own_connection,
        any_order,
        folder_order,
        ignores_version,
        overwrites,
        changes_command,
        changes_entity,
        changes_event,
        changes_default,
        leaves_thread,
        leaves_process,
        leaves_lock,
    )
}
# Some of their messages become dead letters.
SWALLOWING = {handler.__name__: handler for handler in (swallows, goes_on, writes_file)}

# Their messages are tried again.
LOCKING = {handler.__name__: handler for handler in (tries_lock, tries_row)}
LOCKING_WRONG = {"tries_own_lock": tries_own_lock}

TYPES = {
    name: make_dataclass(name.title().replace("_", ""), [], bases=(Put,), frozen=True)
    for name in (*HANDLERS, *SWALLOWING, *LOCKING, *LOCKING_WRONG, "expects_version")
}

GOOD = {handler.__name__: handler for handler in (notes, expects_version)}

# One with each of some bugs, and one that does it well.
SAMPLE = {
    handler.__name__: handler
    for handler in (own_id, changes_event, ignores_version, leaves_lock, notes)
}

planted = component("planted", HANDLERS)
sample = component("sample", SAMPLE)
good = component("good", GOOD)
swallowing = component("swallowing", SWALLOWING)
RETRY = Retry(attempts=5, first="1h", on=HeldError)
locking = component("locking", LOCKING, retry=RETRY)
locking_wrong = component("lockingWrong", LOCKING_WRONG, retry=RETRY)


# Their bugs show between messages.
TWICE = {"notes", "expects_version", "counts", "ignores_version", "overwrites", "changes_event"}
TWICE |= {"changes_default", *LOCKING, *LOCKING_WRONG}


def commands(names):
    """Return a command for each handler, or two of different boxes."""
    labels = ["red", "green", "blue", "white", "black"]
    return [
        TYPES[name](f"{name} {box}", f"{name} {box}", list(labels))
        for name in names
        for box in ("a", "b")[: 1 + (name in TWICE)]
    ]
