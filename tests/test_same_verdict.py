"""What real consumers refuse, each test helper refuses too, with the same reason and text.

A table of handlers goes through `consumers.drain` on a database, through `given`, through
`check_deterministic` and through `run_in_memory`.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

import consumers
from consumers.dead_letters.failure import Failure
from consumers.testing import InMemoryStore, run_in_memory
from reservation import (
    Component,
    Context,
    DecodeError,
    MessageError,
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Reject,
    Retry,
    RetryLater,
    Revisions,
    StateBased,
    StoredMessage,
    Write,
    followed_id,
)
from reservation.testing import Stored, check_deterministic, given
from tests.bank import batch


@dataclass
class Fill:
    box_id: str
    key: str = "k"
    revision: int = 1
    source: str = "s"
    items: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Filled:
    items: list[str]


@dataclass(frozen=True)
class Odd:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError


@dataclass(frozen=True)
class Unknown:
    n: int = 0


@dataclass(frozen=True)
class Shipped:
    parcel: str


@dataclass
class Box:
    items: list[Any] = field(default_factory=list)


class Locked(Box):
    """An entity that cannot be copied once it holds an event."""


Handler = Callable[[Any, Any, Context], Any]


def box(
    handler: Handler,
    how: str = "handle",
    *,
    entity: type | None = Box,
    project: Callable[[Any, Any], None] = lambda entity, event: entity.items.extend(event.items),
    **options: Any,
) -> Component[Any]:
    """Return a component with one handler, declared in a way."""
    component = Component("box", entity=entity, id="box_id", attempts=1)
    if how == "initiate":
        component.initiate(Fill, **options)(lambda first, context: handler(first, None, context))
    elif how == "async":

        async def awaited(command: Any, entity: Any, context: Context) -> Any:
            return handler(command, entity, context)

        component.handle(Fill, **options)(awaited)
    else:
        if how in ("reserve", "within"):
            into = "boxTransaction" if how == "reserve" else None
            component.reserve(Fill, into=into, key="key")
        component.handle(Fill, **options)(
            lambda command, entity, context: handler(command, entity, context)
        )
    if entity is not None:
        component.project(Filled)(lambda entity, event: project(entity, event))
        component.project(Odd)(lambda entity, event: None)
    return component


def subscriber(handler: Handler, **options: Any) -> Component[Any]:
    """Return a component whose handler is for the messages of another category."""
    component = Component("box", entity=Box, id="box_id", attempts=1)
    component.on(Shipped, category="parcel", **options)(
        lambda message, entity, context: handler(message, entity, context)
    )
    component.project(Filled)(lambda entity, event: entity.items.extend(event.items))
    return component


def does(action: Callable[[Context], object]) -> Handler:
    """Return a handler that does something with its context."""

    def handler(command: Any, entity: Any, context: Context) -> None:
        action(context)

    return handler


def writes_twice(context: Context) -> None:
    for _ in range(2):
        context.write(Unknown(), "other-1", expected_version=0)


def raises(error: BaseException) -> Handler:
    """Return a handler that raises."""

    def handler(command: Any, entity: Any, context: Context) -> None:
        raise error

    return handler


def negative(*_: Any) -> Odd:
    event = Odd(1)
    object.__setattr__(event, "n", -1)
    return event


def fails(entity: Any, event: Any) -> None:
    raise KeyError("a projector")


def locks(entity: Any, event: Any) -> None:
    import threading

    entity.items.append(threading.Lock())


def keeps(value: Any) -> Handler:
    def handler(command: Any, entity: Any, context: Context) -> None:
        entity.items.append(value)

    return handler


@dataclass(frozen=True)
class Case:
    """A handler that is refused.

    Attributes:
        component: makes the component, anew each time.
        reason: that of the dead letter.
        text: a part of what is said.
        command: what is sent.
        facts: what is stored before, by streams.
        checked: whether `check_deterministic` can know: it has neither a log nor a key.
        raw: messages with ids of their own, which are stored before; not for `given`.
    """

    component: Callable[[], Component[Any]]
    reason: str
    text: str
    command: Any = field(default_factory=lambda: Fill("1"))
    facts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    checked: bool = True
    raw: bool = False


def refused(action: Callable[[Context], object], text: str, reason: str = "handler") -> Case:
    return Case(lambda: box(does(action)), reason, text)


def returned(value: Any, text: str, reason: str = "handler", **options: Any) -> Case:
    return Case(lambda: box(lambda *_: value, **options), reason, text)


OWN = "stream of its own entity"
CASES = {
    "returns a text": returned("text", "returned a str"),
    "returns a class": returned(Filled, "returned a type"),
    "returns a dict": returned({}, "returned a dict"),
    "returns a set": returned({1}, "returned a set"),
    "returns an iterator": Case(
        lambda: box(lambda *_: (Filled([]) for _ in "a")), "handler", "returned a generator"
    ),
    "returns a text among events": returned([Filled([]), "a"], "returned a str"),
    "returns its command": Case(
        lambda: box(lambda command, *_: command), "handler", "returned the command Fill"
    ),
    "returns an event that is not declared": returned(Unknown(), "Unknown, which is not declared"),
    "returns what has no form": returned(Filled([object()]), "cannot be stored", "write"),  # type: ignore[list-item]
    "returns what its class does not say": returned(Filled([1]), "cannot be stored", "write"),  # type: ignore[list-item]
    "returns a null character": returned(Filled(["\0"]), "cannot be stored", "write"),
    "returns too much": returned(Filled(["x" * 17_000_000]), "cannot be stored", "write"),
    "returns what cannot be read": Case(lambda: box(negative), "handler", "cannot be read again"),
    "initiates with nothing": returned(None, "returned no event", how="initiate"),
    "initiates with a text": returned("a", "returned a str", how="initiate"),
    "raises": Case(
        lambda: box(raises(ValueError("x"))),
        "handler",
        "raised ValueError in raises.<locals>.handler",
    ),
    "raises an exit": Case(lambda: box(raises(SystemExit(1))), "handler", "raised SystemExit"),
    "raises an error of ours": Case(
        lambda: box(raises(DecodeError("of mine"))), "undecodable", "of mine"
    ),
    "raises when reserved": Case(
        lambda: box(raises(ValueError()), "reserve"), "handler", "raised ValueError"
    ),
    "raises when reserved within": Case(
        lambda: box(raises(ValueError()), "within"), "handler", "raised ValueError"
    ),
    "raises when awaited": Case(
        lambda: box(raises(ValueError()), "async"), "handler", "raised ValueError"
    ),
    "raises with a strategy": Case(
        lambda: box(raises(ValueError()), once=Processed()), "handler", "raised ValueError"
    ),
    "returns a text when awaited": returned("a", "returned a str", how="async"),
    "an exhausted policy": Case(
        lambda: box(raises(RetryLater("1s")), retry=Retry(attempts=1)),
        "handler",
        "raised RetryLater",
    ),
    "writes a text": refused(lambda c: c.write("a", "other-1"), "wrote a str"),
    "writes a class": refused(lambda c: c.write(Filled, "other-1"), "wrote a type"),
    "writes to a category": refused(lambda c: c.write(Unknown(), "other"), "cannot write"),
    "writes to no name": refused(lambda c: c.write(Unknown(), ""), "cannot write"),
    "writes to a number": refused(lambda c: c.write(Unknown(), 1), "cannot write"),  # type: ignore[arg-type]
    "writes to its own entity": refused(lambda c: c.write(Filled([]), "box-1"), OWN),
    "schedules to its own entity": refused(lambda c: c.write(Filled([]), "box-1", after="1s"), OWN),
    "writes what is not declared to another entity": refused(
        lambda c: c.write(Unknown(), "box-2"), "not declared"
    ),
    "schedules what is not declared to another entity": refused(
        lambda c: c.write(Unknown(), "box-2", after="1s"), "not declared"
    ),
    "writes what has no form": refused(
        lambda c: c.write(Filled([1]), "other-1"),  # type: ignore[list-item]
        "cannot be stored",
        "write",
    ),
    "schedules what has no form": refused(
        lambda c: c.write(Filled([1]), "other-1", after="1s"),  # type: ignore[list-item]
        "cannot be stored",
        "write",
    ),
    "replies to nobody": refused(lambda c: c.reply(Unknown()), "nowhere to reply"),
    "expects no number": refused(
        lambda c: c.write(Unknown(), "other-1", expected_version="0"),  # type: ignore[arg-type]
        "cannot write",
    ),
    "expects less than no stream": refused(
        lambda c: c.write(Unknown(), "other-1", expected_version=-2), "cannot write"
    ),
    "schedules with a version": refused(
        lambda c: c.write(Unknown(), "other-1", expected_version=0, after="1s"), "expect no version"
    ),
    "schedules before now": refused(
        lambda c: c.write(Unknown(), "other-1", after=timedelta(-1)), "cannot schedule"
    ),
    "schedules twice at once": refused(
        lambda c: c.write(Unknown(), "other-1", after="1s", at=c.time), "both at= and after="
    ),
    "schedules without a zone": refused(
        lambda c: c.write(Unknown(), "other-1", at=datetime(2026, 1, 1)),  # noqa: DTZ001
        "no time zone",
    ),
    "an expected version that is not met": Case(
        lambda: box(does(lambda c: c.write(Unknown(), "other-1", expected_version=3))),
        "handler",
        "Wrong expected version: 3",
        checked=False,
    ),
    "a version that its own write moves": Case(
        lambda: box(does(writes_twice)),
        "handler",
        "Wrong expected version: 0",
        facts={"other-1": [Unknown()]},
        checked=False,
    ),
    "an id that another message has": Case(
        lambda: box(lambda *_: Filled([])), "write", "in use", raw=True, checked=False
    ),
    "a projector that fails": Case(
        lambda: box(lambda *_: Filled([]), project=fails), "handler", "raised KeyError in fails"
    ),
    "a projector that failed with a stored event": Case(
        lambda: box(lambda *_: None, project=fails),
        "handler",
        "projector of Filled",
        facts={"box-1": [Filled([])]},
        checked=False,
    ),
    "an entity that cannot be copied": Case(
        lambda: box(lambda *_: None, project=locks),
        "handler",
        "cannot be copied",
        facts={"box-1": [Filled([])]},
        checked=False,
    ),
    "a stored event that is not declared": Case(
        lambda: box(lambda *_: None),
        "unknown_event",
        "nothing is declared",
        facts={"box-1": [Unknown()]},
        checked=False,
    ),
    "a stored event of another shape": Case(
        lambda: box(lambda *_: None),
        "undecodable",
        "Cannot decode Filled",
        facts={"box-1": [Stored("Filled", {"items": 1})]},
        checked=False,
    ),
    "no entity": Case(lambda: box(lambda *_: None), "key", "box_id", Fill("")),
    "a function that gives no entity": Case(
        lambda: subscriber(lambda *_: None, id=lambda message: 1 / 0),
        "handler",
        "raised ZeroDivisionError",
        Shipped("1"),
    ),
    "no key": Case(
        lambda: box(lambda *_: None, "reserve"), "key", "reserve", Fill("1", ""), checked=False
    ),
    "no revision": Case(
        lambda: box(lambda *_: None, once=Revisions()),
        "key",
        "no revision",
        Fill("1", revision=-1),
        checked=False,
    ),
    "a state that has no form": Case(
        lambda: box(keeps(object()), once=StateBased()), "handler", "cannot be stored"
    ),
    "a state with an expected version": Case(
        lambda: box(
            does(lambda c: c.write(Unknown(), "other-1", expected_version=-1)), once=StateBased()
        ),
        "handler",
        "leave expected_version out",
    ),
    "a state and the connection": Case(
        lambda: box(does(lambda c: c.connection), once=StateBased()), "handler", "no connection"
    ),
    "a state and a text": returned("a", "returned a str", once=StateBased()),
    "a state and an error": Case(
        lambda: box(raises(ValueError()), once=StateBased()), "handler", "raised ValueError"
    ),
    "an async handler and the connection": Case(
        lambda: box(does(lambda c: c.connection), "async"), "handler", "no connection"
    ),
    "a subscription that raises": Case(
        lambda: subscriber(raises(ValueError()), id="parcel"),
        "handler",
        "raised ValueError",
        Shipped("1"),
    ),
    "a subscription that returns a text": Case(
        lambda: subscriber(lambda *_: "a", id="parcel"), "handler", "returned a str", Shipped("1")
    ),
}


def sent(case: Case) -> Write:
    """Return what is sent, as it is written on a database."""
    if isinstance(case.command, Shipped):
        return Write(case.command, f"parcel-{case.command.parcel}")
    return Write(case.command, f"box:command-{case.command.box_id or 'nobody'}")


def facts(case: Case, message_id: Any) -> list[Write]:
    """Return what is stored before, with the message whose id an event would have."""
    taken = followed_id(str(message_id), "box-1", 0)
    return [Write(Unknown(), "other-9", taken)] if case.raw else []


def in_words(reason: str, error: str) -> tuple[str, str]:
    """Return a verdict without the place of the message, which differs without a store."""
    return reason, re.sub(r" at \S+, global position \d+", "", error)


def of_error(error: MessageError) -> tuple[str, str]:
    failure = Failure.of(error)
    return in_words(failure.reason.value, failure.error)


MESSAGE_ID = uuid.UUID("0190163d-8694-739b-aea5-966c26f8ad91")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_helper_refuses_what_consumers_refuse(case, connection, store, database_url):
    """The reason and the text are those of the dead letter that a real consumer makes."""
    write = Write(sent(case).message, sent(case).stream_name, MESSAGE_ID)
    before = facts(case, MESSAGE_ID)
    for fact in before:
        store.write_batch([fact])
    for name, messages in case.facts.items():
        for message in messages:
            kind = message.type if isinstance(message, Stored) else None
            if kind is not None:
                connection.execute(
                    "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s)",
                    [name, kind, '{"items": 1}'],
                )
            else:
                store.write(message, name)
    store.write_batch([write])
    if case.reason == "unknown_event":  # with which no consumer would start
        with pytest.raises(MessageError) as failed:
            batch(connection, "box:command", case.component()).run(10)
        failure = Failure.of(failed.value)
        reason, error = failure.reason.value, failure.error
    else:
        drained = consumers.drain(case.component(), database_url)
        assert drained.counts["dead"] == 1
        letters = "SELECT reason, error FROM reservation.dead_letters"
        ((reason, error),) = connection.execute(letters).fetchall()
    real = in_words(reason, error)
    assert reason == case.reason
    assert case.text in error

    stored = [
        *before,
        *(
            fact_of(name, n, message)
            for name, messages in case.facts.items()
            for n, message in enumerate(messages)
        ),
        write,
    ]
    in_memory = run_in_memory(case.component(), stored)
    assert in_memory.counts["dead"] == 1
    (letter,) = in_memory.dead_letters
    assert in_words(letter.reason, letter.error) == real
    assert letter.error == error  # with the place

    if not case.raw:
        scenario = given(case.component(), streams=case.facts)
        with pytest.raises(MessageError) as raised:
            scenario.when(case.command)
        assert of_error(raised.value) == real

    if case.checked:
        with pytest.raises(MessageError) as raised:
            check_deterministic(case.component(), case.command)
        assert of_error(raised.value) == real


def fact_of(name: str, n: int, message: Any) -> Any:
    """Return a fact for `run_in_memory`."""
    if not isinstance(message, Stored):
        return Write(message, name)
    data = '{"items": 1}'
    ids = f"0190163d-8694-739b-aea5-966c26f8ad{n:02}"
    return StoredMessage(ids, name, message.type, 0, 0, data, None, datetime.now())  # noqa: DTZ005


@pytest.mark.parametrize("how", ["handle", "reserve", "within", "initiate", "async"])
@pytest.mark.parametrize(
    "once", [None, Processed(), Revisions(), MessageIdInEvents(), PositionInEvents(), StateBased()]
)
def test_what_is_accepted_is_the_same_everywhere(how, once, connection, store, database_url):
    """Events, further messages, rejections and outcomes are those of real consumers."""
    if once is not None and (how == "initiate" or (how == "async" and once.two_phase)):
        pytest.skip("cannot be declared")

    def handler(command: Fill, entity: Box | None, context: Context) -> Any:
        if "no" in command.items:
            raise Reject("not this")
        if "later" in command.items:
            raise RetryLater("1h")
        context.write(Unknown(len(command.items)), "other-1")
        if "remind" in command.items:
            context.write(Shipped("p"), "other-2", after="1h")
            return None if how != "initiate" else Filled([])
        return [Filled([*command.items, *(entity.items if entity else [])]), Odd(1)]

    def component() -> Component[Any]:
        return box(handler, how, **({} if once is None else {"once": once}))

    commands = [
        Fill("1", "a", 1, items=["x"]),
        Fill("1", "a", 1, items=["x"]),
        Fill("1", "b", 2, items=["y"]),
        Fill("2", "c", 1, items=["no"]),
        Fill("2", "d", 2, items=["z"]),
        Fill("3", "e", 1, items=["remind"]),
        Fill("4", "f", 1, items=["later"]),
        Fill("4", "g", 2, items=["z"]),
    ]
    for command in commands:
        store.write(command, f"box:command-{command.box_id}")
    drained = consumers.drain(component(), database_url)
    in_memory = run_in_memory(component(), commands)
    assert in_memory.counts == drained.counts
    assert {"handled", "rejected", "waiting"} <= set(in_memory.counts)
    for name in ("box-1", "box-2", "box-3", "box-4", "other-1"):
        held = [(m.type, json.loads(m.data)) for m in store.read_stream(name)]
        kept = [(m.type, json.loads(m.data)) for m in in_memory.messages if m.stream_name == name]
        assert kept == held, name
    ((due,),) = connection.execute("SELECT count(*) FROM reservation.scheduled").fetchall()
    assert len(in_memory.scheduled) == due == 1

    if how != "initiate":  # of which several here are conflicts
        scenario = given(component())
        outcomes = [scenario.when(command).outcome for command in commands[:7]]
        assert outcomes == [last_outcome(in_memory, position) for position in range(1, 8)]


def last_outcome(ran: InMemoryStore, position: int) -> str:
    """Return what became of a message, or of its copy if it was reserved."""
    outcomes = {one.message.global_position: one for one in ran.outcomes}
    found = outcomes[position]
    if found.outcome != "reserved":
        return found.outcome
    causes = {
        one.message.metadata.causation_message_global_position: one.outcome for one in ran.outcomes
    }
    return causes[position]
