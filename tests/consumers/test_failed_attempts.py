"""What is kept and reported of a failed attempt: with the letter, and to `Component.on_error`."""

import json
import traceback
import types
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import pytest
import sentry_sdk
import structlog

from consumers import drain
from reservation import Component, FailedAttempt, Reject, Retry
from reservation.errors import DeclarationError, UnknownTypeError
from tests.consumers.builders import TILLS, dead_letters, decide, letters, sigint_taken_over
from tests.support.pages import ROOT, blocks


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

    def __init__(self, error=Declined, times=99, *, handler=None, project=None, **options):
        self.error = error
        self.left = times
        self.reported = []
        self.during = []
        self.component = Component("till", entity=Till, id="till_id", attempts=2)
        self.component.handle(Pay, once=None, **options)(handler or self.handle)
        self.component.project(Paid)(project or (lambda till, event: None))
        self.component.on_error(self.report)

    def handle(self, command, till, context):
        if self.left:
            self.left -= 1
            raise self.error(f"secret {command.number}")
        return Paid(command.number)

    def report(self, error, attempt):
        self.reported.append((type(error).__name__, attempt.attempt, attempt.outcome))
        self.during.append((error, attempt, structlog.contextvars.get_contextvars()))


def pay(store, *tills):
    """Send a payment to each till."""
    for number, till in enumerate(tills):
        store.write(Pay(till, number), f"{TILLS}-{till}")


def the_letter(connection):
    """Return the only letter, as `dead-letters show` has it."""
    (row,) = letters(connection)
    return decide(connection, "show", str(row["global_position"]))


def text_of(letter):
    return letter["errorText"], letter["errorTraceback"]


def test_a_letter_has_the_class_and_the_place_and_nothing_more(connection, store, database_url):
    """The text and the traceback may hold what the message holds."""
    pay(store, "1")
    drain(Calls().component, database_url)
    letter = the_letter(connection)
    assert letter["errorType"] == "tests.consumers.test_failed_attempts.Declined"
    place = letter["errorPlace"]
    assert place.startswith("Calls.handle (tests/consumers/test_failed_attempts.py:")
    assert letter["error"].endswith(f"raised Declined in {place}")
    assert text_of(letter) == (None, None)
    assert "secret" not in str(letters(connection))
    assert f"Declined in {place}" in dead_letters(connection, "list")


def test_with_errors_full_the_text_and_the_traceback_are_stored_and_shown(
    connection, store, database_url
):
    """`show` prints both, `list` neither."""
    pay(store, "1")
    drain(Calls().component, database_url, errors="full")
    letter = the_letter(connection)
    assert letter["errorText"] == "secret 0"
    assert letter["errorTraceback"].startswith("Traceback (most recent call last):\n")
    assert letter["errorTraceback"].endswith("Declined: secret 0\n")
    listed = dead_letters(connection, "list", "--json") + dead_letters(connection, "list")
    assert "secret" not in listed
    lines = dead_letters(connection, "show", str(letter["globalPosition"])).splitlines()
    assert any(line.strip().endswith("Declined: secret 0") for line in lines)


@pytest.mark.parametrize("end", ["handled", "discarded"])
def test_the_text_goes_with_the_end_of_its_letter(connection, store, database_url, end):
    """It stays while the letter is to be retried."""
    calls = Calls(times=3)
    pay(store, "1")
    drain(calls.component, database_url, errors="full")
    decide(connection, "retry", "--all")
    assert the_letter(connection)["errorText"] == "secret 0"
    if end == "handled":
        drain(calls.component, database_url)
    else:
        decide(connection, "discard", str(the_letter(connection)["globalPosition"]), "--yes")
    letter = the_letter(connection)
    assert (letter["state"], text_of(letter)) == (end, (None, None))
    assert letter["errorType"] is not None


def test_the_text_goes_when_another_failure_is_stored_without_one(connection, store, database_url):
    """The consumers that retried the letter keep no texts."""
    calls = Calls()
    pay(store, "1")
    drain(calls.component, database_url, errors="full")
    calls.error = KeyError
    decide(connection, "retry", "--all")
    drain(calls.component, database_url)
    letter = the_letter(connection)
    assert (letter["errorType"], text_of(letter)) == ("KeyError", (None, None))


def test_a_long_or_unprintable_text_is_stored_as_far_as_it_fits(connection, store, database_url):
    """The end of a traceback is what was raised; the database takes no NUL and no surrogate."""

    class Loud(Exception):
        def __init__(self, _):
            super().__init__("\0\udcff" + "x" * 100_000)

    pay(store, "1")
    drain(Calls(Loud).component, database_url, errors="full")
    letter = the_letter(connection)
    assert letter["errorText"].startswith("\\x00\\udcffxx")
    assert len(letter["errorText"]) < 10_000
    assert len(letter["errorTraceback"]) < 50_000


def test_an_exception_that_cannot_be_shown_is_stored_without_a_text(
    connection, store, database_url
):
    """Its class may raise."""

    class Mute(Exception):
        def __str__(self):
            raise ValueError

    pay(store, "1")
    drain(Calls(Mute).component, database_url, errors="full")
    letter = the_letter(connection)
    assert letter["errorType"].endswith("Mute")
    assert letter["errorText"] == ""


def test_another_value_of_errors_is_refused(database_url):
    """In one line, before anything is handled."""
    with pytest.raises(DeclarationError, match="errors='all' is neither 'place' nor 'full'"):
        drain(Calls().component, database_url, errors="all")


def test_the_statement_of_the_how_to_page_removes_what_is_stored(connection, store, database_url):
    """Before the letter is handled or discarded."""
    pay(store, "1")
    drain(Calls().component, database_url, errors="full")
    (statement,) = blocks(ROOT / "docs/how-to/log-and-report.md", "sql")
    connection.execute(statement.text)
    letter = the_letter(connection)
    assert (letter["state"], text_of(letter)) == ("dead", (None, None))


def test_the_error_of_a_projector_has_its_place_too(connection, store, database_url):
    """Not only that of a handler."""

    def project(till, event):
        raise ArithmeticError("secret")

    calls = Calls(times=0, project=project)
    pay(store, "1")
    drain(calls.component, database_url)
    letter = the_letter(connection)
    assert letter["errorType"] == "ArithmeticError"
    assert "project (tests/consumers/test_failed_attempts.py:" in letter["errorPlace"]
    assert [kind for kind, _, _ in calls.reported] == ["ArithmeticError"] * 2


def test_a_refusal_of_the_context_is_shown_where_the_handler_called_it(
    connection, store, database_url
):
    """It is our error, raised in a line of the handler."""

    def handle(command, till, context):
        context.write("no message", "other-1")

    pay(store, "1")
    drain(Calls(handler=handle).component, database_url)
    place = the_letter(connection)["errorPlace"]
    assert "handle (tests/consumers/test_failed_attempts.py:" in place


# Hooks


def test_a_hook_is_called_for_each_attempt_with_what_becomes_of_the_message(
    connection, store, database_url
):
    """It gets the handler's own exception, and no transaction is open meanwhile."""
    calls = Calls()
    open_transactions = []

    @calls.component.on_error
    def look(error, attempt):
        rows = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name LIKE 'reservation %' AND state LIKE 'idle in transaction%'"
        )
        open_transactions.extend(rows.fetchone())

    pay(store, "1", "2")
    drain(calls.component, database_url)
    assert Counter(calls.reported) == {("Declined", 1, "waiting"): 2, ("Declined", 2, "dead"): 2}
    assert open_transactions == [0] * 4
    error, attempt, variables = calls.during[0]
    assert traceback.extract_tb(error.__traceback__)[-1].name == "handle"
    (stored,) = store.read_stream(f"{TILLS}-1")
    at = stored.global_position
    assert attempt == FailedAttempt(
        "till", TILLS, stored.id, "Pay", f"{TILLS}-1", at, "till-1", 1, "waiting"
    )
    assert variables == {  # so that what a hook logs can be found
        "consumer": "till",
        "category": TILLS,
        "type": "Pay",
        "message_id": stored.id,
        "entity": "till-1",
    }


def test_an_attempt_that_waits_is_reported_once_its_batch_is_committed(
    connection, store, database_url
):
    """Its letter is there already when the hook is called; the last attempt is dead."""
    calls = Calls(retry=Retry(attempts=2, first=timedelta(hours=1), on=Declined))
    seen = []
    calls.component.on_error(lambda error, attempt: seen.append(len(letters(connection))))
    pay(store, "1")
    drain(calls.component, database_url)
    assert calls.reported == [("Declined", 1, "waiting")]
    assert seen == [1]
    connection.execute("UPDATE reservation.dead_letters SET next_attempt_at = now()")
    drain(calls.component, database_url)
    assert calls.reported[1:] == [("Declined", 2, "dead")]


def test_each_attempt_of_an_async_handler_is_reported(store, database_url):
    """As that of any other."""

    async def handle(command, till, context):
        return calls.handle(command, till, context)

    calls = Calls(handler=handle)
    pay(store, "1")
    drain(calls.component, database_url)
    assert calls.reported == [("Declined", 1, "waiting"), ("Declined", 2, "dead")]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_a_hook_raises_is_logged_and_changes_nothing(store, database_url, caplog, error):
    """Whatever it is; the further hooks are called."""
    structlog.reset_defaults()
    calls = Calls(times=2)
    seen = []

    @calls.component.on_error
    def broken(_error, attempt):
        raise error("secret")

    calls.component.on_error(lambda error, attempt: seen.append(attempt.outcome))
    pay(store, "1", "2")
    with sigint_taken_over():
        assert drain(calls.component, database_url).counts == {"handled": 2}
    assert seen == ["waiting"] * 2
    failed, _ = [line.message for line in caplog.records if "error_hook_failed" in line.message]
    assert f"{error.__name__} in " in failed
    assert "broken (tests/consumers/test_failed_attempts.py:" in failed
    assert "secret" not in caplog.text


def test_a_rejection_is_not_reported(store, database_url):
    """It is no failure of the message."""
    calls = Calls(Reject)
    pay(store, "1")
    drain(calls.component, database_url)
    assert calls.reported == []


def test_a_message_that_nothing_handles_is_reported_with_our_error(store, database_url):
    """There is no exception of the component's."""
    calls = Calls()
    store.write(Paid(1), f"{TILLS}-1")
    drain(calls.component, database_url)
    ((error, attempt, _),) = calls.during
    assert isinstance(error, UnknownTypeError)
    assert (attempt.attempt, attempt.outcome) == (1, "dead")


async def asynchronous(error, attempt): ...


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (lambda error: None, "cannot be called with error, attempt"),
        (None, "is not a function"),
        (asynchronous, "is async"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused(hook, words):
    """When it is declared, in one line."""
    with pytest.raises(DeclarationError, match=words):
        Component("till", id="till_id").on_error(hook)


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
