"""Letters that an address or a form means: those of a search, or a single one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from consumers.dead_letters.letter import OPEN, Letter
from consumers.dead_letters.search import Filter, LetterKey
from consumers.failures.failure import Reason

# The choices of states, by their names in addresses.
STATES: Mapping[str, tuple[str, ...] | None] = {
    "open": OPEN,
    **{state: (state,) for state in ("dead", "waiting", "parked", "handled", "discarded")},
    "all": None,
}

REASONS = tuple(reason.value for reason in Reason)

_TEXTS = ("consumer", "category", "type", "reason", "entity", "stream", "digest", "text")

_LARGEST = 2**63 - 1


class SearchError(Exception):
    """A search, or the name of a letter in an address, cannot be understood."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search: the letters, the choice of states, and the parameters that say so."""

    wanted: Filter
    state: str
    given: Mapping[str, str]

    @property
    def narrows(self) -> bool:
        """Whether more than the states is asked for."""
        return bool(self.given.keys() - {"state"})

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "Search":  # Any: forms may hold files
        """Return the search that parameters name; fields that are empty narrow nothing."""
        given = {name: _text(parameters, name) for name in (*_TEXTS, "message_id", "state")}
        found = {name: text for name, text in given.items() if text}
        state = found.get("state", "open")
        if state not in STATES:
            raise SearchError(f"There is no state {state!r}; choose one of {', '.join(STATES)}")
        texts: dict[str, Any] = {name: found[name] for name in _TEXTS if name in found}
        if "message_id" in found:
            texts["message_id"] = _uuid(found["message_id"])
        return cls(Filter(**texts, states=STATES[state]), state, found)


def key_in(parameters: Mapping[str, str], prefix: str = "") -> LetterKey:
    """Return the letter that the parameters ``consumer``, ``category`` and ``position`` name."""
    position, consumer, category = (
        _text(parameters, prefix + name) for name in ("position", "consumer", "category")
    )
    if not (position.isascii() and position.isdigit() and len(position) < 20):
        raise SearchError("The address names no dead letter; choose one from the list")
    return LetterKey(min(int(position), _LARGEST), consumer, category)


def address_of(letter: Letter, prefix: str = "") -> dict[str, str]:
    """Return the parameters that name a letter; `key_in` reads them."""
    return {
        f"{prefix}position": str(letter.global_position),
        f"{prefix}consumer": letter.consumer,
        f"{prefix}category": letter.category,
    }


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise SearchError(
            f"{text!r} is not the id of a message, such as 0190163d-8694-739b-aea5-966c26f8ad91"
        ) from None


def _text(parameters: Mapping[str, Any], name: str) -> str:
    value = parameters.get(name, "")
    if not isinstance(value, str):
        return ""
    if "\0" in value:
        raise SearchError(f"The field {name} contains a NUL character; remove it")
    return value.strip()
