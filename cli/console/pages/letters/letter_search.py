"""Which letters an address or a form means: a search, one letter, or some that were chosen."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from consumers.dead_letters.confirmed import Seen
from consumers.dead_letters.failure import Reason
from consumers.dead_letters.search import Extent, Filter, LetterKey
from consumers.dead_letters.stored_letters import OPEN, StoredLetter

# The choices of states, by their names in addresses.
STATES: Mapping[str, tuple[str, ...] | None] = {
    "open": OPEN,
    "dead": ("dead",),
    "parked": ("parked",),
    "retry": ("retry",),
    "handled": ("handled",),
    "discarded": ("discarded",),
    "all": None,
}

REASONS = tuple(reason.value for reason in Reason)

_TEXTS = ("consumer", "category", "type", "reason", "entity", "stream", "digest", "text")

_LARGEST = 2**63


class SearchError(Exception):
    """A search, or the name of a letter in an address, cannot be understood."""


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for.

    Attributes:
        wanted: which letters.
        state: the name of the choice of states.
        given: the parameters that are given, for the addresses of further pages.
    """

    wanted: Filter
    state: str
    given: Mapping[str, str]

    @property
    def narrows(self) -> bool:
        """Whether more than the states is asked for."""
        return bool(self.given.keys() - {"state"})

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "Search":  # Any: forms hold files too
        """Return the search that parameters name; fields that are empty narrow nothing.

        Raises:
            SearchError: one of them cannot be what is looked for.
        """
        given = {name: _text(parameters, name) for name in (*_TEXTS, "message_id", "state")}
        found = {name: text for name, text in given.items() if text}
        state = found.get("state", "open")
        if state not in STATES:
            raise SearchError(f"There is no state {state!r}; choose one of {', '.join(STATES)}")
        if "message_id" in found:
            try:
                message_id = UUID(found["message_id"])
            except ValueError:
                raise SearchError(
                    f"{found['message_id']!r} is not the id of a message, such as "
                    f"0190163d-8694-739b-aea5-966c26f8ad91"
                ) from None
        else:
            message_id = None
        texts = {name: found[name] for name in _TEXTS if name in found}
        wanted = Filter(**texts, message_id=message_id, states=STATES[state])
        return cls(wanted, state, found)


def key_in(parameters: Mapping[str, Any]) -> LetterKey:  # Any: forms hold files too
    """Return the letter that the parameters ``consumer``, ``category`` and ``position`` name.

    Raises:
        SearchError: they name none.
    """
    position = _text(parameters, "position")
    consumer, category = _text(parameters, "consumer"), _text(parameters, "category")
    if not (position.isascii() and position.isdigit() and len(position) < 20):
        raise SearchError("The address names no dead letter; choose one from the list")
    return LetterKey(min(int(position), _LARGEST - 1), consumer, category)


def address_of(letter: StoredLetter) -> dict[str, str]:
    """Return the parameters that name a letter."""
    return {
        "consumer": letter.consumer,
        "category": letter.category,
        "position": str(letter.global_position),
    }


def marked(letter: StoredLetter) -> str:
    """Return a letter as it is shown, for a field of a form: `seen_in` reads it."""
    key, state, changed_at = Seen.of(letter)
    return json.dumps([*key, state, changed_at.isoformat()])


def seen_in(values: Iterable[Any]) -> list[Seen]:  # Any: forms hold files too
    """Return the letters that the fields of a form hold, each once.

    Raises:
        SearchError: one of them is no letter.
    """
    found: dict[LetterKey, Seen] = {}
    for value in values:
        try:
            position, consumer, category, state, changed_at = json.loads(value)
            key = LetterKey(position, consumer, category)
            seen = Seen(key, state, datetime.fromisoformat(changed_at))
        except (TypeError, ValueError, RecursionError):
            raise _no_letter() from None
        is_number = isinstance(position, int) and 0 <= position < _LARGEST
        if not is_number or not all(_is_name(text) for text in (consumer, category, state)):
            raise _no_letter()
        found[key] = seen
    return list(found.values())


def extent_in(parameters: Mapping[str, Any]) -> Extent:  # Any: forms hold files too
    """Return what a form says that a search has found.

    Raises:
        SearchError: it says nothing of the kind.
    """
    texts = [_text(parameters, name) for name in ("count", "last")]
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise _no_letter()
    return Extent(*map(int, texts))


def _no_letter() -> SearchError:
    return SearchError("The form names no dead letter; go back to the list and choose again")


def _is_name(text: object) -> bool:
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair, which JSON can hold and the store cannot
        return False
    return True


def _text(parameters: Mapping[str, Any], name: str) -> str:
    value = parameters.get(name, "")
    if not isinstance(value, str):
        return ""
    if "\0" in value:
        raise SearchError(f"The field {name} holds a character that no text of the store has")
    return value.strip()
