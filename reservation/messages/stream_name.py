"""The grammar of stream names: ``entity[:type[+type…]][-id[+id…]]``.

The first ``-`` ends the category, and later ones belong to the id. ``:`` opens the category's
types, ``+`` joins compound types and compound ids, and the first of the ids is the *cardinal id*,
by which a consumer group shares out its streams. (Source: Message DB.)
"""

import functools
import re
from collections.abc import Sequence

from reservation.errors import StreamNameError

# Control characters, and code points without a form in UTF-8.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

# The control characters among them, as a bracket expression of PostgreSQL has them.
CONTROL = "\\u0001-\\u001f\\u007f-\\u009f"

ID_SEPARATOR = "-"
COMPOUND_SEPARATOR = "+"
TYPE_SEPARATOR = ":"

# PostgreSQL refuses an index row of more than a third of a page (2,704 bytes); the index over
# stream names also holds the position.
MAX_BYTES = 2600


def of(category: str, *ids: str) -> str:
    """Return the name of the stream of ``category`` that ``ids`` identify.

    Several ids make a compound id, ``account-1+2``; the first is its cardinal id.

    Args:
        category: the category.
        ids: the ids, at least one.

    Raises:
        StreamNameError: the category is not valid, an id is empty, a leading id holds the ``+``
            that separates ids, or the name is longer than an index takes.
    """
    if not ids:
        raise StreamNameError(f"A stream of category {category!r} needs an id")
    for leading in ids[:-1]:
        if COMPOUND_SEPARATOR in leading:
            raise StreamNameError(
                f"The id {leading!r} holds a '+', which separates the ids of a compound id; "
                f"only the last id may hold one"
            )
    if not all(ids):
        raise StreamNameError(f"A stream of category {category!r} needs ids that are not empty")
    check_category(category)
    return check(category + ID_SEPARATOR + COMPOUND_SEPARATOR.join(ids))


@functools.lru_cache(maxsize=10_000)
def of_entity(category: str, entity_id: str) -> str:
    """Return the name of the stream of one entity; see `of`.

    It is asked for with every message, so the names in use are remembered.

    Args:
        category: the category.
        entity_id: the id.

    Raises:
        StreamNameError: as for `of`.
    """
    return of(category, entity_id)


def category(name: str) -> str:
    """Return the category of a stream name; a category is its own category."""
    return name.partition(ID_SEPARATOR)[0]


def identifier(name: str) -> str | None:
    """Return everything after the category, or None for a category."""
    _, separator, whole = name.partition(ID_SEPARATOR)
    return whole if separator else None


def cardinal_id(name: str) -> str | None:
    """Return the first of a stream's ids, or None for a category."""
    whole = identifier(name)
    return None if whole is None else whole.partition(COMPOUND_SEPARATOR)[0]


def ids(name: str) -> Sequence[str]:
    """Return all ids of a stream, the cardinal id first; none for a category."""
    whole = identifier(name)
    return [] if whole is None else whole.split(COMPOUND_SEPARATOR)


def is_category(name: str) -> bool:
    """Return whether the name is that of a category rather than of a stream."""
    return ID_SEPARATOR not in name


def command_category(entity_category: str) -> str:
    """Return the category that holds an entity's commands: ``account:command`` for ``account``."""
    return f"{entity_category}{TYPE_SEPARATOR}command"


def reservation_category(entity_category: str) -> str:
    """Return the category of an entity's reservations where no other is named."""
    return f"{entity_category}Transaction"


def check(name: str) -> str:
    """Return the name unchanged if the store can hold a stream or category of that name.

    Raises:
        StreamNameError: it is empty, starts with the id's separator, holds a control character,
            or is longer than an index takes.
    """
    if not name or name.startswith(ID_SEPARATOR):
        raise StreamNameError(f"The stream name {name!r} has no category")
    if name.isascii() and name.isprintable() and len(name) <= MAX_BYTES:
        return name  # as almost every name is, and sooner known than what is below
    if _UNFIT.search(name):
        raise StreamNameError(
            f"The stream name {name!r} holds a control character or half of a surrogate pair"
        )
    length = len(name.encode())
    if length > MAX_BYTES:
        raise StreamNameError(
            f"The stream name {name[:40]!r}… is {length} bytes long; the store takes {MAX_BYTES}"
        )
    return name


def check_category(name: str) -> str:
    """Return the name unchanged if it can be that of a category.

    Raises:
        StreamNameError: as for `check`, or because it holds the separator of an id.
    """
    if not isinstance(name, str):
        raise StreamNameError(f"The name of a category is a str, not a {type(name).__name__}")
    check(name)
    if not is_category(name):
        raise StreamNameError(f"{name!r} is the name of a stream; a category holds no '-'")
    return name
