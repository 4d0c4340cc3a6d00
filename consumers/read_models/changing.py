"""Switching the views of a read model to another version, and removing a version."""

import time
from collections import Counter
from typing import Any

from psycopg import Connection

from consumers.group.administration import PATIENCE
from consumers.group.inspection.status import limit_planner
from consumers.group.retiring import retire
from consumers.read_models.progress import VersionStatus, look
from reservation.errors import StoreError
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.read_models.made_versions import MadeVersion, versions
from reservation.read_models.schemas import drop, lock_model
from reservation.read_models.views import turn_views

_QUERIES = load_queries("consumers.read_models")

# Messages. A version that lags more than a batch has not caught up, wherever the other one is.
MOST_BEHIND = 1000

# Seconds that a version may take for the last messages, and between two looks at it.
CATCHES_UP_WITHIN, PAUSE = 10.0, 0.1


def switch(
    connection: Connection[Any], model: str, version: int, within: float = CATCHES_UP_WITHIN
) -> bool:
    """Let the views show another version, in one transaction; return whether they did not yet.

    The version must have no open letters, and be as far as the one that they show in each category.
    """
    until = time.monotonic() + within
    while True:
        with translated(), connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [PATIENCE])
            lock_model(connection, model)
            limit_planner(connection)
            made = _known(connection, model, version)
            if made.is_shown:
                return False
            found = {one.made.version: one for one in look(connection, model)}
            shown = next((one for one in found.values() if one.made.is_shown), None)
            problem = _problem(found[version], shown)
            if problem is None:
                turn_views(connection, model, version)
                return True
        status = found[version]
        if status.open_letters or max(status.lags.values(), default=0) > MOST_BEHIND:
            raise StoreError(problem)
        if status.never_run or not status.partitions or time.monotonic() >= until:
            raise StoreError(problem)
        time.sleep(PAUSE)


def remove(connection: Connection[Any], model: str, version: int) -> MadeVersion:
    """Remove the tables, positions and letters of a version that the views do not show."""
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute("SELECT set_config('lock_timeout', %s, true)", [PATIENCE])
        lock_model(connection, model)
        made = _known(connection, model, version, even_without_tables=True)
        if made.is_shown:
            raise StoreError(
                f"The views of {model} show version {version}; switch them to another version "
                f"first, or drop the schema {model} with them if the read model is given up"
            )
        if _was_run(connection, made.schema):
            retire(connection, made.schema, apply=True, with_open_letters=True)
        if made in versions(connection, model):
            drop(connection, made.schema)
    return made


def _known(
    connection: Connection[Any], model: str, version: int, *, even_without_tables: bool = False
) -> MadeVersion:
    """Return a version that has tables, or at least a position."""
    found = versions(connection, model)
    for made in found:
        if made.version == version:
            return made
    made = MadeVersion(model, version, False)
    if even_without_tables and _was_run(connection, made.schema):
        return made
    known = ", ".join(str(one.version) for one in found)
    raise StoreError(
        f"The store has no version {version} of a read model {model!r}"
        + (f"; it has {known}" if known else "; `reservation models list` shows what it has")
    )


def _was_run(connection: Connection[Any], consumer: str) -> bool:
    rows = connection.execute(_QUERIES["was_run"], {"consumer": consumer}).fetchall()
    return bool(rows[0][0])


def _problem(status: VersionStatus, shown: VersionStatus | None) -> str | None:
    """Return why the views cannot show a version; None if they can."""
    made = status.made
    which = f"Version {made.version} of {made.model}"
    if status.never_run or not status.partitions:
        of = f" on {', '.join(map(printable, status.never_run))}" if status.never_run else ""
        return f"{which} was never run{of}; start it first"
    if status.open_letters:
        return (
            f"{which} has dead letters that are open, {status.open_letters:,} in all, so their "
            f"messages are not in its rows; retry or discard them first"
        )
    level = Counter() if shown is None else shown.lags
    for category, lag in status.lags.items():
        if status.at_least or lag > min(level[category], MOST_BEHIND):
            more = "+" if status.at_least else ""
            return (
                f"{which} lags by {lag:,}{more} messages of {printable(category)}; let it run "
                f"until it has caught up, as `reservation models list` shows"
            )
    return None
