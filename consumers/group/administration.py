"""Changing the positions of a group by hand, while it has no member.

A change is planned first, which locks nothing, so that a person can be asked. It is then applied
under the lock of the group, and only if nothing has changed since it was planned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.errors import StoreError, StoreReplacedError
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group", "administration.sql")

# Of messages that are counted to describe a change.
MOST_COUNTED = 100_000

# How long to wait for a transaction that moves a position, or in which a process joins or leaves.
PATIENCE = "10s"


@dataclass(frozen=True, slots=True)
class IdleGroup:
    """A group as it was found, without a member.

    Attributes:
        consumer: the component's name.
        category: the category that it reads.
        positions: the positions of its partitions, in order.
        former_positions: the positions of its former partitions; None if it has none.
        epoch: the highest epoch of its partitions; None if it was never run.
        foreign: whether its positions are of another log.
    """

    consumer: str
    category: str
    positions: tuple[int, ...]
    former_positions: tuple[int, ...] | None
    epoch: int | None
    foreign: bool = False

    @property
    def effective_former_positions(self) -> tuple[int, ...] | None:
        """The former positions, if a message may still be skipped because of them."""
        if self.former_positions is None or min(self.positions) >= max(self.former_positions):
            return None
        return self.former_positions


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A change of a group's positions.

    Attributes:
        group: as it was found.
        after: the position of each of its partitions, in order.
        former_positions: the positions of the former partitions, up to which their messages were
            handled; None if the positions in ``after`` are enough.
        skipped: how many messages will be skipped.
        redelivered: how many messages will be read again that were handled.
        at_least: whether there are more of either than were counted.
    """

    group: IdleGroup
    after: tuple[int, ...]
    former_positions: tuple[int, ...] | None = None
    skipped: int = 0
    redelivered: int = 0
    at_least: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything changes."""
        return (
            self.after != self.group.positions
            or self.former_positions != self.group.former_positions
        )


def find_idle(connection: Connection[Any], consumer: str, category: str) -> IdleGroup:
    """Return a group without members, or a new one if it was never run."""
    names = {"consumer": consumer, "category": category}
    with translated():
        live = [process for (process,) in connection.execute(_QUERIES["live"], names)]
        if live:
            raise StoreError(
                f"The consumer {consumer} of {category} is running in {', '.join(live)}; stop it "
                f"first"
            )
        stored = connection.execute(_QUERIES["group"], names).fetchone()
    if stored is None:
        return IdleGroup(consumer, category, (0,), None, None)
    partitions, former_positions, positions, epoch, foreign = stored
    if len(positions) != partitions:
        raise StoreError(
            f"The consumer {consumer} of {category} should have {partitions} partitions, and has "
            f"positions of {len(positions)}; restore reservation.leases and reservation.moves from "
            f"a backup"
        )
    former_positions = None if former_positions is None else tuple(former_positions)
    return IdleGroup(consumer, category, tuple(positions), former_positions, epoch, foreign)


def plan_move(connection: Connection[Any], group: IdleGroup, after: Sequence[int]) -> GroupChange:
    """Return what moving a group's positions would do, and move nothing."""
    after = tuple(after)
    if any(after):
        _refuse_foreign(group)
    before = (0,) * len(after) if group.foreign else group.positions
    former_positions = None if group.foreign else group.effective_former_positions
    with translated(), connection.transaction():
        (last,) = connection.execute(_QUERIES["last"]).fetchall()[0]
        if max(after) > last:
            raise StoreError(
                f"Global position {max(after)} is beyond the last message, {last}, so messages "
                f"that are not written yet would be skipped; give a position up to {last}"
            )
        if former_positions is not None and len(set(after)) > 1:
            raise StoreError(_still_effective(group, "move all of its partitions"))
        connection.execute(_QUERIES["settings"])
        rows = connection.execute(
            _QUERIES["count_moved"],
            {
                "category": group.category,
                "low": min(*before, *after),
                "high": max(*before, *after, *(former_positions or ())),
                "limit": MOST_COUNTED,
                "before": list(before),
                "after": list(after),
                "former_positions": _array(former_positions),
            },
        ).fetchall()
    ((skipped, redelivered, at_least),) = rows
    return GroupChange(group, after, None, skipped, redelivered, at_least)


def plan_partitions(group: IdleGroup, partitions: int) -> GroupChange:
    """Return what changing the number of partitions would do to a group's positions.

    No message is skipped and none is read again. Where the positions differ, the former ones are
    kept, because they tell how far messages were handled.
    """
    _refuse_foreign(group)
    if partitions == len(group.positions):
        return GroupChange(group, group.positions, group.former_positions)
    if group.effective_former_positions is not None:
        raise StoreError(_still_effective(group, "change the number again"))
    low, high = min(group.positions), max(group.positions)
    # Kept once there are any, for the highest of them: letters up to it may be out of order.
    keep = low < high or group.former_positions is not None
    return GroupChange(group, (low,) * partitions, group.positions if keep else None)


def apply_changes(
    connection: Connection[Any],
    changes: Sequence[GroupChange],
    also: Callable[[Connection[Any]], None] = lambda _: None,
) -> None:
    """Apply changes, all or none, under the locks of their groups."""
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute("SELECT set_config('lock_timeout', %s, true)", [PATIENCE])
        for change in sorted(changes, key=lambda change: change.group.category):
            group = change.group
            names = {"consumer": group.consumer, "category": group.category}
            if group.epoch is None:
                connection.execute(_QUERIES["create_group"], names)
            connection.execute(_QUERIES["lock"], names)
            if group.epoch is None:
                connection.execute(_QUERIES["create_position"], names)
                group = IdleGroup(group.consumer, group.category, (0,), None, 1)
            connection.execute(_QUERIES["lock_positions"], names)
            if find_idle(connection, group.consumer, group.category) != group:
                raise StoreError(
                    f"The consumer {group.consumer} of {group.category} was run in the meantime; "
                    f"nothing was changed; look at its positions and try again"
                )
            connection.execute(
                _QUERIES["store_group"],
                names
                | {
                    "after": list(change.after),
                    "former_positions": _array(change.former_positions),
                },
            )
            connection.execute(_QUERIES["remove_members"], names)
            values = names | {"after": list(change.after), "epoch": (group.epoch or 0) + 1}
            for query in ("remove_leases", "remove_moves", "store_leases", "store_moves"):
                connection.execute(_QUERIES[query], values)
        also(connection)


def _refuse_foreign(group: IdleGroup) -> None:
    if group.foreign:
        highest = max((*group.positions, *(group.effective_former_positions or ())))
        raise StoreReplacedError(group.consumer, group.category, highest)


def _array(former_positions: Sequence[int] | None) -> list[int] | None:
    return None if former_positions is None else list(former_positions)


def _still_effective(group: IdleGroup, what: str) -> str:
    return (
        f"The number of partitions of {group.consumer} in {group.category} was changed, and some "
        f"messages from before that are not handled; run its consumers until every position is "
        f"past {max(group.former_positions or (0,))}, and then {what}"
    )
