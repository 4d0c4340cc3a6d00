"""Removing what grows for ever: processed messages, states, on request reservations and passes.

For each kind a function removes it in steps, each in a transaction of its own, and yields the
result of each committed step. It may be ended after any step, and run again. Consumers go on
meanwhile, and are not waited for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple, Protocol

from psycopg import Connection, sql

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import LockTimeoutError
from reservation.idempotence.state_based.clean_up import clean_up_states, count_removable
from reservation.idempotence.state_based.states import state_category
from reservation.postgres.arrays import IntArray, TextArray, fetch_all
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_PROCESSED = load_queries("reservation.idempotence", "processed.sql")
_PASSES = load_queries("reservation.idempotence", "passes.sql")
_RESERVATIONS = load_queries("reservation.maintenance", "pruning.sql")


# Milliseconds that a partition's lock is waited for, while consumers wait behind, and how often.
_PATIENCE = 100
_ATTEMPTS = 20

# Days for which partitions are made ahead, so that no consumer has to make its own.
_AHEAD = 3


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result, or preview, of one step.

    Attributes:
        kind: what it is of, such as "processed messages".
        of: whose they were: a consumer and a type of messages, or a category.
        count: how many.
        unit: of what, such as "days" or "streams".
        note: what is left that was to go, and why; None if nothing is.
        differing: the global positions of messages that stay because the archive has other ones.
    """

    kind: str
    of: str
    count: int
    unit: str
    note: str | None = None
    differing: tuple[int, ...] = ()


# Any: connections differ in what their rows are.
Prune = Callable[[Connection[Any], bool, int], Iterator[Pruned]]


def prune_processed(connection: Connection[Any], apply: bool, limit: int) -> Iterator[Pruned]:
    """Drop the days of processed messages that their handlers need not keep, and make days ahead.

    A day that has a message which its consumer has yet to handle stays, and so do later ones.
    """
    del limit
    kind, unit = "processed messages", "days"
    for handler, consumer, type_, held_by, days in fetch_all(
        connection, _PROCESSED["partitions_to_drop"]
    ):
        of = f"{consumer} {type_}"
        if held_by is not None:
            note = f"what is from {held_by} on stays: {consumer} has yet to handle messages of then"
            yield Pruned(kind, of, 0, unit, note)
        if not apply:
            if days:
                yield Pruned(kind, of, len(days), unit)
            continue
        for until in days:
            if not _drop_day(connection, handler, until):
                note = f"what is from before {until} on is in use; run this again"
                yield Pruned(kind, of, 0, unit, note)
                break
            yield Pruned(kind, of, 1, unit)
    if apply:
        with translated(), connection.transaction():
            fetch_all(connection, _PROCESSED["make_partitions_ahead"], [_AHEAD])


def _drop_day(connection: Connection[Any], handler: int, until: date) -> bool:
    """Drop a partition and write down that it is gone, or return False where it is in use."""
    partition = sql.Identifier(f"processed_{handler}_until_{until:%Y%m%d}")
    drop = sql.SQL(_PROCESSED["drop_partition"].decode()).format(partition=partition)
    for _ in range(_ATTEMPTS):
        try:
            with translated(), connection.transaction():
                connection.execute(_PROCESSED["set_lock_timeout"], [f"{_PATIENCE}ms"])
                # First of all, as consumers have it: they look before they lock their handlers.
                connection.execute(_PROCESSED["lock_partitions"])
                parameters = {"handler": handler, "until": until}
                connection.execute(_PROCESSED["raise_dropped_until"], parameters)
                connection.execute(drop)
        except LockTimeoutError:
            continue
        return True
    return False


def prune_reservations(component: Component, older_than: timedelta) -> Prune:
    """Return what removes a component's reservations, after which a reissue takes effect again.

    A reservation stream goes if all of it is older than that, its copy was handled, and it is not
    among the dead letters.
    """

    def prune(connection: Connection[Any], apply: bool, limit: int) -> Iterator[Pruned]:
        for category in declarations(component).reservation_categories:
            after: int | None = 0
            while after is not None:
                parameters = {
                    "consumer": component.name,
                    "category": category,
                    "after": after,
                    "limit": limit,
                    "older_than": older_than,
                    "apply": apply,
                }
                with translated(), connection.transaction():
                    found = fetch_all(connection, _RESERVATIONS["reservations"], parameters)
                ((after, count),) = found
                if count:
                    yield Pruned("reservations", category, count, "streams")

    return prune


def prune_http_requests(older_than: timedelta) -> Prune:
    """Return what removes HTTP requests and their answers.

    A request that is sent again afterwards is answered anew, with what became of its command.
    """

    def prune(connection: Connection[Any], apply: bool, limit: int) -> Iterator[Pruned]:
        parameters = {"older_than": older_than, "apply": apply, "limit": limit}
        count = limit
        while count == limit:
            with translated(), connection.transaction():
                ((count,),) = fetch_all(connection, _RESERVATIONS["http_requests"], parameters)
            if count:
                yield Pruned("answers", "http requests", count, "requests")
            if not apply:
                return

    return prune


def prune_passes(component: Component, older_than: timedelta) -> Prune:
    """Return what removes the recorded passes of a component's subscriptions.

    After that a message of theirs that is read again is handled again, and a reconciliation finds
    no evidence that it was handled.
    """

    def prune(connection: Connection[Any], apply: bool, limit: int) -> Iterator[Pruned]:
        for category in declarations(component).subscribed_categories:
            parameters = {
                "consumer": component.name,
                "category": category,
                "older_than": older_than,
                "limit": limit,
            }
            query = _PASSES["remove" if apply else "count_removable"]
            count = None
            while count is None or (apply and count == limit):
                with translated(), connection.transaction():
                    ((count,),) = fetch_all(connection, query, parameters)
                if count:
                    yield Pruned("passes", category, count, "messages")

    return prune


# What is compared of a message beside its global position.
COMPARED = ("id", "stream_name", "position", "type", "time", "data", "metadata")


class ArchivePortion(NamedTuple):
    """Some messages of an archive.

    Attributes:
        global_positions: theirs.
        digests: of each the SHA-256, in hexadecimal digits, of the texts of the columns `COMPARED`:
            of each the number of its characters, a colon and the text, or ``-`` for NULL. The time
            counts in microseconds since 1970, UTC.
    """

    global_positions: list[int]
    digests: list[str]


class ArchiveContents(Protocol):
    """The archived messages; `spark_jobs.archive.archive_folder` implements it."""

    def head(self, category: str) -> tuple[int, str | None]:
        """Return the global position and id of a category's last message, or 0 and None."""

    def portions(self, category: str, number: int) -> Iterator[ArchivePortion]:
        """Return a category's messages, so many at a time at most."""


class Readers(NamedTuple):
    """The readers of a category that the store knows.

    Attributes:
        category: its name.
        consumers: those that have a position, whose unread messages stay.
        without_position: those that a process declares, and that have none.
    """

    category: str
    consumers: list[str]
    without_position: list[str]


def readers(connection: Connection[Any], categories: list[str]) -> list[Readers]:
    """Return who reads some categories; a subscriber that has never started is not known."""
    parameters = {"categories": TextArray(categories)}
    with translated():
        rows = fetch_all(connection, _RESERVATIONS["readers"], parameters)
    return [Readers(*row) for row in rows]


def prune_archived(
    component: Component, archive: ArchiveContents, older_than: timedelta | None = None
) -> Prune:
    """Return what removes a component's archived commands, and its archived reservations if asked.

    Of commands the last of each stream stays. A reservation stream goes if all of it is archived,
    older than that, was handled, and it is not among the dead letters; after that a reissue takes
    effect again. Nothing goes that is not in the archive with the same content, that a consumer has
    yet to read, or that is an open dead letter. What the archive has otherwise is reported.
    """
    declared = declarations(component)

    def prune(connection: Connection[Any], apply: bool, limit: int) -> Iterator[Pruned]:
        things = [("archived_commands", declared.command_category)]
        if older_than is not None:
            things += [
                ("archived_reservations", category) for category in declared.reservation_categories
            ]
        for name, category in things:
            query = sql.SQL(_RESERVATIONS[name].decode()).format(**_comparison())
            last, _ = archive.head(category)
            for portion in archive.portions(category, limit):
                parameters = {
                    "global_positions": IntArray(portion.global_positions),
                    "digests": TextArray(portion.digests),
                    "category": category,
                    "last": last,
                    "older_than": older_than,
                    "apply": apply,
                }
                with translated(), connection.transaction():
                    ((count, differing),) = fetch_all(connection, query, parameters)
                if count or differing:
                    kind = name.replace("_", " ")
                    yield Pruned(kind, category, count, "messages", differing=tuple(differing))

    return prune


def _comparison() -> dict[str, sql.Composed]:
    value = sql.SQL(_RESERVATIONS["value"].decode())
    time = sql.SQL(_RESERVATIONS["time"].decode())
    json = sql.SQL(_RESERVATIONS["json"].decode())
    columns: dict[str, sql.Composable] = {
        name: sql.SQL("m.{}::text").format(sql.Identifier(name)) for name in COMPARED
    }
    columns |= {name: json.format(column=sql.Identifier(name)) for name in ("data", "metadata")}
    columns["time"] = time
    values = [value.format(value=columns[name]) for name in COMPARED]
    digest = sql.SQL(_RESERVATIONS["digest"].decode()).format(values=sql.SQL(", ").join(values))
    compared = sql.SQL(_RESERVATIONS["compared"].decode()).format(digest=digest)
    removal = sql.SQL(_RESERVATIONS["removal"].decode()).format(digest=digest)
    return {"compared": compared, "removal": removal}


def prune_states(component: Component) -> Prune:
    """Return what removes the versions of a component's states that are older than their window."""

    def prune(connection: Connection[Any], apply: bool, limit: int) -> Iterator[Pruned]:
        window, category = declarations(component).state_window, state_category(component.name)
        if window is None:
            return
        if not apply:
            count = count_removable(connection, window, category=category)
            yield Pruned("states", category, count, "versions")
            return
        start: str | None = ""
        while start is not None:
            step = clean_up_states(
                connection, window, category=category, start=start, at_once=limit
            )
            start = step.resume
            if step.removed:
                yield Pruned("states", category, step.removed, "versions")

    return prune


def prune_cancelled(older_than: timedelta) -> Prune:
    """Return what removes scheduled messages that were cancelled, and series that were stopped.

    Scheduling the same id again, in a retry of a sender for example, schedules it again after that.
    """

    def prune(connection: Connection[Any], apply: bool, limit: int) -> Iterator[Pruned]:
        parameters = {"older_than": older_than, "apply": apply, "limit": limit}
        count = None
        while count is None or (apply and count == limit):
            with translated(), connection.transaction():
                ((count,),) = fetch_all(connection, _RESERVATIONS["cancelled"], parameters)
            if count:
                yield Pruned("scheduled messages", "the store", count, "messages")
        with translated(), connection.transaction():
            ((count,),) = fetch_all(connection, _RESERVATIONS["stopped_series"], parameters)
        if count:
            yield Pruned("recurring commands", "the store", count, "series")

    return prune


# Whatever else keeps something that is not needed for ever adds its own function here.
ALWAYS: tuple[Prune, ...] = (prune_processed,)
