"""The kit's orders to a process that runs the component, and the answers.

Each is a line of JSON. An order is answered by any number of records; the last says how it ended.
"""

from typing import Literal

import msgspec


class Kill(msgspec.Struct, frozen=True):
    """The place of a kill.

    Attributes:
        at: before an exchange with the server, before a call of a handler, or when that returned.
        number: which of them, from 1.
    """

    at: Literal["exchange", "call", "returned"]
    number: int

    def __str__(self) -> str:
        if self.at == "exchange":
            return f"killed before exchange {self.number} with the server"
        when = "before" if self.at == "call" else "after"
        return f"killed {when} call {self.number} of a handler"


class FailingStatement(msgspec.Struct, frozen=True):
    """A statement of a handler that fails.

    Attributes:
        call: the number of the call, from 1.
        statement: which of its statements, from 1.
        lost: whether the connection is lost; else the statement loses against another transaction.
    """

    call: int
    statement: int
    lost: bool

    def __str__(self) -> str:
        what = "loses the connection" if self.lost else "fails with a serialization failure"
        return f"call {self.call}, whose statement {self.statement} {what}"


class HandledStep(msgspec.Struct, frozen=True):
    """One message that is handled by itself.

    Attributes:
        category: where it is read.
        ordinal: which message of the category, from 0.
        second: whether the second of two consumers handles it.
        pauses: whether it stops when its handler has returned, until it is told to go on.
    """

    category: str
    ordinal: int
    second: bool = False
    pauses: bool = False


class Order(msgspec.Struct, frozen=True):
    """A run.

    Attributes:
        address: the database.
        categories: those to take to their ends, in this order.
        batch_size: how many messages to handle in a transaction.
        once: whether to end after the first batch with messages.
        kill: where to die; None for nowhere.
        fault: which statement fails; None for none.
        inspects: whether each call is observed.
        steps: messages to handle one by one, in place of whole categories.
    """

    address: str
    categories: tuple[str, ...] = ()
    batch_size: int = 1000
    once: bool = False
    kill: Kill | None = None
    fault: FailingStatement | None = None
    inspects: bool = False
    steps: tuple[HandledStep, ...] = ()


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The process begins with a category."""

    category: str


class Calling(msgspec.Struct, frozen=True, tag="calling"):
    """A handler is called.

    Attributes:
        handler: its module and name.
        message: the message, in words.
    """

    handler: str
    message: str


class Called(msgspec.Struct, frozen=True, tag="called"):
    """A handler was called.

    Attributes:
        number: which call of the run, from 1.
        handler: its module and name.
        message: the message, in words.
        place: its stream and its position there.
        statements: how many exchanges it had on the connection of its batch.
        writes: how many further messages it wrote.
        raised: the type of what it raised; None if it returned.
        ended: whether it returned although a statement of it had failed.
        coped: the same, where it took back what had failed to a savepoint.
    """

    number: int
    handler: str
    message: str
    place: tuple[str, int]
    statements: int
    writes: int
    raised: str | None = None
    ended: bool = False
    coped: bool = False


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """A handler did what it must not.

    Attributes:
        kind: the kind of bug.
        handler: its module and name.
        call: which call of the run.
        message: the message, in words.
        what: what was seen.
    """

    kind: str
    handler: str
    call: int
    message: str
    what: str


class Paused(msgspec.Struct, frozen=True, tag="paused"):
    """A handler returned, and the process waits to be told to go on."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A run has come to its end.

    Attributes:
        exchanges: how many exchanges with the server it had.
        counts: what became of the messages.
        drained: whether nothing is left to handle; else it ended after one batch.
    """

    exchanges: int
    counts: dict[str, int]
    drained: bool


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The process of a run has ended.

    Attributes:
        status: its exit status; the negative number of the signal that killed it.
        error: what it raised; None for nothing.
    """

    status: int
    error: str | None = None


Record = Began | Calling | Called | Observed | Paused | Done | Ended
