"""The question what became of a command, as a component makes it and a store sends it.

A store's client knows nothing of components. So a question carries all that the answer depends on:
what is sent to the server, and the functions that read what comes back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from reservation.errors import StoreError
from reservation.messages.message import StoredMessage
from reservation.messages.message_instance import MessageInstance
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.store.answers.outcome import Outcome
from reservation.store.statements import QUERIES, Statement


class OutcomeAnswer(NamedTuple):
    """An outcome, and whether the store gives notice of new messages."""

    outcome: Outcome
    notices: bool


@dataclass(frozen=True, slots=True)
class Question:
    """A question for `MessageStore.outcome` and `MessageStore.wait_for`.

    A component makes it: ``account.question(command)``, or
    ``account.question(Withdraw, key="w-1", entity="123")``.

    Attributes:
        about: the command, as an error or a log would name it.
        category: the category in which the effect of the command shows.
        asked: what is sent to the server, see ``sql/reservation/answers.sql``.
        decode: returns a stored event, decoded if its class is known.
        is_same: takes the command that stands, and the texts that it was sent and handled with;
            returns whether it says the same as the one that is asked about.
    """

    about: str
    category: str
    asked: dict[str, Any]
    decode: Callable[[StoredMessage], MessageInstance | StoredMessage]
    is_same: Callable[[StoredMessage, Sequence[str]], bool]

    def statement(self) -> Statement[OutcomeAnswer]:
        """Return the statement that asks the server."""
        return Statement(
            QUERIES["outcome"], [msgspec.json.encode(self.asked).decode()], self._answer
        )

    def _answer(self, rows: Sequence[tuple[Any, ...]]) -> OutcomeAnswer:
        (state, reason, corrected, contents, notices, *standing), *others = rows
        message = None if standing[0] is None else StoredMessage(*standing)
        # Only what stands under a key has been compared with others, and has contents.
        if message is not None and contents is not None and not self.is_same(message, contents):
            return OutcomeAnswer(Outcome("conflict", message), bool(notices))
        stored = tuple(StoredMessage(*row[5:]) for row in others)
        events = tuple(self.decode(event) for event in stored if event.type != PSEUDO_EVENT)
        outcome = Outcome(state, message, events, reason, stored, bool(corrected))
        return OutcomeAnswer(outcome, bool(notices))


class QuestionMaker(Protocol):
    """Makes questions about commands: a component."""

    # Any: components have overloads of their own.
    def question(self, command: Any, /) -> Question:
        """Return the question what became of a command."""
        ...


def question_of(command: object, component: QuestionMaker | None) -> Question:
    """Return the question that a caller of `MessageStore.outcome` means."""
    if isinstance(command, Question):
        return command
    if component is None:
        raise StoreError(
            f"A store cannot tell what became of a {type(command).__name__} by itself; pass its "
            f"component too, as in store.outcome(command, component), or a question that the "
            f"component made"
        )
    return component.question(command)
