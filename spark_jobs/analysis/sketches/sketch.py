"""The sketches of the jobs: what is summed up of each message, to see whether a group is in order.

They hold numbers only, not the component, so that they can be sent to Spark's workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.analysis.sketches.marks import NONE, Fingerprints, Flags, Marks, Numbers
from spark_jobs.snapshot.progress import Consumed


class Sketch(Protocol):
    """What is summed up for a job.

    Attributes:
        consumed: how far the consumers are, by the numbers of their categories.
        sums: the columns that are summed up for each group, and how Arrow does it.
        columns: what `seen` gives.
    """

    @property
    def consumed(self) -> Mapping[int, Consumed]:
        """See the attributes."""

    sums: ClassVar[Sequence[tuple[str, str]]]
    columns: ClassVar[Sequence[str]]

    def of(self, table: pa.Table) -> pa.Table:
        """Return the numbers of each message, with its ``group`` and ``global_position``."""

    def seen(self, sums: pa.Table) -> pa.Table:
        """Return what matters of the sums of groups: few different rows, whatever was hashed."""


def _isin(values: Numbers, known: Sequence[int]) -> Flags:
    found: Flags = np.isin(values, known)
    return found


def _alone(positions: Numbers) -> Numbers:
    """Return a number for each message that no other has, far from its position (splitmix64)."""
    mixed = positions.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    alone: Numbers = (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
    return alone


def _masked(values: Numbers, is_there: Flags) -> pa.Array:
    return pa.array(values, mask=~is_there)


def _differ(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return 1 where two columns have different values, else 0."""
    return pc.fill_null(pc.not_equal(one, other), False).cast(pa.int64())


@dataclass(frozen=True, slots=True)
class CommandsSketch:
    """What is summed up of commands and reservations, for each key.

    Attributes:
        consumed: how far the consumers are, by the numbers of their categories.
        commands: the number of the command category.
        events: that of the entity's category.
        own: those of the component's own categories.
        right: the categories and types of reservations and events that are where they belong.
        pair_of_type: the number of the pair of a command, by its type.
        pair_of_category: the number of the pair of what is in a category.
        initiates: whether events may stand for reservations.
        only_first: whether these are the first of their streams.
    """

    consumed: Mapping[int, Consumed]
    commands: int
    events: int
    own: Sequence[int]
    right: Sequence[tuple[int, int]]
    pair_of_type: Mapping[int, int]
    pair_of_category: Mapping[int, int]
    initiates: bool
    only_first: bool

    sums: ClassVar[Sequence[tuple[str, str]]] = (
        ("is_command", "sum"),
        ("is_reservation", "sum"),
        ("is_start", "sum"),
        ("waits", "sum"),
        ("is_recorded", "sum"),
        ("is_corrected", "sum"),
        ("pair", "min"),
        ("pair", "max"),
        ("says", "min"),
        ("says", "max"),
        ("command", "min"),
        ("follows", "max"),
    )
    columns: ClassVar[Sequence[str]] = (
        *("commands", "reservations", "starts", "waiting", "recorded", "corrected"),
        *("pair", "last_pair", "differs", "follows_another"),
    )

    def of(self, table: pa.Table) -> pa.Table:
        """Return the numbers of each message; see `Sketch`."""
        rows = Fingerprints.of(table)
        was_sent, is_event = rows.category == self.commands, rows.category == self.events
        is_start = is_event & rows.has_kind & self.initiates
        if self.only_first:
            is_start &= rows.is_first
        is_copy = _isin(rows.category, self.own) & ~was_sent & ~is_event
        wanted = (was_sent & (rows.type != NONE)) | is_copy | is_start
        rows, is_start = rows.where(wanted), is_start[wanted]
        marks = Marks.of(rows, self.consumed)
        was_sent, is_event = rows.category == self.commands, rows.category == self.events
        is_right = np.zeros(len(rows.category), bool)
        for category, type_ in self.right:
            is_right |= (rows.category == category) & (rows.type == type_)
        is_wrong = ~was_sent & ~is_event & ~is_right
        pair = np.full(len(rows.category), NONE)
        for type_, number in self.pair_of_type.items():
            pair[was_sent & (rows.type == type_)] = number
        for category, number in self.pair_of_category.items():
            pair[rows.category == category] = number
        has_key = rows.has_key & ~is_wrong
        at = rows.global_position
        follows = np.where(rows.has_causation, rows.causation, NONE)
        return pa.table(
            {
                # A message without a key, or of a wrong type, is a group of its own.
                "group": np.where(has_key, rows.key, _alone(at)),
                "global_position": at,
                "is_command": was_sent.astype(np.int8),
                "is_reservation": (~was_sent).astype(np.int8),
                "is_start": is_start.astype(np.int8),
                # Whether it waits for the consumer.
                "waits": (was_sent & rows.has_key & ~marks.was_read & ~marks.is_letter).astype(
                    np.int8
                ),
                # Whether the consumer has recorded it as a conflict.
                "is_recorded": (was_sent & marks.was_read & marks.is_recorded).astype(np.int8),
                "is_corrected": marks.is_corrected.astype(np.int8),
                "pair": _masked(pair.astype(np.int64), pair != NONE),
                # An event that starts a stream has the content of the command that it follows.
                "says": _masked(rows.says, rows.has_says),
                "command": _masked(at, was_sent),
                "follows": _masked(follows, is_start),
            }
        )

    def seen(self, sums: pa.Table) -> pa.Table:
        """Return what matters of the sums of groups; see `Sketch`."""
        return pa.table(
            {
                "commands": sums["is_command_sum"],
                "reservations": sums["is_reservation_sum"],
                "starts": sums["is_start_sum"],
                "waiting": sums["waits_sum"],
                "recorded": sums["is_recorded_sum"],
                "corrected": sums["is_corrected_sum"],
                "pair": sums["pair_min"],
                "last_pair": sums["pair_max"],
                # Whether contents differ, and whether an event follows another command.
                "differs": _differ(sums["says_min"], sums["says_max"]),
                "follows_another": _differ(sums["command_min"], sums["follows_max"]),
            }
        )


@dataclass(frozen=True, slots=True)
class EffectsSketch:
    """What is summed up of causes and what follows them, for each cause.

    Attributes:
        consumed: how far the consumers are, by the numbers of their categories.
        commands: the number of the command category.
        events: that of the entity's category.
        passes: those of passes.
        subscribed: those of subscribed categories.
        copies: the categories and types of reserved copies.
        judged: the categories of what is to be followed, in their order.
        reserved, silent: the types that are reserved; those whose handling may leave nothing.
    """

    consumed: Mapping[int, Consumed]
    commands: int
    events: int
    passes: Sequence[int]
    subscribed: Sequence[int]
    copies: Sequence[tuple[int, int]]
    judged: Sequence[int]
    reserved: Sequence[int]
    silent: Sequence[int]

    sums: ClassVar[Sequence[tuple[str, str]]] = (
        ("is_member", "max"),
        ("is_cause", "max"),
        ("was_read", "max"),
        ("may_lack", "max"),
        ("is_event", "max"),
        ("is_pass", "max"),
        ("kind", "count"),
        ("kind", "count_distinct"),
        ("category", "max"),
    )
    columns: ClassVar[Sequence[str]] = (
        *("is_member", "is_cause", "was_read", "may_lack", "is_followed", "was_passed"),
        *("events", "kinds", "category"),
    )

    def of(self, table: pa.Table) -> pa.Table:
        """Return the numbers of each message; see `Sketch`."""
        rows = Fingerprints.of(table)
        marks = Marks.of(rows, self.consumed)
        was_sent, is_event = rows.category == self.commands, rows.category == self.events
        is_pass = _isin(rows.category, self.passes)
        is_copy = rows.is_subscribed.copy()
        for category, type_ in self.copies:
            is_copy |= (rows.category == category) & (rows.type == type_)
        number = np.full(len(rows.category), NONE)
        for n, category in enumerate(self.judged):
            number[rows.category == category] = n
        is_follower, at = is_event | is_pass, rows.global_position
        # The events of a reserved command mostly follow its copy. It is judged with those that
        # follow itself, which are without a cause otherwise.
        is_aside = was_sent & _isin(rows.type, self.reserved)
        is_cause = ~is_follower & ~is_aside
        is_silent = _isin(rows.type, self.silent)
        may_lack = is_cause & ~marks.is_letter & (~marks.was_read | is_silent)
        # An event without a cause gets a negative number, which no message has.
        followed = np.where(rows.has_causation, rows.causation, -at)
        return pa.table(
            {
                "group": np.where(is_follower, followed, at),
                "global_position": at,
                "is_member": (~is_aside).astype(np.int8),
                "is_cause": is_cause.astype(np.int8),
                "was_read": (is_cause & marks.was_read).astype(np.int8),
                "may_lack": may_lack.astype(np.int8),
                "is_event": is_event.astype(np.int8),
                "is_pass": is_pass.astype(np.int8),
                # Events of one stream and type have the same; most pseudo events have none.
                "kind": _masked(rows.kind, rows.has_kind),
                "category": _masked(number.astype(np.int64), is_copy & (number != NONE)),
            }
        )

    def seen(self, sums: pa.Table) -> pa.Table:
        """Return what matters of the sums of groups; see `Sketch`."""
        return pa.table(
            {
                "is_member": sums["is_member_max"].cast(pa.int64()),
                "is_cause": sums["is_cause_max"].cast(pa.int64()),
                "was_read": sums["was_read_max"].cast(pa.int64()),
                "may_lack": sums["may_lack_max"].cast(pa.int64()),
                "is_followed": sums["is_event_max"].cast(pa.int64()),
                "was_passed": sums["is_pass_max"].cast(pa.int64()),
                "events": sums["kind_count"],
                "kinds": sums["kind_count_distinct"],
                "category": sums["category_max"],
            }
        )
