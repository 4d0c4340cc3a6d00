"""What a component's own code logs has the message that is handled."""

import asyncio
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass

import structlog

from consumers import drain
from reservation import Component, Key, Upcast
from reservation.strategies import StateBased

CATEGORY = "till:command"


@dataclass(frozen=True)
class Pay:
    till_id: str
    number: int = 0


@dataclass(frozen=True)
class Paid:
    number: int


@dataclass
class Till:
    paid: int = 0


def variables():
    """Return what a line that is logged now would have of the context."""
    return structlog.contextvars.merge_contextvars(None, "info", {})


def of(message, entity=None):
    """Return what a line about a message is to have."""
    known = {
        "consumer": "till",
        "category": CATEGORY,
        "type": message.type,
        "message_id": message.id,
    }
    return known if entity is None else {**known, "entity": entity}


class Speaking:
    """A component all of whose code notes the variables."""

    def __init__(self, handler=None, **options):
        self.seen = []
        self.component = Component("till", entity=Till, id="till_id")
        self.component.handle(Pay, **({"once": None} | options))(handler or self.handle)
        self.component.project(Paid)(lambda till, event: self.note("projector"))

    def note(self, where):
        self.seen.append((where, variables()))

    def handle(self, command, till, context):
        self.note("handler")
        return Paid(command.number)


def pay(store, *tills):
    for number, till in enumerate(tills):
        store.write(Pay(till, number), f"{CATEGORY}-{till}")


def sent(store, till):
    (message,) = store.read_stream(f"{CATEGORY}-{till}")
    return message


def test_a_handler_and_its_projector_speak_of_the_message(store, database_url):
    """And afterwards the variables are as the program had them."""
    speaking = Speaking()
    pay(store, "1", "2")
    with structlog.contextvars.bound_contextvars(type="own", request=7):
        drain(speaking.component, database_url)
        assert variables() == {"type": "own", "request": 7}
    assert variables() == {}
    first = {**of(sent(store, "1"), "till-1"), "request": 7}
    second = {**of(sent(store, "2"), "till-2"), "request": 7}
    assert speaking.seen == [
        ("handler", first),
        ("projector", first),
        ("handler", second),
        ("projector", second),
    ]


def test_the_projector_speaks_of_the_entity_while_that_is_loaded(store, database_url):
    """No message is handled at that time: several may be about to be, on the same entity."""
    speaking = Speaking()
    pay(store, "1")
    drain(speaking.component, database_url)
    speaking.seen.clear()
    pay(store, "1")
    drain(speaking.component, database_url)
    assert speaking.seen[0] == (
        "projector",
        {"consumer": "till", "category": CATEGORY, "entity": "till-1"},
    )


def test_an_upcaster_and_a_key_function_speak_of_the_message(store, database_url):
    """Its entity is not known before it is decoded."""

    def key(command):
        speaking.note("key")
        return str(command.number)

    def upcast(fields):
        speaking.note("upcaster")
        return fields

    speaking = Speaking(key=Key(key, per=None))
    speaking.component.message(Pay, upcast=Upcast(upcast, when=lambda data: "amount" not in data))
    pay(store, "1")
    drain(speaking.component, database_url)
    about = of(sent(store, "1"))
    assert speaking.seen[:2] == [("upcaster", about), ("key", about)]
    places = [(where, seen["category"], seen.get("entity")) for where, seen in speaking.seen[2:]]
    assert places == [
        ("upcaster", "tillTransaction", None),
        ("handler", "tillTransaction", "till-1"),
        ("projector", "tillTransaction", "till-1"),
    ]


def test_a_handler_that_clears_the_variables_clears_its_own(store, database_url):
    """As middleware of web frameworks does."""

    def handle(command, till, context):
        speaking.note("handler")
        structlog.contextvars.clear_contextvars()

    speaking = Speaking(handle)
    pay(store, "1", "2")
    drain(speaking.component, database_url)
    assert [seen["entity"] for _, seen in speaking.seen] == ["till-1", "till-2"]
    assert [seen["consumer"] for _, seen in speaking.seen] == ["till", "till"]


def test_what_a_handler_binds_is_gone_with_its_call(store, database_url):
    """Neither a later message nor the consumer speaks of it, nor what else there is."""
    number, former = ContextVar("number"), []

    def handle(command, till, context):
        speaking.note("handler")
        former.append(number.get(None))
        number.set(command.number)
        structlog.contextvars.bind_contextvars(customer=command.number)
        if command.number:
            raise KeyError
        return Paid(command.number)

    speaking = Speaking(handle)

    @speaking.component.on_error
    def report(error, attempt):
        speaking.note("hook")
        structlog.contextvars.bind_contextvars(reported=True)

    pay(store, "1", "2", "3")
    drain(speaking.component, database_url)
    assert {name for name, _ in speaking.seen} == {"handler", "projector", "hook"}
    assert not any(seen.keys() & {"customer", "reported"} for _, seen in speaking.seen)
    assert set(former) == {None}
    assert variables() == {}


def test_a_handler_with_states_in_versions_speaks_of_the_message(store, database_url):
    """It is called in another place of the framework."""

    def handle(command, till, context):
        speaking.note("handler")

    speaking = Speaking(handle, once=StateBased("whole"))
    pay(store, "1")
    drain(speaking.component, database_url)
    assert speaking.seen == [("handler", of(sent(store, "1"), "till-1"))]


def test_async_handlers_that_run_at_a_time_have_each_their_own(store, database_url):
    """Also after they have waited, and in the threads that they start with `to_thread`."""
    seen = []
    together = asyncio.Event()

    async def handle(command, till, context):
        if len(seen) == 0 and command.number == 9:
            together.set()
        await together.wait()
        await asyncio.sleep(0)
        seen.append((command.till_id, variables(), await asyncio.to_thread(variables)))

    speaking = Speaking(handle)
    pay(store, *(str(n) for n in range(10)))
    drain(speaking.component, database_url)
    assert Counter(till for till, _, _ in seen) == Counter(map(str, range(10)))
    for till, own, in_thread in seen:
        assert own == in_thread == of(sent(store, till), f"till-{till}")
    assert variables() == {}
