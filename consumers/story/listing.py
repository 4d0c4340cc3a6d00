"""What many commands have part in, page by page: a stream, or the messages of a correlation."""

from collections.abc import Sequence

from consumers.story.content.entries import Entry, Story
from consumers.story.search.accounts import accounts_of
from consumers.story.search.reading import Reading, cause_of
from consumers.story.telling import entries_of, in_order
from reservation.messages.message import StoredMessage

PAGE = 50
LOOKED_AT = 60_000  # global positions that are searched for a page of a correlation

_ONLY_NEWEST = (
    f"There is no stream of this name, so only the newest {LOOKED_AT:,} global positions were "
    f"searched. after=0 begins with the oldest."
)


def stream_page(reading: Reading, stream: str, after: int | None) -> Story:
    """Return a page of a stream.

    Args:
        reading: the store.
        stream: its name.
        after: the position after which the page begins; None for the first one.
    """
    found = reading.messages(
        "of_stream", stream=stream, after=-1 if after is None else after, limit=PAGE + 1
    )
    page = found[:PAGE]
    return Story(
        text=stream,
        entries=_entries(reading, page),
        next_after=page[-1].position if len(found) > PAGE else None,
    )


def correlation_page(reading: Reading, correlation: str, after: int | None) -> Story:
    """Return a page of the messages that belong to a correlation.

    Without a position it begins with the stream of that name; if there is none, with the newest
    messages of the store.

    Args:
        reading: the store.
        correlation: the correlation stream's name.
        after: the global position after which the page begins; None for the first one.
    """
    notes: tuple[str, ...] = ()
    if after is None:
        first = reading.first_of([correlation]).get(correlation)
        after = max(0, reading.end_of_log - LOOKED_AT)
        if first is not None:
            after = first.global_position - 1
        elif after > 0:
            notes = (_ONLY_NEWEST,)
    until = min(after + LOOKED_AT, reading.end_of_log)
    found = reading.messages(
        "correlated", correlation=correlation, after=after, until=until, limit=PAGE + 1
    )
    page = found[:PAGE]
    if len(found) > PAGE:
        until = page[-1].global_position
    if not page and until >= reading.end_of_log and not notes:
        notes = ("No message belongs to this correlation.",)
    return Story(
        text=correlation,
        entries=_entries(reading, page),
        looked_from=after,
        looked_until=until,
        next_after=until if until < reading.end_of_log else None,
        notes=notes,
    )


def _entries(reading: Reading, page: Sequence[StoredMessage]) -> tuple[Entry, ...]:
    causes = {position for message in page if (position := cause_of(message)) is not None}
    known = {message.global_position: message for message in reading.at(causes)}
    return in_order(entries_of(page, known), accounts_of(reading, page))
