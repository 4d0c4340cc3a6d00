"""Telling a story: what belongs to a command, in order, with what became of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from consumers.story.content.difference import differences
from consumers.story.content.entries import Entry, Kind, Story
from consumers.story.content.kinds import kind_of, time_of
from consumers.story.outcome import outcome_of
from consumers.story.search.accounts import accounts_of
from consumers.story.search.following import MOST_MESSAGES, Gathered, gather
from consumers.story.search.naming import Naming, fields_of
from consumers.story.search.reading import Reading, cause_of
from reservation.messages.comparison import same_json, same_meaning
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import rejection_of
from reservation.serialization.codec import camel_case

# Source: W3C Trace Context, 3.2.
_TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def story_of(
    reading: Reading, naming: Naming, asked: StoredMessage, after: int | None = None
) -> Story:
    """Return the story of the command that a message is, or follows from.

    Args:
        reading: the store.
        naming: how its commands are reserved.
        asked: the message.
        after: up to where the log was searched before.
    """
    found = gather(reading, naming, asked, after)
    messages = [found.messages[n] for n in sorted(found.messages)]
    entries = entries_of(messages)
    entries = [_compared(entry, found, naming) for entry in entries]
    entries = [
        replace(entry, is_asked=entry.message is not None and entry.message.id == asked.id)
        for entry in entries
    ]
    notes = []
    if found.is_cut:
        notes.append(
            f"Only the first {MOST_MESSAGES} messages are shown; ask for one of them to see what "
            f"follows from it."
        )
    ordered = in_order(entries, accounts_of(reading, messages))
    reaches_end = found.looked_until >= reading.end_of_log
    return Story(
        text="",
        outcome=outcome_of(reading, found, ordered),
        entries=ordered,
        looked_from=found.command.global_position,
        looked_until=found.looked_until,
        next_after=None if reaches_end else found.looked_until,
        notes=tuple(notes),
    )


def entries_of(
    messages: Sequence[StoredMessage], causes: Mapping[int, StoredMessage] | None = None
) -> list[Entry]:
    """Return an entry for each message.

    Args:
        messages: in the order of the log.
        causes: further messages that some of them follow from, by their global positions.
    """
    told = {message.global_position: message for message in messages}
    known = {**(causes or {}), **told}
    depths: dict[int, int] = {}
    entries = []
    for message in messages:
        position = cause_of(message)
        stream = message.metadata.causation_message_stream_name
        cause = known.get(position) if position is not None else None
        if cause is not None and cause.stream_name != stream:
            cause = None
        is_told = cause is not None and position in depths
        depth = depths[position] + 1 if is_told and position is not None else 0
        depths[message.global_position] = depth
        kind = kind_of(message, cause)
        reason, by = _reason_of(kind, message)
        entries.append(
            Entry(
                kind=kind,
                time=time_of(message),
                depth=depth,
                message=message,
                cause=position,
                cause_stream=stream,
                cause_is_told=is_told,
                trace=_trace_of(message),
                reason=reason,
                by=by,
            )
        )
    return entries


def in_order(entries: Sequence[Entry], accounts: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries of messages with those about them put in where their times are.

    Args:
        entries: of messages, in the order of the log.
        accounts: what is about them, or has no place in the log. It never comes before the message
            that it is about.
    """
    ordered = list(entries)
    for account in sorted(accounts, key=lambda one: one.time):
        about = account.global_position or account.cause
        place = depth = 0
        for n, entry in enumerate(ordered, start=1):
            of_it = entry.message is not None and entry.global_position == about
            if of_it and account.kind is not Kind.REQUEST:
                depth = entry.depth + 1
            if of_it or entry.time <= account.time:
                place = n
        ordered.insert(place, replace(account, depth=depth, cause_is_told=depth > 0))
    return tuple(ordered)


def _reason_of(kind: Kind, message: StoredMessage) -> tuple[str | None, str | None]:
    """Return the reason that a rejection or a correction has, and who gave it."""
    if kind is Kind.REJECTION:
        rejection = rejection_of(message)
        return (None if rejection is None else rejection.reason), None
    if kind is Kind.CORRECTION:
        said = fields_of(message.data)
        return _text(said.get("reason")), _text(said.get("sessionUser"))
    return None, None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _trace_of(message: StoredMessage) -> str | None:
    value = message.metadata.properties.get("traceparent")
    matched = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    return None if matched is None else matched[1]


def _compared(entry: Entry, found: Gathered, naming: Naming) -> Entry:
    """Return an entry with what differs from the message that it is compared with."""
    message, command, copy = entry.message, found.command, found.copy
    if message is None:
        return entry
    if message.global_position in found.reissues:
        first = copy if copy is not None else command
        # What was corrected is compared with what it was, too.
        same = next((one for one in (first, command) if _is_same(naming, message, one)), None)
        kind = Kind.CONFLICT if same is None else Kind.REISSUE
        return _differing(replace(entry, kind=kind), same or first, _volatile(naming, message))
    if copy is not None and message is copy:
        return _differing(entry, command)
    if entry.kind is Kind.CORRECTION:
        former, corrected = _contents_of(message)
        differing = differences(former, corrected, exact=True)
        return replace(entry, differences=differing, compared_with=entry.cause)
    return entry


def _contents_of(correction: StoredMessage) -> tuple[str | None, str | None]:
    """Return what a message was corrected from, and to."""
    try:
        raw = msgspec.json.decode(correction.data or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None, None
    texts = {name: bytes(value).decode() for name, value in raw.items()}
    return texts.get("former"), texts.get("corrected")


def _differing(entry: Entry, first: StoredMessage, volatile: Sequence[str] = ()) -> Entry:
    if entry.message is None:
        return entry
    found = differences(first.data, entry.message.data, volatile)
    return replace(entry, differences=found, compared_with=first.global_position)


def _is_same(naming: Naming, message: StoredMessage, first: StoredMessage) -> bool:
    """Return whether a command says the same as the first one of its key, as consumers compare."""
    component = naming.declared_for(message)
    if component is None:
        return message.type == first.type and same_json(
            message.data or "null", first.data or "null"
        )
    if message.type == first.type and same_json(
        message.data or "null", first.data or "null", _volatile(naming, message)
    ):
        return True

    def decoded(stored: StoredMessage) -> object | None:
        try:
            return component.decode(stored)
        except Exception:  # noqa: BLE001  a class or an upcaster can raise anything
            return None

    return same_meaning(component, message, first, decoded)


def _volatile(naming: Naming, command: StoredMessage) -> list[str]:
    """Return the fields of a command in which a reissue may differ, as they are stored."""
    component = naming.declared_for(command)
    if component is None:
        return []
    declared = component.reservations.get(command.type) or component.initiations.get(command.type)
    return [camel_case(name) for name in declared.volatile] if declared is not None else []
