"""Attempts that wait: policies, `RetryLater`, and messages that hold up their entity alone."""

import contextlib
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import Cursor, errors

import consumers
from consumers.dead_letters import administration
from consumers.dead_letters.letters import DeadLetters
from consumers.dead_letters.stored_letters import Selection
from consumers.runtime.backoff import Backoff
from reservation import Component, Processed, Retry, RetryLater, Revisions, StateBased
from reservation.errors import DeclarationError
from reservation.handlers.retry import MOST_ATTEMPTS
from reservation.postgres.connection import connect
from reservation.store.schema.roles import grant
from tests import consuming
from tests.bank import claim, new_batch
from tests.commands import invoke_cli
from tests.consuming import until
from tests.processes import PATIENCE

CATEGORY = "refund:command"
SOON = Retry(attempts=1000, first="10ms", most="20ms", on=ConnectionError)
FIVE = Retry(attempts=5, first="1ms", most="2ms", on=ConnectionError)


@dataclass(frozen=True)
class Refund:
    payment_id: str
    refund_id: str
    revision: int = 0


@dataclass(frozen=True)
class Refunded:
    payment_id: str
    refund_id: str


class Provider:
    """A component that asks a provider, which fails for those in `down`."""

    def __init__(self, connection, retry=SOON, **options):
        self.connection = connection
        self.down = set()
        self.error = ConnectionError
        self.calls = []
        self.before = lambda context: None
        self.component = Component("refund", id="payment_id")
        self.component.handle(Refund, retry=retry, **options)(self.handle)

    def handle(self, command, entity, context):
        self.calls.append(command.refund_id)
        self.before(context)
        if command.refund_id in self.down:
            raise self.error("secret")
        return context.follow(command, Refunded)

    def send(self, store, *names):
        """Write refunds, each named by its payment's number and a letter, as in 1a."""
        for name in names:
            number = name.rstrip("abcdefgh")
            store.write(Refund(number, name, ord(name[-1])), f"{CATEGORY}-{number}")

    def drain(self, database_url, **options):
        """Handle all that is to be handled now."""
        return consumers.drain(self.component, database_url, **options).counts

    def drain_all(self, database_url):
        """Handle all messages, those that wait included."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.drain(database_url)
            if not {"waiting", "parked"} & set(self.states().values()):
                return
            assert "dead" not in self.states().values()
            assert time.monotonic() < deadline, self.states()

    def refunded(self, store):
        """Return the refunds that were made, in order."""
        return [json.loads(event.data)["refundId"] for event in store.read_category("refund")]

    def states(self):
        """Return the state of each letter, by its refund."""
        rows = self.connection.execute(
            "SELECT m.data->>'refundId', "
            "CASE WHEN l.state = 'dead' AND l.next_attempt_at IS NOT NULL THEN 'waiting' "
            "ELSE l.state END "
            "FROM reservation.dead_letters l "
            "JOIN message_store.messages m USING (global_position) ORDER BY global_position"
        )
        return dict(rows.fetchall())

    def letters(self):
        """Return the letters, by their refund."""
        names = dict(
            self.connection.execute(
                "SELECT global_position, data->>'refundId' FROM message_store.messages"
            ).fetchall()
        )
        return {
            names[letter.global_position]: letter
            for letter in administration.find(self.connection, Selection(), states=None)
        }


@contextlib.contextmanager
def running(provider, database_url, category=CATEGORY, **options):
    """Run the consumer of a provider's component in a thread, while the block lasts."""
    with consuming.running(provider.component, database_url, category, **options) as (thread, _):
        yield thread


@pytest.fixture
def provider(connection):
    return Provider(connection)


@pytest.fixture
def patient(connection):
    """Give a component whose messages wait for an hour."""
    return Provider(connection, Retry(attempts=5, first="1h", on=ConnectionError))


# The policy


def test_the_interval_doubles_up_to_the_longest_and_is_shortened_at_random():
    """The interval doubles up to the longest, and each is shortened by up to a half."""
    retry = Retry(attempts=10, first="1s", most="10s")
    for attempt, longest in enumerate([1, 2, 4, 8, 10, 10], start=1):
        drawn = [retry.interval(attempt) for _ in range(200)]
        assert longest / 2 <= min(drawn) < longest * 0.6 < longest * 0.9 < max(drawn) <= longest
    assert retry.interval(MOST_ATTEMPTS) <= 10


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"attempts": 0}, r"attempts=0 is not from 1 to 1000000"),
        ({"attempts": True}, "attempts=True is not a whole number; write attempts=10"),
        ({"attempts": "3"}, "attempts='3' is not a whole number"),
        ({"attempts": 3, "first": "-1s"}, "first='-1s' is negative; write a number and ms"),
        ({"attempts": 3, "first": timedelta(-1)}, "first=-1d is negative"),
        ({"attempts": 3, "first": "0s"}, "first=0s is too short; wait at least 1ms"),
        ({"attempts": 3, "first": "2h"}, "most=1h is shorter than first=2h; exchange them"),
        ({"attempts": 3, "most": 5}, "most=5 is not a time span"),
        ({"attempts": 3, "on": KeyboardInterrupt}, "on= names KeyboardInterrupt, which is not"),
        ({"attempts": 3, "on": [ValueError("x")]}, r"on= names ValueError\('x'\), which is not"),
        ({"attempts": 3, "on": ()}, "names no exception; leave it out for every Exception"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_in_one_line(options, problem):
    """What a policy cannot be is refused in one line, with the way out."""
    with pytest.raises(DeclarationError, match=problem) as caught:
        Retry(**options)
    assert "\n" not in str(caught.value)


def test_what_is_no_policy_is_refused_where_it_is_declared():
    """A handler's policy is a `Retry`, and its message is named in the error."""
    component = Component("refund", id="payment_id")
    for given, shown in ((Retry, "the class Retry"), ("1s", "a str")):
        with pytest.raises(DeclarationError, match=f"retry= of Refund is {shown}; write retry="):
            component.handle(Refund, retry=given)(lambda command, entity, context: None)
        with pytest.raises(DeclarationError, match=f"retry= of Refund is {shown}; write retry="):
            component.initiate(Refund, retry=given)(lambda command, context: Refunded("", ""))


@pytest.mark.parametrize("after", ["soon", "-5s", 90, timedelta(seconds=-1)])
def test_a_wait_that_cannot_be_is_refused_where_it_is_asked_for(after):
    """`RetryLater` takes a time span, and says so."""
    with pytest.raises(ValueError, match=r"^RetryLater: .*write a number and ms"):
        RetryLater(after)


# Waiting


def test_a_message_that_waits_holds_up_its_own_entity_alone(store, patient, database_url):
    """Others are handled while a message waits, and later ones of its entity wait behind it."""
    patient.down = {"1a"}
    patient.send(store, "1a", "2a", "1b", "3a", "1c")
    counts = patient.drain(database_url)
    assert counts == {"handled": 2, "waiting": 1, "parked": 2}
    patient.send(store, "1d", "2b")
    assert patient.drain(database_url) == {"handled": 1, "parked": 1}
    assert patient.refunded(store) == ["2a", "3a", "2b"]
    assert patient.states() == {"1a": "waiting", "1b": "parked", "1c": "parked", "1d": "parked"}
    assert patient.calls == ["1a", "2a", "3a", "2b"]


def test_what_cannot_be_decoded_is_parked_behind_a_message_that_waits(
    connection, store, patient, database_url
):
    """All of a batch is decoded first, and still each message waits for those before it."""
    patient.down = {"1a"}
    patient.send(store, "1a")
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Odd', '{}')",
        [f"{CATEGORY}-1"],
    )
    patient.send(store, "1b")
    assert patient.drain(database_url) == {"waiting": 1, "parked": 2}
    patient.down = set()
    administration.retry(connection, Selection(), [])
    patient.drain(database_url)
    found = administration.find(connection, Selection(), states=None)
    assert [letter.state for letter in found] == ["handled", "dead", "parked"]
    assert found[1].reason == "unknown_type"


def test_once_the_provider_is_back_all_take_effect_in_order(store, provider, database_url):
    """What waited, and what was parked behind it, takes effect in order, with no letter left."""
    provider.down = {"1a", "2b"}
    provider.send(store, "1a", "2a", "1b", "2b", "1c", "2c")
    with running(provider, database_url) as thread:
        until(lambda: provider.calls.count("1a") > 2, thread)
        provider.down = set()
        until(lambda: len(provider.refunded(store)) == 6, thread)
    assert [name for name in provider.refunded(store) if name[0] == "1"] == ["1a", "1b", "1c"]
    assert [name for name in provider.refunded(store) if name[0] == "2"] == ["2a", "2b", "2c"]
    assert set(provider.states().values()) == {"handled"}
    assert all(letter.next_attempt_at is None for letter in provider.letters().values())


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_after_its_last_attempt_a_message_is_a_plain_dead_letter(
    connection, store, database_url, batch_size
):
    """A policy's last attempt makes a dead letter, whose entity waits for people."""
    provider = Provider(connection, FIVE)
    provider.down = {"1a"}
    provider.send(store, "1a", "1b", "2a")
    with running(provider, database_url, batch_size=batch_size) as thread:
        until(lambda: provider.states().get("1a") == "dead", thread)
        until(lambda: provider.refunded(store) == ["2a"], thread)
    letter = provider.letters()["1a"]
    assert (letter.reason, letter.attempts, letter.next_attempt_at) == ("handler", 5, None)
    assert "raised ConnectionError in Provider.handle (tests/test_retry.py:" in letter.error
    assert "secret" not in letter.error
    assert provider.calls.count("1a") == 5
    assert provider.states() == {"1a": "dead", "1b": "parked"}


def test_another_exception_fails_a_message_as_without_a_policy(
    store, provider, database_url, monkeypatch
):
    """What `on=` does not name is tried `attempts` times directly."""
    monkeypatch.setattr(Backoff, "next", lambda self: 0.0)
    provider.error, provider.down = ValueError, {"1a"}
    provider.send(store, "1a")
    provider.drain(database_url)
    assert provider.states() == {"1a": "dead"}
    assert provider.letters()["1a"].attempts == 3


@pytest.mark.parametrize("policy", [None, Retry(attempts=9, on=ValueError)])
@pytest.mark.parametrize("used", [False, True])
def test_a_handler_asks_for_another_attempt_itself(connection, store, database_url, policy, used):
    """`RetryLater` makes a message wait so long, with a policy and without, and undoes the call."""
    connection.execute("CREATE TABLE asked (refund text)")
    provider = Provider(connection, policy)
    provider.error, provider.down = (lambda text: RetryLater("90s", text)), {"1a", "2a"}

    def note(context):
        if used:
            context.connection.execute("INSERT INTO asked VALUES (%s)", [context.message.id])

    provider.before = note
    provider.send(store, "1a", "2a", "3a")
    began = datetime.now(UTC)
    assert provider.drain(database_url) == {"waiting": 2, "handled": 1}
    for name in ("1a", "2a"):
        letter = provider.letters()[name]
        wait = letter.next_attempt_at - began
        assert timedelta(seconds=90) <= wait < timedelta(seconds=90 + PATIENCE)
        assert letter.attempts == 1
    assert provider.refunded(store) == ["3a"]
    ((rows,),) = connection.execute("SELECT count(*) FROM asked").fetchall()
    assert rows == used


def test_without_a_policy_a_handler_may_ask_as_often_as_it_likes(store, connection, database_url):
    """`RetryLater` without a policy knows no last attempt."""
    provider = Provider(connection, None)
    provider.error, provider.down = (lambda text: RetryLater("1ms")), {"1a"}
    provider.send(store, "1a")
    with running(provider, database_url) as thread:
        until(lambda: provider.calls.count("1a") > 12, thread)
        provider.down = set()
        until(lambda: provider.states() == {"1a": "handled"}, thread)


def test_a_policys_attempts_are_counted_when_the_handler_asks_for_more(
    connection, store, database_url
):
    """With a policy, `RetryLater` counts as one of its attempts."""
    provider = Provider(connection, FIVE)
    provider.error, provider.down = (lambda text: RetryLater("1ms")), {"1a"}
    provider.send(store, "1a")
    with running(provider, database_url) as thread:
        until(lambda: provider.states() == {"1a": "dead"}, thread)
    assert provider.calls.count("1a") == 5


def test_what_a_failed_handler_did_in_the_database_is_undone(
    connection, store, provider, database_url
):
    """Of a handler that fails nothing stays, even after a statement that failed; others' stays."""
    connection.execute("CREATE TABLE asked (refund text NOT NULL)")
    provider.error = lambda text: ConnectionError(text)

    def note(context):
        name = json.loads(context.message.data)["refundId"]
        context.connection.execute("INSERT INTO asked VALUES (%s)", [name])
        if name == "2a" and "2a" in provider.down:
            with contextlib.suppress(errors.NotNullViolation):
                context.connection.execute("INSERT INTO asked VALUES (NULL)")

    provider.before, provider.down = note, {"1a", "2a"}
    provider.send(store, "3a", "1a", "4a", "2a", "5a")
    with running(provider, database_url) as thread:
        until(lambda: len(provider.refunded(store)) == 3, thread)
        asked = connection.execute("SELECT refund FROM asked ORDER BY 1").fetchall()
        assert asked == [("3a",), ("4a",), ("5a",)]
        provider.down = set()
        until(lambda: len(provider.refunded(store)) == 5, thread)
    asked = connection.execute("SELECT refund FROM asked ORDER BY 1").fetchall()
    assert asked == [(f"{n}a",) for n in (1, 2, 3, 4, 5)]


def test_the_wait_is_in_the_database_and_outlasts_the_process(connection, store, database_url):
    """Another process makes the next attempt when it is due, and not before."""
    provider = Provider(connection, Retry(attempts=2, first="1h", most="1h"))
    provider.down = {"1a"}
    provider.send(store, "1a", "1b")
    assert provider.drain(database_url) == {"waiting": 1, "parked": 1}
    provider.down = set()
    assert provider.drain(database_url) == {}
    assert provider.calls == ["1a"]
    connection.execute("UPDATE reservation.dead_letters SET next_attempt_at = now()")
    provider.drain(database_url)
    assert provider.refunded(store) == ["1a", "1b"]


def test_the_consumer_wakes_up_for_the_next_attempt_and_asks_for_nothing_until_then(
    connection, store, database_url, monkeypatch
):
    """An idle consumer sends no more statements while a message waits, and wakes up in time."""
    provider = Provider(connection, Retry(attempts=2, first="4s", most="4s"))
    provider.down = {"1a"}
    # Up again after the first call, so that the second one is not too early on a slow machine.
    provider.error = lambda text: provider.down.clear() or ConnectionError(text)
    provider.send(store, "1a")
    asked = []
    line_up = DeadLetters.line_up
    monkeypatch.setattr(
        DeadLetters,
        "line_up",
        lambda *arguments: asked.append(time.monotonic()) or line_up(*arguments),
    )
    with running(provider, database_url) as thread:
        letter = until(lambda: provider.letters().get("1a"), thread)
        until(lambda: provider.states() == {"1a": "handled"}, thread)
        ((late,),) = connection.execute(
            "SELECT extract(epoch FROM time - %s) FROM message_store.messages "
            "WHERE type = 'Refunded'",
            [letter.next_attempt_at.astimezone(UTC).replace(tzinfo=None)],
        ).fetchall()
    assert len(asked) == 1
    assert 0 <= late < 2


# Strategies


@pytest.mark.parametrize(
    "once",
    [Processed(key="refund_id"), Processed(), Revisions("revision", source=None)],
    ids=["key", "processed", "revisions"],
)
def test_a_message_that_waits_is_not_taken_for_handled(connection, store, database_url, once):
    """A strategy forgets a message whose handler failed, and knows it once it is handled."""
    provider = Provider(connection, SOON, once=once)
    provider.down = {"1a", "2a"}
    provider.send(store, "1a", "2a", "3a", "1b")
    provider.drain(database_url, batch_size=1000)
    provider.down = set()
    provider.drain_all(database_url)
    assert sorted(provider.refunded(store)) == ["1a", "1b", "2a", "3a"]
    assert set(provider.states().values()) == {"handled"}


def test_of_a_reissue_in_the_batch_in_which_the_first_failed_one_takes_effect(
    connection, store, provider, database_url
):
    """A reissue beside its first issue, which failed, is not taken for a duplicate of it."""
    provider = Provider(connection, SOON, once=Processed(key="refund_id"))
    provider.down = {"1a"}
    provider.send(store, "1a", "1a", "1a")
    provider.drain(database_url)
    provider.down = set()
    provider.drain_all(database_url)
    assert provider.refunded(store) == ["1a"]


@dataclass
class Total:
    refunds: int = 0


def test_a_message_of_a_two_phase_strategy_waits_too(connection, store, database_url):
    """A handler with a state of versions is tried again later like any other."""
    provider = Provider(connection)
    provider.component = Component("refund", entity=Total, id="payment_id")

    def handle(command, entity, context):
        entity.refunds += 1
        return provider.handle(command, entity, context)

    provider.component.handle(Refund, once=StateBased(), retry=SOON)(handle)
    provider.down = {"1a"}
    provider.send(store, "1a", "2a", "1b")
    provider.drain(database_url)
    assert provider.states()["1b"] in ("parked", "retry")
    provider.down = set()
    provider.drain_all(database_url)
    assert sorted(provider.refunded(store)) == ["1a", "1b", "2a"]


def test_an_initiator_waits_too(connection, store, database_url):
    """A command that starts a stream is tried again later, and starts it once."""
    provider = Provider(connection)
    provider.component = Component("refund", id="payment_id")
    provider.component.initiate(Refund, retry=SOON)(
        lambda command, context: provider.handle(command, None, context)
    )
    provider.down = {"1a"}
    provider.send(store, "1a", "2a", "1a")
    provider.drain(database_url)
    provider.down = set()
    provider.drain_all(database_url)
    assert sorted(provider.refunded(store)) == ["1a", "2a"]


# Many at a time


class Counting(Cursor):
    """A cursor that counts the statements of its connection."""

    statements = 0

    def execute(self, *arguments, **options):
        Counting.statements += 1
        return super().execute(*arguments, **options)


def counted(connection, call):
    """Return how many statements a call sends, and what it returns."""
    connection.cursor_factory, Counting.statements = Counting, 0
    try:
        result = call()
        return Counting.statements, result
    finally:
        connection.cursor_factory = Cursor


def test_failing_messages_take_no_statement_of_their_own(connection, store, database_url):
    """A batch and its retry have as many statements for 200 failing messages as for two."""
    provider = Provider(connection, Retry(attempts=5, first="1ms", most="1ms"))
    statements = []
    for number in (2, 200):
        names = [f"{number}{n}a" for n in range(number)]
        provider.down = set(names)
        provider.send(store, *names)
        positions = claim(connection, "refund", CATEGORY)
        batch = new_batch(connection, provider.component, CATEGORY)
        sent, result = counted(connection, lambda: batch.run(positions, 1000))  # noqa: B023
        assert result.counts == {"waiting": number}
        until(
            lambda: (
                len(DeadLetters("refund", CATEGORY).line_up(connection, [0], 1, 1000)) >= number  # noqa: B023
            )
        )
        letters = [
            letter
            for letter in DeadLetters("refund", CATEGORY).line_up(connection, [0], 1, 1000)
            if letter.entity.startswith(f"refund-{number}")
        ]
        again, outcome = counted(
            connection,
            lambda: batch.retry_transaction.run(positions, letters),  # noqa: B023
        )
        assert (outcome.handled, outcome.waiting) == (0, len(letters))
        statements.append((sent, again))
    assert statements[0] == statements[1]
    assert max(statements[0]) < 20


# What people do


def test_people_retry_discard_and_correct_what_waits(connection, store, patient, database_url):
    """A message that waits can be retried now, discarded or corrected, as a dead letter can."""
    patient.down = {"1a", "2a", "3a", "4a"}
    patient.send(store, "1a", "2a", "3a", "1b", "2b", "4a")
    patient.drain(database_url)
    at = {name: letter.global_position for name, letter in patient.letters().items()}
    administration.retry(connection, Selection(), [at["1a"]])
    administration.discard(connection, Selection(), [at["2a"]])
    patient.down = {"2a", "3a", "4a"}
    patient.drain(database_url)
    assert patient.refunded(store) == ["1a", "2b", "1b"] or patient.refunded(store) == [
        "1a",
        "1b",
        "2b",
    ]
    assert patient.letters()["1a"].next_attempt_at is None
    assert patient.states()["2a"] == "discarded"
    from consumers.correcting.correct import correct

    data = json.dumps({"paymentId": "3", "refundId": "3c", "revision": 1}).encode()
    correct(connection, patient.component, CATEGORY, at["3a"], data, "a typing error")
    patient.drain(database_url)
    assert "3c" in patient.refunded(store)
    administration.retry(connection, Selection(), [])
    patient.down = set()
    patient.drain(database_url)
    assert "4a" in patient.refunded(store)


def test_a_retry_that_people_asked_for_begins_the_policy_anew(
    connection, store, patient, database_url
):
    """After a retry that was asked for, a message has all attempts of its policy again."""
    patient.down = {"1a"}
    patient.send(store, "1a")
    for _ in range(4):
        patient.drain(database_url)
        connection.execute("UPDATE reservation.dead_letters SET next_attempt_at = now()")
    assert patient.letters()["1a"].attempts == 4
    administration.retry(connection, Selection(), [])
    patient.drain(database_url)
    letter = patient.letters()["1a"]
    assert letter.next_attempt_at is not None
    assert letter.attempts == 1


def test_a_former_program_that_changes_a_letters_state_ends_its_wait(
    connection, store, patient, database_url
):
    """Whoever sets another state, knowing nothing of waits, leaves no attempt behind."""
    patient.down = {"1a"}
    patient.send(store, "1a")
    patient.drain(database_url)
    connection.execute(
        "UPDATE reservation.dead_letters SET state = 'retry', attempts = 0, changed_at = now()"
    )
    connection.execute("UPDATE reservation.dead_letters SET state = 'dead'")
    assert patient.letters()["1a"].next_attempt_at is None
    assert patient.drain(database_url) == {}


# What is shown


def test_status_and_list_show_when_the_next_attempt_is_due(store, patient, database_url):
    """The number of waiting messages and the time of the next attempt are shown, and in JSON."""
    patient.down = {"1a", "2a"}
    patient.send(store, "1a", "2a", "1b")
    patient.drain(database_url)
    due = min(patient.letters()[name].next_attempt_at for name in ("1a", "2a"))
    env = {"RESERVATION_DATABASE_URL": database_url}
    shown = json.loads(invoke_cli("status", "--json", env=env).stdout)
    (partition,) = shown["partitions"]
    assert (partition["dead"], partition["waiting"], partition["parked"]) == (0, 2, 1)
    assert datetime.fromisoformat(partition["nextAttemptAt"]) == due
    assert "2 waiting, the first until" in " ".join(
        invoke_cli("status", env=env | {"COLUMNS": "300"}).stdout.split()
    )
    table = invoke_cli("dead-letters", "list", env=env | {"COLUMNS": "300"}).stdout
    assert table.endswith("For more: reservation dead-letters show POSITION\n")
    assert f"{due.astimezone():%Y-%m-%d %H:%M}" in table
    listed = json.loads(invoke_cli("dead-letters", "list", "--json", env=env).stdout)
    times = [letter["nextAttemptAt"] for letter in listed["deadLetters"]]
    assert [moment is None for moment in times] == [False, False, True]
    assert min(datetime.fromisoformat(moment) for moment in times[:2]) == due


def test_the_log_has_one_event_for_those_that_failed_alike(store, connection, database_url):
    """Messages of a batch that failed at the same place are one event, with the first attempt."""
    from consumers.loop.outcome_logging import log_letters

    provider = Provider(connection, Retry(attempts=5, first="1h"))
    provider.down = {"1a", "2a", "3a"}
    provider.send(store, "1a", "2a", "3a")
    positions = claim(connection, "refund", CATEGORY)
    result = new_batch(connection, provider.component, CATEGORY).run(positions, 10)
    events = []

    class Log:
        def warning(self, event, **fields):
            events.append((event, fields))

    log_letters(Log(), result.letters)
    ((event, fields),) = events
    assert (event, fields["count"], fields["type"], fields["attempts"]) == (
        "message_waiting",
        3,
        "Refund",
        1,
    )
    assert 1800 <= fields["next_attempt_in"] <= 3600
    assert "secret" not in str(fields)


def test_a_role_of_an_operator_retries_what_waits(connection, store, patient, database_url):
    """The rights of an operator are enough to retry what waits."""
    patient.down = {"1a"}
    patient.send(store, "1a")
    patient.drain(database_url)
    with connect(database_url, autocommit=True) as other:
        try:
            grant(other, "operator", "retrying_operator")
            other.execute("SET ROLE retrying_operator")
            administration.retry(other, Selection(), [])
        finally:
            other.execute("RESET ROLE")
            other.execute("DROP OWNED BY retrying_operator")
            other.execute("DROP ROLE retrying_operator")
    assert patient.letters()["1a"].next_attempt_at is None
    patient.down = set()
    patient.drain(database_url)
    assert patient.refunded(store) == ["1a"]


# Subscriptions


def test_a_message_of_a_subscribed_category_waits_too(connection, store, database_url):
    """A handler of another component's events is tried again later like any other."""
    provider = Provider(connection)
    provider.component = Component("ledger", id="payment_id")
    provider.component.on(Refunded, category="refund", retry=SOON)(
        lambda event, entity, context: provider.handle(
            Refund(event.payment_id, event.refund_id), None, context
        )
    )
    provider.down = {"1a"}
    for name in ("1a", "2a", "1b"):
        store.write(Refunded(name[0], name), f"refund-{name[0]}")
    assert provider.drain(database_url) == {"handled": 1, "waiting": 1, "parked": 1}
    provider.down = set()
    provider.drain_all(database_url)
    handled = [json.loads(event.data)["refundId"] for event in store.read_category("ledger")]
    assert sorted(handled) == ["1a", "1b", "2a"]
    assert handled.index("1a") < handled.index("1b")
