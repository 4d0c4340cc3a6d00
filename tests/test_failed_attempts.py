"""What is kept and reported of a failed attempt: with the letter, and to `Component.on_error`."""

import json
import traceback
import types
from dataclasses import dataclass
from datetime import timedelta

import pytest
import sentry_sdk
import structlog
from click.testing import CliRunner

from cli.main import main
from consumers import drain
from consumers.dead_letters import administration, error_text
from consumers.dead_letters.stored_letters import Raised, Selection
from consumers.loop.consumer import Consumer
from consumers.runtime.stopping import Stop
from reservation import Component, DeclarationError, FailedAttempt, Reject, Retry
from reservation.errors import HandlerError, UnknownTypeError
from tests.bank import session
from tests.pages import ROOT, blocks

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


class Declined(Exception):
    pass


class Calls:
    """A component whose handler raises as often as it is to, and what its hook was called with."""

    def __init__(self, error=Declined, times=99, *, handler=None, **options):
        self.error = error
        self.left = times
        self.reported = []
        self.during = []
        self.component = Component("till", entity=Till, id="till_id", attempts=3)
        self.component.handle(Pay, **options)(handler or self.handle)
        self.component.project(Paid)(self.project)
        self.component.on_error(self.report)

    def handle(self, command, till, context):
        if self.left:
            self.left -= 1
            raise self.error(f"secret {command.number}")
        return Paid(command.number)

    def project(self, till, event):
        till.paid += 1

    def report(self, error, attempt):
        self.reported.append((type(error).__name__, attempt.attempt, attempt.outcome))
        self.during.append((error, attempt, structlog.contextvars.get_contextvars()))


def pay(store, *tills):
    """Send a payment to each till."""
    for number, till in enumerate(tills):
        store.write(Pay(till, number), f"{CATEGORY}-{till}")


def show(database_url, *arguments):
    """Run `dead-letters` with options, and return what it prints."""
    done = CliRunner().invoke(
        main, ["dead-letters", *arguments, "--database-url", database_url], env={"COLUMNS": "300"}
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def the_letter(connection):
    (letter,) = administration.find(connection, Selection(), states=None)
    return letter, administration.raised(connection, letter)


def test_a_letter_has_the_class_and_the_place_and_nothing_more(connection, store, database_url):
    """The text and the traceback may hold what the message holds."""
    calls = Calls()
    pay(store, "1")
    drain(calls.component, database_url)
    letter, raised = the_letter(connection)
    assert letter.error_type == "tests.test_failed_attempts.Declined"
    assert letter.error_place.startswith("Calls.handle (tests/test_failed_attempts.py:")
    assert letter.error.endswith(f"raised Declined in {letter.error_place}")
    assert raised == Raised()
    row = connection.execute("SELECT d::text FROM reservation.dead_letters d").fetchone()
    assert "secret" not in str(row)
    listed = show(database_url, "list")
    assert f"Declined in {letter.error_place}" in listed
    shown = json.loads(show(database_url, "show", str(letter.global_position), "--json"))
    assert (shown["errorType"], shown["errorText"], shown["errorTraceback"]) == (
        letter.error_type,
        None,
        None,
    )


def test_with_errors_full_the_text_and_the_traceback_are_kept_and_shown(
    connection, store, database_url
):
    """`show` prints both, `list` neither."""
    pay(store, "1")
    drain(Calls().component, database_url, errors="full")
    letter, raised = the_letter(connection)
    assert raised.error_text == "secret 0"
    assert raised.error_traceback.startswith("Traceback (most recent call last):\n")
    assert raised.error_traceback.endswith("Declined: secret 0\n")
    assert "secret" not in show(database_url, "list", "--json") + show(database_url, "list")
    shown = json.loads(show(database_url, "show", str(letter.global_position), "--json"))
    assert shown["errorTraceback"] == raised.error_traceback
    lines = show(database_url, "show", str(letter.global_position)).splitlines()
    assert any(line.endswith("Declined: secret 0") for line in map(str.strip, lines))


@pytest.mark.parametrize("end", ["handled", "discarded"])
def test_the_text_goes_with_the_end_of_its_letter(connection, store, database_url, end):
    """Whoever brings it about: the trigger does it, also for a process of a former version."""
    calls = Calls(times=4)
    pay(store, "1")
    drain(calls.component, database_url, errors="full")
    position = the_letter(connection)[0].global_position
    connection.execute(
        "UPDATE reservation.dead_letters SET state = 'retry', attempts = 0, changed_at = now()"
    )
    assert the_letter(connection)[1].error_text == "secret 0"
    if end == "handled":
        drain(calls.component, database_url)
    else:
        administration.discard(connection, Selection(), [position])
    letter, raised = the_letter(connection)
    assert (letter.state, raised) == (end, Raised())
    assert letter.error_type is not None


def test_the_text_goes_when_another_failure_is_noted_without_one(connection, store, database_url):
    """As by a process of a former version, which sets none of the columns."""
    pay(store, "1")
    drain(Calls().component, database_url, errors="full")
    note = "UPDATE reservation.dead_letters SET attempts = 4, error = 'other', digest = %s"
    digest = the_letter(connection)[0].digest
    connection.execute(note, [digest])
    assert the_letter(connection)[1].error_text == "secret 0"
    connection.execute(note, ["other"])
    assert the_letter(connection)[1] == Raised()


def test_a_long_or_unprintable_text_is_stored_as_far_as_it_fits(connection, store, database_url):
    """The end of a traceback is what was raised; the database takes no NUL and no surrogate."""

    class Loud(Exception):
        def __init__(self, _):
            super().__init__("\0\udcff" + "x" * 100_000)

    pay(store, "1")
    drain(Calls(Loud).component, database_url, errors="full")
    _, raised = the_letter(connection)
    assert raised.error_text.startswith("\\x00\\udcffxx")
    assert len(raised.error_text) < error_text.LONGEST_TEXT + 20
    assert len(raised.error_traceback) < error_text.LONGEST_TRACEBACK + 20


def test_an_exception_that_cannot_be_shown_is_kept_without_a_text(connection, store, database_url):
    """Its class may raise."""

    class Mute(Exception):
        def __str__(self):
            raise ValueError

    pay(store, "1")
    drain(Calls(Mute).component, database_url, errors="full")
    letter, raised = the_letter(connection)
    assert letter.error_type.endswith("Mute")
    assert raised.error_text == ""


def test_a_hook_is_called_for_each_attempt_with_what_becomes_of_the_message(
    connection, store, database_url
):
    """It gets the handler's own exception, and no transaction is open meanwhile."""
    calls = Calls()
    states = []
    calls.component.on_error(lambda error, attempt: states.append(open_transactions(connection)))
    pay(store, "1", "2")
    drain(calls.component, database_url)
    assert calls.reported[:3] == [
        ("Declined", 1, "retried"),
        ("Declined", 2, "retried"),
        ("Declined", 3, "dead"),
    ]
    assert len(calls.reported) == len(states) == 6
    assert set(states) == {0}
    error, attempt, _ = calls.during[0]
    assert traceback.extract_tb(error.__traceback__)[-1].name == "handle"
    (stored,) = store.read_stream(f"{CATEGORY}-1")
    assert attempt == FailedAttempt(
        "till",
        CATEGORY,
        stored.id,
        "Pay",
        f"{CATEGORY}-1",
        stored.global_position,
        "till-1",
        1,
        "retried",
    )


def open_transactions(connection):
    rows = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'reservation %' AND state LIKE 'idle in transaction%'"
    )
    return rows.fetchone()[0]


def test_the_context_variables_speak_of_the_message_in_a_hook(store, database_url):
    """So that what it logs can be found."""
    calls = Calls()
    pay(store, "1")
    drain(calls.component, database_url)
    _, attempt, variables = calls.during[0]
    assert variables == {
        "consumer": "till",
        "category": CATEGORY,
        "type": "Pay",
        "message_id": attempt.message_id,
        "entity": "till-1",
    }


def test_an_attempt_that_waits_is_reported_once_its_batch_is_committed(
    connection, store, database_url
):
    """Its letter is there already when the hook is called; the last attempt is dead."""
    calls = Calls(retry=Retry(attempts=2, first=timedelta(hours=1), on=Declined))
    seen = []
    calls.component.on_error(
        lambda error, attempt: seen.append(len(administration.find(connection, Selection())))
    )
    pay(store, "1")
    drain(calls.component, database_url)
    assert calls.reported == [("Declined", 1, "waiting")]
    assert seen == [1]
    connection.execute("UPDATE reservation.dead_letters SET next_attempt_at = now()")
    drain(calls.component, database_url)
    assert calls.reported[1:] == [("Declined", 2, "dead")]


def test_each_attempt_of_an_async_handler_is_reported(store, database_url):
    """Those within the batch too, once it is committed."""
    calls = Calls()

    async def handle(command, till, context):
        return calls.handle(command, till, context)

    calls = Calls(handler=handle)
    pay(store, "1")
    drain(calls.component, database_url)
    assert calls.reported == [
        ("Declined", 1, "retried"),
        ("Declined", 2, "retried"),
        ("Declined", 3, "dead"),
    ]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_a_hook_raises_is_logged_and_changes_nothing(
    connection, store, database_url, caplog, monkeypatch, error
):
    """Whatever it is; the further hooks are called."""
    monkeypatch.setattr("consumers.calls.error_reports.is_interrupt", lambda _: False)
    structlog.reset_defaults()
    calls = Calls(times=3)

    def broken(_error, attempt):
        raise error("secret")

    calls.component.error_hooks.insert(0, broken)
    pay(store, "1", "2")
    counts = drain(calls.component, database_url).counts
    # One failed with the batch, and the second attempt of the first by itself.
    assert counts == {"handled": 2}
    assert calls.reported == [("Declined", 1, "retried"), ("Declined", 2, "retried")]
    failed = [line.message for line in caplog.records if "error_hook_failed" in line.message]
    assert len(failed) == 2
    assert f"{error.__name__} in " in failed[0]
    assert "broken (tests/test_failed_attempts.py:" in failed[0]
    assert "secret" not in caplog.text


def test_neither_a_rejection_nor_a_fault_of_the_surroundings_is_reported(store, database_url):
    """Both are no failure of the message."""
    calls = Calls(Reject)
    pay(store, "1")
    drain(calls.component, database_url)
    assert calls.reported == []


def test_a_message_that_nothing_handles_is_reported_with_our_error(store, database_url):
    """There is no exception of the component's."""
    calls = Calls()
    store.write(Paid(1), f"{CATEGORY}-1")
    drain(calls.component, database_url)
    ((error, attempt, _),) = calls.during
    assert isinstance(error, UnknownTypeError)
    assert (attempt.attempt, attempt.outcome) == (1, "dead")


def test_the_attempt_at_which_a_consumer_stops_is_reported(store, database_url):
    """With --stop-on-error there is no letter."""
    calls = Calls()
    pay(store, "1")
    with session(database_url) as opened:
        consumer = Consumer(opened, calls.component, CATEGORY, stop_on_error=True)
        with pytest.raises(HandlerError):
            consumer.run(Stop(takes_signals=False))
    assert calls.reported == [("Declined", 1, "stopped")]


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (lambda error: None, "cannot be called with error, attempt"),
        (None, "is not a function"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused(hook, words):
    """When it is declared, in one line."""
    with pytest.raises(DeclarationError, match=words):
        Component("till", id="till_id").on_error(hook)


def test_an_async_function_is_refused():
    """Nobody would await it."""

    async def report(error, attempt): ...

    with pytest.raises(DeclarationError, match="is async"):
        Component("till", id="till_id").on_error(report)


def test_another_value_of_errors_is_refused(database_url):
    """In one line, before anything is handled."""
    with pytest.raises(DeclarationError, match="errors='all' is neither 'place' nor 'full'"):
        drain(Calls().component, database_url, errors="all")


def test_the_statement_of_the_how_to_page_removes_what_is_kept(connection, store, database_url):
    """Before the letter is handled or discarded."""
    pay(store, "1")
    drain(Calls().component, database_url, errors="full")
    (statement,) = blocks(ROOT / "docs/how-to/log-and-report.md", "sql")
    connection.execute(statement.text)
    letter, raised = the_letter(connection)
    assert (letter.state, raised) == ("dead", Raised())


def test_the_error_of_a_projector_has_its_place_too(connection, store, database_url):
    """Not only that of a handler."""

    def project(till, event):
        raise ArithmeticError("secret")

    calls = Calls(times=0)
    calls.component.projection.projectors["Paid"] = project
    pay(store, "1")
    drain(calls.component, database_url)
    letter, _ = the_letter(connection)
    assert letter.error_type == "ArithmeticError"
    assert "project (tests/test_failed_attempts.py:" in letter.error_place
    assert [kind for kind, _, _ in calls.reported] == ["ArithmeticError"] * 3


def test_a_refusal_of_the_context_is_shown_where_the_handler_called_it(
    connection, store, database_url
):
    """It is our error, raised in a line of the handler."""

    def handle(command, till, context):
        context.write("no message", "other-1")

    pay(store, "1")
    drain(Calls(handler=handle).component, database_url)
    letter, _ = the_letter(connection)
    assert "handle (tests/test_failed_attempts.py:" in letter.error_place


def test_what_the_how_to_page_reports_to_sentry(store, database_url):
    """The exception with its traceback and the message, and nothing of the message's data."""
    page = types.ModuleType("page")
    for block in blocks(ROOT / "docs/how-to/log-and-report.md", "python"):
        exec(compile(block.text, "page.py", "exec"), vars(page))
    sent = []

    class Kept(sentry_sdk.Transport):
        def capture_envelope(self, envelope):
            sent.append(envelope.get_event())

    sentry_sdk.init(
        "https://key@sentry.example/1",
        transport=Kept,
        default_integrations=False,
        include_local_variables=False,
    )
    try:
        store.write(page.Charge("7", -5), "payment:command-7")
        drain(page.payments, database_url)
    finally:
        sentry_sdk.get_global_scope().set_client(None)
    (event,) = sent
    (raised,) = event["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("ValueError", "-5 is no amount")
    assert raised["stacktrace"]["frames"][-1]["function"] == "charge"
    assert "vars" not in raised["stacktrace"]["frames"][-1]
    assert event["tags"] == {"consumer": "payment", "message.type": "Charge", "outcome": "dead"}
    assert event["contexts"]["message"]["attempt"] == 3
    assert "cents" not in json.dumps(event["contexts"]["message"])
