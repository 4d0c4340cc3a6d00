"""A message's role in the reconciliation, as one small number.

The lowest four bits are its kind, and the others the number of what it belongs to: of a pair of
categories for commands and reservations, of a category for what is subscribed to.
"""

from dataclasses import dataclass
from enum import IntEnum

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.common.declaration import Declaration


class MessageKind(IntEnum):
    """The kinds of messages.

    Attributes:
        CAUSE: a message that events may follow, and that is not examined otherwise.
        COMMAND: a command that is reserved.
        INITIATE: a command that starts its entity's stream.
        COPY: a reserved command.
        SILENT: one whose handling may leave nothing in the log.
        WRONG: a message in a reservation category that reserves none of its type.
        SUBSCRIBED: a message of another category that is handled.
        EVENT: an event.
        START: the first event of a stream, which stands for the reservation of its command.
        PSEUDO: a pseudo event, other than the rejection of a command that initiates.
        PASS: no message, but a consumer's record that nothing follows from one.
    """

    CAUSE = 0
    COMMAND = 1
    INITIATE = 2
    COPY = 3
    SILENT = 4
    WRONG = 5
    SUBSCRIBED = 6
    EVENT = 7
    START = 8
    PSEUDO = 9
    PASS = 10


KINDS = 16


def code(kind: MessageKind, number: int = 0) -> int:
    """Return the code of messages of a kind."""
    return KINDS * number + kind


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of a component's messages.

    Attributes:
        component: whose they are.
        pairs: the categories that commands are compared with, each once: the reservation
            categories, and the entity's for commands that initiate.
        subscribed: the categories of others that messages are handled of.
    """

    component: Component
    pairs: list[str]
    subscribed: list[str]

    @classmethod
    def of(cls, component: Component) -> "Codes":
        declared = declarations(component)
        pairs = [*declared.reservation_categories]
        if declared.own.initiates:
            pairs.append(component.name)
        return cls(component, pairs, [*declared.subscribed_categories])

    @property
    def reserved(self) -> list[str]:
        """The categories of reserved commands."""
        return [name for name in self.pairs if name != self.component.name]

    @property
    def silent_types(self) -> list[str]:
        """The types of commands whose handling may leave nothing in the log."""
        strategies = declarations(self.component).own.strategies
        return sorted(type_ for type_, once in strategies.items() if not once.leaves_trace)

    def of_commands(self) -> dict[str, int]:
        """Return the codes in the command category, by type; others are causes."""
        return {
            type_: code(
                MessageKind.INITIATE
                if key.category == self.component.name
                else MessageKind.COMMAND,
                self.pairs.index(key.category),
            )
            for type_, key in Declaration.of(self.component).keys.items()
        }

    def of_copies(self, category: str) -> dict[str, int]:
        """Return the codes in a reservation category, by type; others are of the wrong type."""
        silent = self.silent_types
        return {
            type_: code(
                MessageKind.SILENT if type_ in silent else MessageKind.COPY,
                self.pairs.index(key.category),
            )
            for type_, key in Declaration.of(self.component).keys.items()
            if key.category == category
        }

    def in_category(self, category: str) -> list[int]:
        """Return the codes of the messages of a category that its consumer handles."""
        if category == declarations(self.component).command_category:
            return sorted({*self.of_commands().values()})
        if category in self.subscribed:
            return [code(MessageKind.SUBSCRIBED, self.subscribed.index(category))]
        number = self.pairs.index(category)
        return [code(kind, number) for kind in (MessageKind.COPY, MessageKind.SILENT)]
