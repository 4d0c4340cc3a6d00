"""The functions of breakers: what all processes see of them."""

from contextlib import ExitStack
from datetime import timedelta

import psycopg
import pytest

OF = {"consumer": "payment", "category": "payment:command"}
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


class Handler:
    """What a process tells the store of a handler's provider."""

    def __init__(self, connection, *types):
        self.connection = connection
        self.types = list(types) or ["Capture"]

    def call(self, function, *arguments):
        places = ", ".join(["%s"] * (2 + len(arguments)))
        query = f"SELECT * FROM reservation.{function}({places})".encode()
        return self.connection.execute(query, [*OF.values(), *arguments]).fetchall()

    def state(self):
        """Return whether it is open, whether there is a probe, and whether a success is news."""
        found = [row[2:] for row in self.call("breaker_states") if row[0] == self.types[0]]
        return [(wait is not None, probing, news) for wait, probing, news in found]

    def fails(self, *, failures=2, within=MINUTE, open_for=MINUTE, is_probe=False, error="X"):
        arguments = (self.types, failures, within, open_for, error, is_probe)
        (row,) = self.call("breaker_failed", *arguments)
        return row

    def succeeds(self, *, is_probe=False):
        ((seconds,),) = self.call("breaker_succeeded", self.types[0], is_probe)
        return seconds

    def claims(self, open_for=MINUTE):
        ((claimed, *_),) = self.call("claim_probe", self.types[0], open_for)
        return claimed

    def opens(self, **options):
        while not self.fails(**options)[2]:
            pass

    def passes(self, seconds):
        """Let time pass."""
        self.connection.execute(
            "UPDATE reservation.breakers SET opened_at = opened_at - make_interval(secs => %(s)s),"
            " until = until - make_interval(secs => %(s)s), failed_at = ARRAY("
            "   SELECT f - make_interval(secs => %(s)s) FROM unnest(failed_at) AS f)",
            {"s": seconds},
        )


@pytest.fixture
def capture(connection):
    return Handler(connection)


def test_enough_failures_within_the_time_open_it(capture):
    """The last of them is told so, with the seconds until a message may try."""
    assert capture.state() == []
    assert capture.fails(failures=3) == (None, False, False, False)
    assert capture.fails(failures=3)[2] is False
    wait, is_probing, has_opened, _ = capture.fails(failures=3)
    assert (wait, is_probing, has_opened) == (60.0, False, True)
    assert capture.state() == [(True, False, True)]


def test_old_failures_do_not_count(capture):
    """Only those within the time do, whatever lies between them."""
    capture.fails(failures=3)
    capture.passes(61)
    capture.fails(failures=3)
    capture.succeeds()
    assert capture.fails(failures=3)[2] is False
    assert capture.fails(failures=3)[2] is True


def test_a_single_failure_can_open_it(capture):
    assert capture.fails(failures=1)[2] is True


def test_a_lower_number_of_failures_holds_from_the_next_one_on(capture):
    """The declaration may have changed meanwhile."""
    for _ in range(5):
        assert capture.fails(failures=10)[2] is False
    assert capture.fails(failures=3)[2] is True


def test_failures_of_calls_that_were_going_on_do_not_hold_it_open_for_longer(capture):
    """The time until the probe is that of the failure that opened it."""
    capture.opens()
    capture.passes(50)
    wait, _, has_opened, _ = capture.fails()
    assert (has_opened, wait < 11) == (False, True)


def test_one_message_at_a_time_tries_after_the_pause(capture, database_url):
    """The probe is claimed by one of all processes, and by another one if that does not end."""
    capture.opens()
    assert not capture.claims()
    capture.passes(61)
    assert capture.state() == [(True, False, True)]
    with ExitStack() as stack:
        others = [
            Handler(stack.enter_context(psycopg.connect(database_url, autocommit=True)))
            for _ in range(3)
        ]
        assert [one.claims() for one in others] == [True, False, False]
    assert capture.state() == [(True, True, True)]
    capture.passes(61)
    assert capture.claims()


def test_a_probe_is_claimed_once_by_those_that_claim_at_the_same_time(capture, database_url):
    """Who waits for the lock of the row sees what the other one did."""
    capture.opens()
    capture.passes(61)
    with (
        psycopg.connect(database_url) as first,
        psycopg.connect(database_url, autocommit=True) as second,
    ):
        assert Handler(first).claims()
        with second.pipeline():
            waiting = second.execute(
                "SELECT claimed FROM reservation.claim_probe(%s, %s, 'Capture', '1 min')",
                [*OF.values()],
            )
            first.commit()
        assert waiting.fetchone() == (False,)


def test_a_probe_that_succeeds_closes_it(capture):
    """Whoever made it learns for how long it was open; the failures before are forgotten."""
    capture.opens()
    capture.passes(90)
    assert capture.claims()
    assert 90 <= capture.succeeds(is_probe=True) < 120
    assert capture.state() == [(False, False, False)]
    assert capture.fails()[2] is False
    assert capture.succeeds(is_probe=True) is None


def test_a_probe_that_fails_opens_it_again(capture):
    """It is open since it opened first, and for another pause."""
    capture.opens(error="First")
    capture.passes(61)
    assert capture.claims(SECOND)
    wait, is_probing, has_opened, _ = capture.fails(is_probe=True, error="Second")
    assert (wait, is_probing, has_opened) == (60.0, False, False)
    since, error = capture.connection.execute(
        "SELECT now() - opened_at, error_type FROM reservation.breakers"
    ).fetchone()
    assert (since > MINUTE, error) == (True, "Second")


def test_a_probe_that_says_nothing_of_the_provider_opens_it_again(capture):
    """Its failure is not counted."""
    capture.opens()
    capture.passes(61)
    capture.claims(SECOND)
    capture.call("probe_ended", "Capture", MINUTE)
    assert capture.state() == [(True, False, True)]
    assert not capture.claims()


def test_the_success_of_another_call_does_not_close_it(capture):
    """It may have begun before the outage; only a probe has begun after that."""
    capture.opens()
    assert capture.succeeds() is None
    assert capture.state() == [(True, False, False)]


def test_a_late_failure_of_a_probe_counts_as_any(capture):
    """Another one has closed the breaker after the probe's time was over."""
    capture.opens()
    capture.passes(61)
    capture.claims(SECOND)
    capture.passes(2)
    capture.claims()
    capture.succeeds(is_probe=True)
    assert capture.fails(is_probe=True)[:3] == (None, False, False)
    assert capture.fails()[2] is True


def test_a_success_is_news_once_after_each_failure(capture):
    """So a handler that never fails reports nothing."""
    capture.fails(failures=9)
    assert capture.state() == [(False, False, True)]
    capture.succeeds()
    assert capture.state() == [(False, False, False)]
    capture.fails(failures=9)
    assert capture.state() == [(False, False, True)]


def test_a_message_fails_alone_if_the_handler_succeeded_since_the_failure_before(capture):
    """Whether the provider answers others is known from what they did last."""
    assert [capture.fails(failures=9)[3] for _ in range(2)] == [False, False]
    capture.succeeds()
    assert [capture.fails(failures=9)[3] for _ in range(2)] == [True, False]
    capture.opens()
    capture.passes(61)
    capture.succeeds(is_probe=True)
    assert [capture.fails(failures=9)[3] for _ in range(2)] == [True, False]


def test_breakers_are_those_that_are_declared(connection):
    """What a process declares is there, its state is kept, and what it does not is removed."""
    connection.execute(
        "SELECT reservation.declare_breakers(%s, %s, %s)",
        [*OF.values(), '[["Capture", "Charge"], ["Refund"]]'],
    )
    Handler(connection, "Refund").opens()
    connection.execute(
        "SELECT reservation.declare_breakers(%s, %s, %s)",
        [*OF.values(), '[["Refund"], ["Void"]]'],
    )
    rows = connection.execute(
        "SELECT type, types, opened_at IS NULL FROM reservation.breakers ORDER BY type"
    ).fetchall()
    assert rows == [("Refund", ["Refund"], False), ("Void", ["Void"], True)]
    connection.execute("SELECT reservation.declare_breakers(%s, %s, '[]')", [*OF.values()])
    assert Handler(connection, "Refund").state() == []


def test_breakers_of_handlers_are_separate(connection):
    """Each counts the failures of its own handler."""
    one, other = Handler(connection, "Capture"), Handler(connection, "Refund")
    one.opens()
    other.fails()
    assert [one.state(), other.state()] == [[(True, False, True)], [(False, False, True)]]
