"""Given events, when a command, then what follows; none of it needs a database."""

import asyncio
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from reservation import Component, Context, Metadata, Reject, Retry, RetryLater
from reservation.errors import (
    DeclarationError,
    EncodeError,
    HandlerError,
    MessageError,
    MessageIdConflictError,
)
from reservation.strategies import Processed, StateBased
from reservation.testing import Stored, given

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Open:
    loan_id: str
    limit: int


@dataclass(frozen=True)
class Lend:
    loan_id: str
    lending_id: str
    books: list[str]


@dataclass(frozen=True)
class Ask:
    loan_id: str


@dataclass(frozen=True)
class Opened:
    loan_id: str
    limit: int


@dataclass(frozen=True)
class Lent:
    loan_id: str
    books: list[str]
    sequence: int = 0


@dataclass(frozen=True)
class Due:
    loan_id: str


@dataclass(frozen=True)
class Paid:
    payment_id: str
    loan_id: str


@dataclass
class Loan:
    limit: int = 0
    books: list[str] = field(default_factory=list)


class Unavailable(Exception):
    """A service is away."""


loan = Component("loan", entity=Loan, id="loan_id", replies_to="asker")
loan.project(Opened)(lambda loan, event: setattr(loan, "limit", event.limit))
loan.project(Lent)(lambda loan, event: loan.books.extend(event.books))


@loan.initiate(Open)
def open_loan(command: Open, context: Context) -> Opened:
    return context.follow(command, Opened)


@loan.handle(Lend, key="lending_id")
def lend(command: Lend, loan: Loan, context: Context) -> Lent:
    if len(loan.books) + len(command.books) > loan.limit:
        context.write(Due(command.loan_id), "mail:command-1")
        raise Reject("too many books")
    context.write(Due(command.loan_id), f"loan:command-{command.loan_id}", after="21d")
    context.write(Due(command.loan_id), "mail:command-1")
    return context.follow(command, Lent, sequence=context.sequence)


@loan.handle(Ask, once=None, retry=Retry(attempts=3, on=Unavailable))
async def ask(command: Ask, loan: Loan, context: Context) -> list[Lent]:
    if not loan.books:
        raise RetryLater("90s")
    if len(loan.books) == 1:
        raise Unavailable
    context.reply(Due(command.loan_id))
    return []


@loan.handle(Paid, category="payment")
def paid(event: Paid, loan: Loan, context: Context) -> Opened:
    return Opened(event.loan_id, loan.limit + 1)


LENT = [Opened("1", 2), Lent("1", ["Emma"])]


def test_what_a_command_brings_about_is_compared_with_equals():
    """Events, further messages and scheduled ones are values; a written one equals a tuple."""
    result = given(loan, "1", LENT, time=NOON).when(Lend("1", "l1", ["Persuasion"]))
    assert result.outcome == "handled"
    assert result.events == [Lent("1", ["Persuasion"], sequence=result.message.global_position)]
    assert result.writes == [(Due("1"), "mail:command-1")]
    assert result.scheduled == [(Due("1"), "loan:command-1", NOON + timedelta(days=21))]
    assert result.entity == Loan(2, ["Emma", "Persuasion"])
    assert result.rejection is None


def test_a_rejection_leaves_nothing_else():
    """The reason is there, and no event and no further message."""
    result = given(loan, "1", LENT).when(Lend("1", "l1", ["Persuasion", "Sanditon"]))
    assert (result.outcome, result.rejection) == ("rejected", "too many books")
    assert (result.events, result.writes, result.scheduled) == ([], [], [])
    assert result.entity == Loan(2, ["Emma"])


def test_an_initiation_starts_a_stream_once():
    """A reissue is a duplicate, and another command for the started stream is in conflict."""
    scenario = given(loan)
    assert scenario.when(Open("1", 2)).events == [Opened("1", 2)]
    assert scenario.when(Open("1", 2)).outcome == "duplicate"
    with pytest.raises(MessageError, match="and other content than the command that was"):
        scenario.when(Open("1", 3))


def test_commands_in_a_row_are_handled_on_what_those_before_left():
    """Several commands give all their events, and the entity after the last."""
    scenario = given(loan, "1", [Opened("1", 3)])
    result = scenario.when([Lend("1", "a", ["Emma"]), Lend("1", "b", ["Sanditon"])])
    assert [event.books for event in result.events] == [["Emma"], ["Sanditon"]]
    assert len(result.writes) == len(result.scheduled) == 2
    assert scenario.when(Lend("1", "a", ["Emma"])).outcome == "duplicate"
    assert scenario.when(Lend("1", "c", ["A", "B"])).rejection == "too many books"


def test_a_message_of_others_may_have_the_name_of_a_command():
    """Its class says whose it is."""
    component = Component("loan", id="loan_id")

    @dataclass(frozen=True)
    class Question:
        loan_id: str

    Question.__name__ = "Ask"
    component.handle(Ask, once=None)(lambda *_: Paid("own", "1"))
    component.handle(Question, category="office")(lambda *_: Paid("office", "1"))
    assert given(component).when(Question("1")).events == [Paid("office", "1")]
    assert given(component).when(Ask("1")).events == [Paid("own", "1")]


def test_messages_of_other_categories_are_handled_too():
    """A subscribed event finds its entity by its own field."""
    result = given(loan, "1", LENT).when(Paid("p1", "1"))
    assert result.events == [Opened("1", 3)]
    assert result.message.stream_name == "payment-1"
    assert result.entity.limit == 3


def test_async_handlers_are_awaited_within_a_loop_too():
    """They are awaited, whether the test runs an event loop or not."""
    two = given(loan, "1", [Opened("1", 2), Lent("1", ["Emma", "Sanditon"])])
    asked = Metadata(reply_stream_name="asker-1")
    assert two.when(Ask("1"), metadata=asked).writes == [(Due("1"), "asker-1")]

    async def within() -> Any:
        return two.when(Ask("1"), metadata=asked).writes

    assert asyncio.run(within()) == [(Due("1"), "asker-1")]


def test_a_handler_that_asks_to_be_called_later_says_when():
    """`RetryLater` is no error, and nothing is stored."""
    result = given(loan, "1", [Opened("1", 2)]).when(Ask("1"))
    assert (result.outcome, result.retry_later) == ("waiting", timedelta(seconds=90))
    assert (result.events, result.stored) == ([], [])


def test_a_message_waits_for_the_attempts_of_its_policy():
    """The error of each is in the result, and the last attempt raises it."""
    scenario = given(loan, "1", LENT)
    for _ in range(2):
        result = scenario.when(Ask("1"))
        assert (result.outcome, result.retry_later, result.stored) == ("waiting", None, [])
        assert isinstance(result.error, HandlerError)
        assert isinstance(result.error.__cause__, Unavailable)
    with pytest.raises(HandlerError, match=r"Ask .* raised Unavailable in ask") as failed:
        scenario.when(Ask("1"))
    assert isinstance(failed.value.__cause__, Unavailable)


def test_nothing_is_stored_of_what_is_refused():
    """After an error the scenario goes on as if the message had not been handled."""
    scenario = given(loan, "1", LENT)
    assert scenario.when(Ask("1")).outcome == "waiting"
    assert scenario.when(Lend("1", "l", ["P"])).entity == Loan(2, ["Emma", "P"])


def test_after_an_error_the_same_command_is_the_next_attempt():
    """A reserved command whose handler raised is no duplicate of itself."""
    calls = iter([TimeoutError(), RetryLater("1s"), None])
    service = Component("service", id="loan_id")

    @service.handle(Lend, key="lending_id")
    def lend(command: Lend, entity: None, context: Context) -> Due:
        error = next(calls)
        if error is not None:
            raise error
        return Due(command.loan_id)

    scenario, command = given(service), Lend("1", "l1", [])
    with pytest.raises(HandlerError):
        scenario.when(command)
    assert scenario.when(command).outcome == "waiting"
    assert scenario.when(command).events == [Due("1")]
    assert scenario.when(command).outcome == "duplicate"


def test_given_events_may_have_a_former_shape():
    """Upcasters are applied to what is given as it was stored."""

    @dataclass(frozen=True)
    class Put:
        purse_id: str

    @dataclass(frozen=True)
    class PutIn:
        amount: Decimal

    @dataclass
    class Purse:
        amount: Decimal = Decimal(0)

    purse = Component("purse", entity=Purse, id="purse_id")

    @purse.handle(Put, once=None)
    def put(command: Put, purse: Purse, context: Context) -> PutIn:
        return PutIn(purse.amount)

    @purse.project(PutIn)
    def put_in(purse: Purse, event: PutIn) -> None:
        purse.amount += event.amount

    def in_euros(data: dict[str, Any]) -> dict[str, Any]:
        return {"amount": data["cents"] / Decimal(100)}

    purse.message(PutIn, former_names="Added", version=2, upcast=in_euros)

    former = [Stored("Added", {"cents": 250}), Stored("PutIn", {"amount": 1}, schema_version=2)]
    assert given(purse, "1", former).when(Put("1")).events == [PutIn(Decimal("3.5"))]


def test_a_message_is_handled_again_if_its_id_is_given_again():
    """With the same id it is a redelivery, and another message cannot have the id."""
    counter = Component("counter", id="loan_id")
    counter.message(Due)
    counter.handle(Ask, once=Processed())(lambda command, entity, context: Due(str(context.id())))
    scenario, id_ = given(counter), uuid.UUID("0190163d-8694-739b-aea5-966c26f8ad91")
    first = scenario.when(Ask("1"), id=id_)
    assert first.context is not None
    assert first.events == [Due(str(first.context.id()))]
    again = scenario.when(Ask("1"), id=id_)
    assert (again.outcome, again.events, again.stored) == ("duplicate", [], [])
    with pytest.raises(MessageIdConflictError, match="in use for another message"):
        scenario.when(Ask("2"), id=id_)


def test_the_copy_of_a_reserved_command_has_the_id_that_is_chosen():
    """What derives from the id of the handled message can be compared."""
    id_ = uuid.UUID("0190163d-8694-739b-aea5-966c26f8ad91")
    result = given(loan, "1", LENT).when(Lend("1", "l1", []), id=id_, time=NOON)
    assert (result.message.id, result.message.time) == (str(id_), NOON)
    assert result.message.stream_name == "loanTransaction-1+l1"
    again = given(loan, "1", LENT).when(Lend("1", "l1", []), id=id_, time=NOON)
    assert again.stored == result.stored


def test_a_state_is_given_and_compared():
    """Of `StateBased` the state takes the place of events."""
    jar = Component("jar", entity=Loan, id="loan_id")

    @jar.handle(Ask, once=StateBased())
    def ask(command: Ask, state: Loan, context: Context) -> None:
        state.books.append("Emma")

    scenario = given(jar, "1", state=Loan(5, ["A"]))
    assert scenario.when(Ask("1")).entity == Loan(5, ["A", "Emma"])
    assert scenario.when(Ask("1")).entity == Loan(5, ["A", "Emma", "Emma"])


def test_what_a_scenario_cannot_be_is_said():
    """Mistakes in the test itself are found, and named."""
    with pytest.raises(DeclarationError, match="loan has no handler for Due"):
        given(loan).when(Due("1"))
    with pytest.raises(
        DeclarationError, match="Ask is for loan-2, and the given streams are loan-1"
    ):
        given(loan, "1", LENT).when(Ask("2"))
    with pytest.raises(DeclarationError, match="and no entity; name it"):
        given(loan, events=LENT)
    with pytest.raises(DeclarationError, match=r"loan-1 is there twice"):
        given(loan, "1", LENT, streams={"loan-1": LENT})
    with pytest.raises(DeclarationError, match=r"is declared with once=StateBased\(\)"):
        given(loan, "1", state=Loan())
    with pytest.raises(DeclarationError, match="there is no message"):
        given(loan).when([])
    with pytest.raises(DeclarationError, match="one id cannot serve several"):
        given(loan, "1").when([Ask("1"), Ask("1")], id=uuid.UUID(int=1))
    with pytest.raises(DeclarationError, match="A class was given to handle; give a message"):
        given(loan).when(Ask)
    with pytest.raises(DeclarationError, match=r"the id of an entity is a str.* give '1'"):
        given(loan, 1, LENT)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="the events of an entity are a list"):
        given(loan, "1", LENT[0])  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="Cannot encode a type for loan-1"):
        given(loan, "1", [Loan])  # type: ignore[list-item]
