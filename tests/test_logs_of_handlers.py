"""What a component's own code logs: with its message, as JSON, at the level that was asked for."""

import asyncio
import json
import logging
import os
import pty
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import pytest
import structlog

from consumers import drain
from consumers.runtime.observability.log_context import LogContext
from reservation import Component, StateBased
from tests.processes import Started, command_line

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
        self.component.handle(Pay, **options)(handler or self.handle)
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
    speaking = Speaking()
    component = speaking.component

    def key(command):
        speaking.note("key")
        return str(command.number)

    @component.upcast(Pay, to=2, when=lambda fields: "amount" not in fields)
    def upcast(fields):
        speaking.note("upcaster")
        return fields

    component.reserve(Pay, key=key, into="tillTransaction")
    pay(store, "1")
    drain(component, database_url)
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


def test_a_context_costs_no_more_than_a_few_calls_of_a_context_variable(store):
    """Every message pays for it, so what is set is as little as there can be."""
    pay(store, "1")
    message, context = sent(store, "1"), LogContext("till", CATEGORY)
    calls = Counter()
    with context.entered():
        sys.setprofile(lambda frame, event, function: calls.update([event]))
        context.enter_message(message, "till-1")
        sys.setprofile(None)
    # One call, in which C is called five times; and the one that ends the profile.
    assert (calls["call"], calls["c_call"] - 1) == (1, 4)


APP = """
import logging, sys, warnings
from dataclasses import dataclass
import structlog
from reservation import Component

till = Component("till", id="till_id", attempts=2)
log = logging.getLogger("shop.tills")

@dataclass(frozen=True)
class Pay:
    till_id: str
    number: int = 0

@till.handle(Pay)
def pay(command, entity, context):
    local = "local-secret"
    log.debug("looked up")
    log.info("paying %s", command.number, extra={"terminal": "t7"})
    structlog.get_logger().info("paid", amount=5)
    if command.number == 1:
        try:
            raise KeyError("shown")
        except KeyError:
            log.exception("failed")
    if command.number == 2:
        log.info("%d", "secret")
        warnings.warn("soon gone", DeprecationWarning)
        logging.getLogger("psycopg").warning("psycopg-secret")
    if command.number == 3:
        raise ValueError("data-secret")
"""


@pytest.fixture
def app(tmp_path):
    """Give a folder with an app whose handler logs in each way."""
    (tmp_path / "tills.py").write_text(APP)
    return tmp_path


def start(app, database_url, *arguments):
    return Started(database_url, "--app-dir", str(app), *arguments, app="tills:till")


@pytest.mark.slow
def test_all_that_a_handler_logs_is_json_with_its_message(store, database_url, app):
    """Also what it logs with Python's own `logging`, exceptions and warnings."""
    pay(store, "0", "1", "2")
    with start(app, database_url) as started:
        event = started.wait_for("paying 0")
        own = started.wait_for("paid")
        failed = started.wait_for("failed")
        broken = started.wait_for("log_call_failed")
        started.wait_for("batch_committed", handled=3)
        assert started.stop() == 0
    about = of(sent(store, "0"), "till-0")
    assert event.items() >= {**about, "level": "info", "logger": "shop.tills"}.items()
    assert event["terminal"] == "t7"
    assert own.items() >= {**about, "level": "info", "amount": 5}.items()
    assert failed["exception"].endswith("KeyError: 'shown'")
    assert broken["logger"] == "shop.tills"
    assert broken["message_id"] == sent(store, "2").id
    log = "".join(started.lines)
    assert all(line.startswith("{") for line in started.lines)
    assert "looked up" not in log
    assert "secret" not in log
    assert "batch_committed" in log


@pytest.mark.slow
def test_the_level_is_that_of_both_kinds_of_logging(store, database_url, app):
    """In the processes that the host starts too."""
    pay(store, "0", "1")
    with start(app, database_url, "--log-level", "debug", "--metrics-port", "0") as started:
        looked = started.wait_for("looked up")
        assert (looked["level"], looked["consumer"]) == ("debug", "till")
        assert started.stop() == 0
    pay(store, "0", "1")
    with start(app, database_url, "--log-level", "error") as started:
        failed = started.wait_for("failed")
        assert started.stop() == 0
    assert failed["level"] == "error"
    assert len(started.lines) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--metrics-port", "0")])
def test_debug_shows_the_traceback_of_a_handlers_exception(store, database_url, app, more):
    """In the process that was started, and in those that it starts."""
    pay(store, "0", "x", "y", "z")
    with start(app, database_url, "--debug", *more) as started:
        first = started.wait_for("attempt_failed", attempt=1)
        second = started.wait_for("attempt_failed", attempt=2)
        started.wait_for("message_dead")
        assert started.stop() == 0
    assert (first["outcome"], second["outcome"]) == ("retried", "dead")
    for event in (first, second):
        assert event["exception"].startswith("Traceback (most recent call last):\n")
        assert 'tills.py", line' in event["exception"]
        assert event["exception"].endswith("ValueError: data-secret")
        assert event["stream_name"] == f"{CATEGORY}-z"


@pytest.mark.slow
def test_on_a_terminal_the_lines_are_for_people(store, database_url, app):
    """A traceback is Python's own, which shows no local variables."""
    pay(store, "0", "1")
    primary, secondary = pty.openpty()
    environment = {**os.environ, "RESERVATION_DATABASE_URL": database_url, "NO_COLOR": "1"}
    process = subprocess.Popen(
        command_line("start", "tills:till", "--app-dir", str(app)),
        env=environment,
        stderr=secondary,
        start_new_session=True,
    )
    os.close(secondary)
    shown = ""
    try:
        while "batch_committed" not in shown:
            shown += os.read(primary, 4096).decode()
    finally:
        process.terminate()
        process.wait()
        os.close(primary)
    lines = shown.splitlines()
    (paying,) = [line for line in lines if "paying 0" in line]
    assert "[info" in paying
    assert "message_id=" in paying
    assert "Traceback (most recent call last):" in lines
    assert "KeyError: 'shown'" in lines
    assert "local-secret" not in shown
    assert not any(line.startswith("{") for line in lines)


def test_configuring_twice_logs_each_line_once(tmp_path):
    """As a program does that starts consumers one after the other; and a level is replaced."""
    script = """
import logging
from consumers.runtime.observability.logs import configure_logs
configure_logs(level="debug")
configure_logs(level="warning")
logging.getLogger("a").info("not shown")
logging.getLogger("a").warning("shown", stack_info=False)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["event"] == "shown"
    assert logging.getLogger().level != logging.DEBUG
