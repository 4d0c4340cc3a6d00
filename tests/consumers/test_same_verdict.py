"""What real consumers refuse, each test helper refuses too, with the same reason and text.

A table of handlers goes through `consumers.drain` on a database, through `given`, through
`check_deterministic` and through `run_in_memory`.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

import consumers
from consumers.testing import InMemoryStore, run_in_memory
from reservation import (
    Component,
    Context,
    MessageStore,
    Reject,
    Retry,
    RetryLater,
    StoredMessage,
    Write,
)
from reservation.errors import (
    DecodeError,
    EncodeError,
    HandlerError,
    IdempotenceKeyError,
    MessageError,
    UnknownEventError,
)
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from reservation.testing import Stored, check_deterministic, given
from tests.consumers.builders import case as named
from tests.consumers.builders import stored_letters, write_raw
from tests.support.consuming import hosted, until


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
    names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.n < 0 or next(iter(self.names), "") == "a":
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
    if how == "on":
        return subscriber(handler, **options)
    component = Component("box", entity=entity, id="box_id", attempts=1)
    if how == "initiate":
        component.initiate(Fill, **options)(lambda first, context: handler(first, None, context))
    elif how == "async":

        async def awaited(command: Any, entity: Any, context: Context) -> Any:
            return handler(command, entity, context)

        component.handle(Fill, **{"once": None} | options)(awaited)
    else:
        recognized = {"key": "key"} if how == "reserve" else {"once": None}
        component.handle(Fill, **recognized | options)(
            lambda command, entity, context: handler(command, entity, context)
        )
    if entity is not None:
        component.project(Filled)(lambda entity, event: project(entity, event))
        component.project(Odd)(lambda entity, event: None)
    return component


def subscriber(handler: Handler, **options: Any) -> Component[Any]:
    """Return a component whose handler is for the messages of another category."""
    component = Component("box", entity=Box, id="box_id", attempts=1)
    component.handle(Shipped, category="parcel", **options)(
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
        context.write(Unknown(), "moved-1", expected_version=0)


def raises(error: BaseException | type[BaseException]) -> Handler:
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
        handler: what is refused.
        reason: that of the dead letter.
        text: a part of what is said.
        command: what is sent; if None, a command of an entity of its own.
        facts: what is stored before, by streams.
        checked: whether `check_deterministic` can know: it has neither a log nor a key.
        raw: messages with ids of their own, which are stored before; not for `given`.
        options: how the handler is declared. Those that are declared alike share a component.
    """

    handler: Handler
    reason: str
    text: str
    command: Any = None
    facts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    checked: bool = True
    raw: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def component(self) -> Component[Any]:
        return box(self.handler, **self.options)


def refused(action: Callable[[Context], object], text: str, reason: str = "handler") -> Case:
    return Case(does(action), reason, text)


def returned(value: Any, text: str, reason: str = "handler", **options: Any) -> Case:
    return Case(lambda *_: value, reason, text, options=options)


def nothing(*_: Any) -> None:
    pass


OWN = "stream of its own entity"
_CASES = {
    "returns a text": returned("text", "returned a str"),
    "returns an iterator": Case(
        lambda *_: (Filled([]) for _ in "a"), "handler", "returned a generator"
    ),
    "returns a text among events": returned([Filled([]), "a"], "returned a str"),
    "returns its command": Case(
        lambda command, *_: command, "handler", "returned the command Fill"
    ),
    "returns an event that is not declared": returned(Unknown(), "Unknown, which is not declared"),
    "returns what has no form": returned(Filled([object()]), "cannot be stored", "write"),  # type: ignore[list-item]
    "returns what its class does not say": returned(Filled([1]), "cannot be stored", "write"),  # type: ignore[list-item]
    "returns a null character": returned(Filled(["\0"]), "cannot be stored", "write"),
    "returns too much": returned(Filled(["x" * 17_000_000]), "cannot be stored", "write"),
    "returns what its class refuses": Case(negative, "write", "cannot be stored"),
    # The store changes the order of the keys.
    "returns what cannot be read": returned(Odd(1, {"bb": 1, "a": 2}), "cannot be read again"),
    "initiates with nothing": returned(None, "returned no event", how="initiate"),
    "raises": Case(
        raises(ValueError("x")),
        "handler",
        "raised ValueError in raises.<locals>.handler",
    ),
    "raises an exit": Case(raises(SystemExit(1)), "handler", "raised SystemExit"),
    "raises an error of ours": Case(raises(DecodeError("of mine")), "undecodable", "of mine"),
    "raises when reserved": Case(
        raises(ValueError()), "handler", "raised ValueError", options={"how": "reserve"}
    ),
    "raises when awaited": Case(
        raises(ValueError()), "handler", "raised ValueError", options={"how": "async"}
    ),
    "an exhausted policy": Case(
        raises(RetryLater("1s")),
        "handler",
        "raised RetryLater",
        options={"retry": Retry(attempts=1)},
    ),
    "writes a text": refused(lambda c: c.write("a", "other-1"), "wrote a str"),
    "writes to a category": refused(lambda c: c.write(Unknown(), "other"), "cannot write"),
    "writes to a number": refused(lambda c: c.write(Unknown(), 1), "cannot write"),  # type: ignore[arg-type]
    "writes to its own entity": Case(
        does(lambda c: c.write(Filled([]), "box-1")), "handler", OWN, Fill("1")
    ),
    "schedules to its own entity": Case(
        does(lambda c: c.write(Filled([]), "box-2", after="1s")), "handler", OWN, Fill("2")
    ),
    "writes what is not declared to another entity": refused(
        lambda c: c.write(Unknown(), "box-9"), "not declared"
    ),
    "schedules what is not declared to another entity": refused(
        lambda c: c.write(Unknown(), "box-9", after="1s"), "not declared"
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
    "replies to nobody": refused(lambda c: c.reply(Unknown()), "Cannot reply to"),
    "expects no number": refused(
        lambda c: c.write(Unknown(), "other-1", expected_version="0"),  # type: ignore[arg-type]
        "cannot write",
    ),
    "expects less than no stream": refused(
        lambda c: c.write(Unknown(), "other-1", expected_version=-2), "cannot write"
    ),
    "schedules with a version": refused(
        lambda c: c.write(Unknown(), "other-1", expected_version=0, after="1s"), "cannot have an"
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
        does(lambda c: c.write(Unknown(), "other-1", expected_version=3)),
        "handler",
        "Wrong expected version: 3",
        checked=False,
    ),
    "a version that its own write moves": Case(
        does(writes_twice),
        "handler",
        "Wrong expected version: 0",
        facts={"moved-1": [Unknown()]},
        checked=False,
    ),
    "an id that another message has": Case(
        lambda *_: Filled([]), "id_taken", "in use", raw=True, checked=False
    ),
    "a projector that fails": Case(
        lambda *_: Filled([]),
        "handler",
        "raised KeyError in fails",
        options={"project": fails},
    ),
    "a projector that failed with a stored event": Case(
        nothing,
        "handler",
        "projector of Filled",
        Fill("3"),
        facts={"box-3": [Filled([])]},
        options={"project": fails},
        checked=False,
    ),
    "an entity that cannot be copied": Case(
        nothing,
        "handler",
        "cannot be copied",
        Fill("4"),
        facts={"box-4": [Filled([])]},
        options={"project": locks},
        checked=False,
    ),
    "a stored event that is not declared": Case(
        nothing,
        "unknown_event",
        "is not declared",
        Fill("5"),
        facts={"box-5": [Unknown()]},
        checked=False,
    ),
    "a stored event of another shape": Case(
        nothing,
        "undecodable",
        "Cannot decode Filled",
        Fill("6"),
        facts={"box-6": [Stored("Filled", {"items": 1})]},
        checked=False,
    ),
    "no entity": Case(nothing, "key", "box_id", Fill("")),
    "a function that gives no entity": Case(
        nothing,
        "handler",
        "raised ZeroDivisionError",
        Shipped("1"),
        options={"how": "on", "id": lambda message: 1 / 0},
    ),
    "no key": Case(
        nothing, "key", "reserve", Fill("7", ""), checked=False, options={"how": "reserve"}
    ),
    "no revision": Case(
        nothing,
        "key",
        "no revision",
        Fill("8", revision=-1),
        checked=False,
        options={"once": Revisions()},
    ),
    "a state that has no form": Case(
        keeps(object()), "handler", "cannot be stored", options={"once": StateBased()}
    ),
    "a state and the connection": Case(
        does(lambda c: c.connection), "handler", "no connection", options={"once": StateBased()}
    ),
    "a state and an error": Case(
        raises(ValueError()), "handler", "raised ValueError", options={"once": StateBased()}
    ),
    "an async handler and the connection": Case(
        does(lambda c: c.connection), "handler", "no connection", options={"how": "async"}
    ),
    "a subscription that raises": Case(
        raises(ValueError()),
        "handler",
        "raised ValueError",
        Shipped("1"),
        options={"how": "on", "id": "parcel"},
    ),
}
CASES = {
    name: replace(case, command=case.command or Fill(name.replace(" ", "-")))
    for name, case in _CASES.items()
}
GROUPS: dict[str, dict[str, Case]] = {}
for _name, _case in CASES.items():
    alone = _case.reason == "unknown_event"  # no consumer starts where it is stored
    GROUPS.setdefault(f"{_case.options}{alone}", {})[_name] = _case


ERRORS: dict[str, type[MessageError]] = {
    "handler": HandlerError,
    "undecodable": DecodeError,
    "unknown_event": UnknownEventError,
    "key": IdempotenceKeyError,
    "write": EncodeError,
}
HOWS = ["handle", "reserve", "initiate", "async", "on"]
STRATEGIES = [
    None,
    Processed(),
    Revisions(),
    MessageIdInEvents(),
    PositionInEvents(),
    StateBased(),
]


def stream_of(case: Case) -> str:
    if isinstance(case.command, Shipped):
        return f"parcel-{case.command.parcel}"
    return f"box:command-{case.command.box_id or 'nobody'}"


def sent(case: Case) -> Write:
    """Return what is sent, as it is written on a database."""
    name = stream_of(case)
    return Write(case.command, name, uuid.uuid5(uuid.NAMESPACE_URL, name))


def before(case: Case) -> list[Write | StoredMessage]:
    """Return what is stored before, with a message of the id that the case's event would have."""
    found: list[Write | StoredMessage] = []
    if case.raw:
        event = run_in_memory(case.component(), [sent(case)]).messages[-1]
        found.append(Write(Unknown(), "other-9", uuid.UUID(event.id)))
    for name, messages in case.facts.items():
        found += (
            raw(name, one) if isinstance(one, Stored) else Write(one, name) for one in messages
        )
    return found


def raw(name: str, one: Stored) -> StoredMessage:
    now, data = datetime.now(), json.dumps(one.data)  # noqa: DTZ005  as the store gives it
    return StoredMessage(str(uuid.uuid4()), name, one.type, 0, 0, data, None, now)


def in_words(error: object) -> str:
    """Return an error without the place of the message, which differs without a store."""
    return re.sub(r" at \S+, global position \d+", "", str(error))


def without_position(error: str) -> str:
    """Return an error without the position, as other cases share the store."""
    return re.sub(r"global position \d+", "", error)


def send(group: Mapping[str, Case], connection: Any, store: MessageStore) -> None:
    """Store what there is before each case, and its message."""
    for case in group.values():
        for one in before(case):
            if isinstance(one, Write):
                store.write_batch([one])
            else:
                write_raw(connection, one.stream_name, one.type, one.data)
        store.write_batch([sent(case)])


def consumed(
    group: Mapping[str, Case], connection: Any, store: MessageStore, database_url: str
) -> dict[str, tuple[str, str]]:
    """Return reason and error of the dead letter that a real consumer makes of each case."""
    handlers = {repr(case.command): case.handler for case in group.values()}
    options = next(iter(group.values())).options
    component = box(lambda message, *others: handlers[repr(message)](message, *others), **options)
    if any(case.reason == "unknown_event" for case in group.values()):
        started = "SELECT FROM reservation.positions"
        with hosted(component, database_url) as thread:
            until(lambda: connection.execute(started).fetchall(), thread)
            send(group, connection, store)
            until(lambda: stored_letters(connection), thread)
    else:
        send(group, connection, store)
        consumers.drain(component, database_url)
    letters = {}
    for one in stored_letters(connection):  # which names a copy if the command was reserved
        sent_to = one.stream_name.replace("boxTransaction-", "box:command-").removesuffix("+k")
        letters[sent_to] = (one.reason, one.error)
    assert sorted(letters) == sorted(map(stream_of, group.values()))
    return {name: letters[stream_of(case)] for name, case in group.items()}


@pytest.mark.parametrize("group", GROUPS.values(), ids=map(next, map(iter, GROUPS.values())))
def test_every_helper_refuses_what_consumers_refuse(group, connection, store, database_url):
    """The reason and the text are those of the dead letter that a real consumer makes."""
    consumed_letters = consumed(group, connection, store, database_url)
    for name, case in group.items():
        with named(name):
            compare(case, *consumed_letters[name])


def compare(case: Case, reason: str, error: str) -> None:
    """Compare what every helper says of a case with the letter that a real consumer made."""
    assert reason == case.reason
    assert case.text in error

    in_memory = run_in_memory(case.component(), [*before(case), sent(case)])
    assert in_memory.counts["dead"] == 1
    (letter,) = in_memory.dead_letters
    assert (letter.reason, without_position(letter.error)) == (reason, without_position(error))

    if not case.raw:
        scenario = given(case.component(), streams=case.facts)
        with pytest.raises(ERRORS[case.reason]) as raised:
            scenario.when(case.command)
        assert in_words(raised.value) == in_words(error)

    if case.checked:
        with pytest.raises(ERRORS[case.reason]) as raised:
            check_deterministic(case.component(), case.command)
        assert in_words(raised.value) == in_words(error)


@pytest.mark.parametrize(
    ("how", "once"),
    [
        *(("handle", once) for once in STRATEGIES),
        ("reserve", None),
        ("reserve", StateBased()),
        ("initiate", None),
        ("async", None),
        ("async", StateBased()),
    ],
)
def test_what_is_accepted_is_the_same_everywhere(how, once, connection, store, database_url):
    """Events, further messages, rejections and outcomes are those of real consumers."""

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


@pytest.mark.parametrize(
    ("how", "error", "waits"),
    [
        ("handle", TimeoutError, True),
        ("handle", KeyError, False),
        *(
            (how, RetryLater("1h"), True)
            for how in ("handle", "reserve", "initiate", "async", "on")
        ),
    ],
)
def test_what_waits_by_its_policy_waits_everywhere(how, error, waits, connection, database_url):
    """An exception that `retry=` names is no dead letter, and one that it does not name is."""
    retry = Retry(attempts=2, first="1h", on=TimeoutError)

    def component() -> Component[Any]:
        if how == "on":
            return subscriber(raises(error), id="parcel", retry=retry)
        return box(raises(error), how, retry=retry)

    message = Shipped("1") if how == "on" else Fill("1")
    stream_name = "parcel-1" if how == "on" else "box:command-1"
    MessageStore(connection).write(message, stream_name)
    expected = "waiting" if waits else "dead"
    assert consumers.drain(component(), database_url).counts[expected] == 1
    ran = run_in_memory(component(), [message])
    assert ran.counts[expected] == 1
    scenario = given(component())
    if waits:
        waiting = scenario.when(message)
        assert waiting.outcome == "waiting"
        (letter,) = ran.dead_letters
        assert str(waiting.error) == letter.error
    with pytest.raises(MessageError):
        scenario.when(message)


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
