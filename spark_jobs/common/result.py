"""The results of the jobs as plain values, for the reports and the thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

# The kinds of findings, by their names in options, JSON, Parquet, pages and metrics.
VIOLATIONS = (
    "missing",
    "orphan",
    "multiple",
    "conflict",
    "conflict-mismatch",
    "wrong-type",
    "effect-twice",
    "unhandled",
    "without-cause",
)


@dataclass(frozen=True, slots=True)
class CommandCounts:
    """Outcomes of the commands that are reserved into one category.

    Commands are without a key, the first of their key, a duplicate, or a conflict: ``commands =
    keyless + keys + duplicates + conflicts``; and ``keyless + keys = reserved + missing +
    pending + dead``. (If no command of a key has the content of its reservation, each of them is a
    conflict, and the first is counted as a key too.)

    Attributes:
        command_category: where the commands are.
        reservation_category: where they are reserved, or the entity's category for commands that
            initiate.
        initiates: whether the commands start their entity's stream.
        commands: how many commands are stored.
        keys: how many distinct idempotence keys they have.
        keyless: commands without a usable key, which cannot be reserved.
        duplicates: commands with the content of an earlier one of their key.
        reserved: keys that have a reservation.
        missing: keys without one although the consumer has read their command: lost.
        pending: keys without one that the consumer has not read yet.
        dead: keys without one whose command was set aside: waiting, parked, dead or discarded.
        orphans: reservations without a command.
        multiple: reservation streams with more than one message.
        conflicts: commands whose content is not that of their key.
        wrong_type: messages in the reservation category of a type that is not reserved there.
        conflict_mismatches: commands that are a conflict and that the consumer did not record as
            one, or the reverse.
        corrected: keys whose command was corrected, and is handled with other content.
    """

    command_category: str
    reservation_category: str
    initiates: bool
    commands: int
    keys: int
    keyless: int
    duplicates: int
    reserved: int
    missing: int
    pending: int
    dead: int
    orphans: int
    multiple: int
    conflicts: int
    wrong_type: int
    conflict_mismatches: int = 0
    corrected: int = 0


@dataclass(frozen=True, slots=True)
class EffectCounts:
    """Outcomes of the reserved commands of one category, and of the events that follow.

    ``reserved = handled + silent + pending + unhandled + dead``.

    Attributes:
        category: where the reserved commands are.
        reserved: how many there are.
        handled: those that an event follows.
        silent: those that were handled in a way that leaves nothing in the log.
        pending: those that the consumer has not read yet.
        unhandled: those that it has read and that no event follows.
        dead: those that were set aside: waiting, parked, dead or discarded.
    """

    category: str
    reserved: int
    handled: int
    silent: int
    pending: int
    unhandled: int
    dead: int


@dataclass(frozen=True, slots=True)
class SubscriptionCounts:
    """Outcomes of the messages of another category that the component subscribes to.

    They are those of a declared type, from its first position on and with the correlation that it
    asks for. ``subscribed = handled + passed + pending + unhandled + dead``.

    Attributes:
        category: where they are.
        subscribed: how many there are.
        handled: those that an event follows.
        passed: those that no event follows, and that the consumer has recorded as handled.
        pending: those that the consumer has not read yet.
        unhandled: those that it has read, and that neither an event follows nor a pass.
        dead: those that were set aside: waiting, parked, dead or discarded.
    """

    category: str
    subscribed: int
    handled: int
    passed: int
    pending: int
    unhandled: int
    dead: int


@dataclass(frozen=True, slots=True)
class Events:
    """The events of the component's entities.

    Attributes:
        category: the entity's category.
        events: how many there are.
        causes: how many messages they follow.
        effect_twice: how many messages had their effect twice.
        without_cause: events that follow no message of the component's categories.
    """

    category: str
    events: int
    causes: int
    effect_twice: int
    without_cause: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of commands, from one stage to another, in seconds.

    Attributes:
        stage: ``reserved`` (from sent to reserved), ``handled`` (from reserved, or sent, to the
            first event) or ``whole`` (from sent to the first event).
        type: the command's type; None for all of them.
        hour: when it was sent, to the hour, in UTC; None for all.
        count: how many commands came that far.
        p50, p95, p99, max: in seconds.
    """

    stage: str
    type: str | None
    hour: datetime | None
    count: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Volume:
    """Commands sent in an hour, and their outcomes.

    Attributes:
        hour: when it was sent, in UTC.
        commands: how many commands.
        duplicates: those of them with the content of an earlier one of their key.
        handled: those of them that an event follows.
    """

    hour: datetime
    commands: int
    duplicates: int
    handled: int


@dataclass(frozen=True, slots=True)
class Sender:
    """One sender.

    Attributes:
        sender: the category that the sender's messages name; None where they name none.
        type: the command's type.
        commands: how many it sent.
        keys: how many distinct idempotence keys they have, each counted for its first send.
        reissued: how many keys were sent more than once, each counted for its second send.
        duplicates: commands with the content of an earlier one of their key.
        longest_gap: the longest time between a send of a key and the one before it; None if no key
            was sent again.
        largest_burst: the most sends of one key that followed each other quickly, counted for the
            last of them; 0 if none did.
    """

    sender: str | None
    type: str
    commands: int
    keys: int
    reissued: int
    duplicates: int
    longest_gap: timedelta | None
    largest_burst: int


@dataclass(frozen=True, slots=True)
class Burst:
    """Sends of one key that followed each other quickly.

    Attributes:
        key_stream: the stream that the key names.
        sends: how many there were.
        first, last: when they were stored, in UTC.
    """

    key_stream: str
    sends: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class Reissues:
    """Reissues by sender, and their delays.

    Attributes:
        senders: for each sender and type.
        longest_gap: the longest time between two sends of one key that follow each other; None if
            nothing was sent again.
        longest_gap_key: the stream that this key names.
        bursts: the largest.
        longest_span: the longest time from the first to the last send of one key, which any window
            of retention that starts with the first has to exceed; None if nothing was sent again.
        longest_span_key: the stream that this key names.
        untimed: how many commands have a time outside of the years 1 to 9999; they count in no
            latency, volume, gap or burst.
        first_untimed: the global position of the first of them; None if there is none.
    """

    senders: Sequence[Sender]
    longest_gap: timedelta | None
    longest_gap_key: str | None
    bursts: Sequence[Burst]
    longest_span: timedelta | None = None
    longest_span_key: str | None = None
    untimed: int = 0
    first_untimed: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of a command in conflict from the message that its key stands for.

    Attributes:
        what: ``field``, ``type``, or ``unreadable`` if one of both cannot be decoded.
        field: the name of the field, as in JSON; None if it is none.
        command, first: what each of both says: the type, or the value as JSON if values were asked
            for, cut after `LONGEST_VALUE` characters. None for a message that cannot be decoded.
    """

    what: str
    field: str | None
    command: str | None
    first: str | None


# Of the values of differing fields, in characters.
LONGEST_VALUE = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One message that needs attention.

    Attributes:
        id: the same in every run, on every machine, and of no other finding.
        finding: one of `VIOLATIONS`.
        command_category, reservation_category: where it was found; for events, the category of
            what they follow (None if they follow nothing) and their own.
        key_stream: the stream that the key names; None without a key.
        stream_name, position, type: of the message; None if it was deleted, and a consumer's
            position stands at it.
        global_position, message_id: of the message.
        time: of the message; None if it is outside of the years 1 to 9999, or was deleted.
        differences: of a conflict; empty for others.
    """

    id: str
    finding: str
    command_category: str | None
    reservation_category: str
    key_stream: str | None
    stream_name: str | None
    position: int | None
    global_position: int
    type: str | None
    message_id: str
    time: datetime | None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class AcceptedFinding:
    """A finding that somebody has looked at and accepted.

    Attributes:
        finding: the message.
        reason: why it was accepted.
        accepted_by: the database user who did.
        accepted_at: when, in UTC.
    """

    finding: Finding
    reason: str
    accepted_by: str
    accepted_at: datetime


@dataclass(frozen=True, slots=True)
class Report:
    """A run's report.

    Attributes:
        component: the component's name.
        time: when the snapshot was taken, in UTC.
        categories: for each reservation category, what became of the commands reserved into it,
            and the same for the commands that start their entity's stream.
        effects: for each category of reserved commands, what became of them.
        events: of the component's entities.
        findings: some of the rows that need attention.
        accepted: the rows that would, but were accepted.
        accepted_counts: by the names of kinds, what of the counts is accepted.
        latency, volume, reissues: where a report shows them; empty or None otherwise.
        subscriptions: for each category that the component subscribes to, what became of its
            messages.
        since: the global position of the first message that counts as new, if only groups with new
            messages were looked at.
        deleted: how many deleted messages the positions of consumers stand at. They are missing,
            and in no counts of a category.
        snapshot_held: how long the snapshot was held, which keeps VACUUM from cleaning up; None
            where it is not known. Two reports that say the same otherwise are equal.
    """

    component: str
    time: datetime
    categories: Sequence[CommandCounts]
    effects: Sequence[EffectCounts]
    events: Events
    findings: Sequence[Finding]
    latency: Sequence[Latency] = ()
    volume: Sequence[Volume] = ()
    reissues: Reissues | None = None
    accepted: Sequence[AcceptedFinding] = ()
    accepted_counts: Mapping[str, int] = field(default_factory=dict)
    subscriptions: Sequence[SubscriptionCounts] = ()
    since: int | None = None
    deleted: int = 0
    snapshot_held: timedelta | None = field(default=None, compare=False)

    def outstanding(self, name: str) -> int:
        """Return how many findings of a kind there are that nobody has accepted."""
        return self.count(name) - self.accepted_counts.get(name, 0)

    def count(self, name: str) -> int:
        """Return how many findings of a kind there are, by its name in options."""
        parts = (*self.categories, *self.effects, *self.subscriptions, self.events)
        counted: int = sum(getattr(part, field_of(name), 0) for part in parts)
        return counted + self.deleted if name == "missing" else counted


def field_of(name: str) -> str:
    """Return the field in which findings of a kind are counted, by its name in options."""
    irregular = {
        "orphan": "orphans",
        "conflict": "conflicts",
        "conflict-mismatch": "conflict_mismatches",
    }
    return irregular.get(name, name.replace("-", "_"))
