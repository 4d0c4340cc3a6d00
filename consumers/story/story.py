"""The public door: what a store holds of that which a text names."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psycopg import Connection

from consumers.story.content.entries import Entry, Meaning, Story
from consumers.story.listing import correlation_page, stream_page
from consumers.story.search.naming import Naming
from consumers.story.search.reading import Reading, reading
from consumers.story.search.recognizing import Taken, recognize
from consumers.story.telling import in_order, story_of
from reservation.component import Component


def tell(
    connection: Connection[Any],
    text: str,
    *,
    meaning: Meaning | None = None,
    after: int | None = None,
    components: Sequence[Component[Any]] = (),
) -> Story:
    """Return what a store holds of that which a text names.

    Args:
        connection: of a role with an auditor's rights; in a transaction whose snapshot is used, or
            in autocommit.
        text: a key, a stream, the id of a message, a correlation or a global position.
        meaning: what it is to be taken for; None to find out.
        after: `Story.next_after` of the page before; None for the first one.
        components: those whose declarations say how commands are reserved and compared. Without
            them it is taken from what is stored.

    Raises:
        StatementCanceledError: a statement took longer than is allowed.
        StoreError: the database refuses, or is away.
    """
    text = text.strip()
    with reading(connection) as store:
        taken = recognize(store, text, meaning)
        story = _told(store, Naming(store, components), taken, after)
    return replace(
        story,
        text=text,
        meaning=taken.meaning,
        taken_for=taken.described,
        alternatives=taken.alternatives,
        notes=(*taken.notes, *story.notes),
    )


def _told(store: Reading, naming: Naming, taken: Taken, after: int | None) -> Story:
    about: list[Entry] = [] if taken.entry is None else [taken.entry]
    if taken.stream is not None and taken.meaning is Meaning.CORRELATION:
        return correlation_page(store, taken.stream, after)
    if taken.stream is not None:
        first = store.messages("of_stream", stream=taken.stream, after=-1, limit=2)
        if len(first) != 1:
            return stream_page(store, taken.stream, after)
        return story_of(store, naming, first[0], after)
    if taken.message is None and taken.entry is not None and taken.entry.cause is not None:
        causes = store.at([taken.entry.cause])
        if causes:
            return story_of(store, naming, causes[0], after)
    if taken.message is None:
        return Story(text="", entries=in_order([], about))
    return story_of(store, naming, taken.message, after)
