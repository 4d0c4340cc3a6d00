"""Letters with data: what could not be handled takes effect with it, under its key, once."""

import contextlib
import itertools
import json
import sys
from dataclasses import dataclass, make_dataclass
from functools import partial

import psycopg
import pytest

import consumers
from reservation import Component, Key
from reservation.strategies import Processed, Revisions, StateBased
from tests.apps.bank import address, broken, drain
from tests.consumers.builders import dead_letters, decide, read_again, write_raw
from tests.consumers.builders import letters as letter_rows
from tests.support.commands import invoke_cli
from tests.support.controls import COMMANDS, TIME, deposit, open_
from tests.support.pages import ROOT, blocks, commands

BAD = {"depositId": "d1", "accountId": "123", "amount": "a lot", "time": TIME.isoformat()}
GOOD = BAD | {"amount": 20}
OTHER = BAD | {"amount": 30}


def letters(connection):
    """Return each letter's state and reason, by its global position."""
    return {
        row["global_position"]: (row["state"], row["reason"]) for row in letter_rows(connection)
    }


def open_letters(connection):
    """Return the global positions of the open letters, in order."""
    return [at for at, (state, _) in letters(connection).items() if state in ("dead", "waiting")]


def letter(connection):
    """Return the global position of the only open letter."""
    (one,) = open_letters(connection)
    return one


def mend(connection, data, at=None, *, reason="a slip of the pen", status=0):
    """Give the only letter, or one of several, other data; return what is said."""
    at = letter(connection) if at is None else at
    data = data if isinstance(data, str | bytes) else json.dumps(data)
    named = ["retry", str(at), "--data", "-", "--reason", reason]
    return dead_letters(connection, *named, data=data, status=status)


def given(connection, at):
    """Return the data of a letter, and who gave what for which reason."""
    shown = decide(connection, "show", str(at), "--data")
    decisions = [(one["decision"], one["reason"]) for one in shown["decisions"]]
    return shown["correction"] and shown["correction"]["data"], decisions


def amounts(store, stream_name="account-123", type_="Deposited"):
    """Return the amounts of the events of an account."""
    return [
        json.loads(event.data)["amount"]
        for event in store.read_stream(stream_name)
        if event.type == type_
    ]


@pytest.fixture
def dead(connection, store):
    """Have a deposit in the reservation category that cannot be decoded, and return its letter."""
    store.write(open_(), COMMANDS)
    write_raw(connection, COMMANDS, "Deposit", BAD)
    drain(connection)
    return letter(connection)


# Deposits of the bank


def test_a_corrected_command_takes_effect_once_with_its_new_content(connection, store, dead):
    """Nothing of the log has changed, and the letter keeps the data with who gave it and why."""
    before = connection.execute("SELECT m FROM message_store.messages m").fetchall()
    assert "To be retried: 1 dead letter." in mend(connection, GOOD, reason="  ticket 12 ")
    assert letters(connection) == {dead: ("waiting", "undecodable")}
    drain(connection)
    drain(connection)
    assert amounts(store) == [20]
    assert letters(connection) == {dead: ("handled", "undecodable")}
    after = connection.execute("SELECT m FROM message_store.messages m").fetchall()
    assert set(before) < set(after)
    kept = decide(connection, "show", str(dead), "--data")["correction"]
    assert (kept["by"], kept["reason"]) == (connection.info.user, "ticket 12")
    assert kept["data"] == GOOD
    assert not any(broken(connection).values())


def test_what_is_parked_follows_in_order(connection, store, dead):
    """Messages behind the letter are handled after it."""
    store.write(deposit("d2", amount="1"), COMMANDS)
    drain(connection)
    assert [state for state, _ in letters(connection).values()] == ["dead", "parked"]
    mend(connection, GOOD, dead)
    drain(connection)
    assert amounts(store) == [20, 1]
    assert {state for state, _ in letters(connection).values()} == {"handled"}


@pytest.mark.parametrize("is_handled", [True, False], ids=["handled", "waiting"])
def test_reissues_of_the_original_and_of_the_correction_are_duplicates(
    connection, store, dead, is_handled
):
    """Before and after the corrected command was handled; any other content is a conflict."""
    mend(connection, GOOD)
    if is_handled:
        drain(connection)
    for data in (BAD, GOOD, GOOD | {"time": "2030-01-01T00:00:00Z"}, OTHER, BAD):
        write_raw(connection, COMMANDS, "Deposit", data)
    counts = drain(connection).counts
    assert counts == {"duplicate": 4, "conflict": 1} | ({} if is_handled else {"handled": 1})
    assert amounts(store) == [20]


def test_the_first_command_can_be_corrected_to_the_one_in_conflict_with_it(connection, store, dead):
    """The letter of the conflict stays one; correcting that cannot help."""
    conflict = write_raw(connection, COMMANDS, "Deposit", GOOD)
    drain(connection)
    assert letters(connection)[conflict] == ("dead", "conflict")
    refused = mend(connection, GOOD, conflict, status=2)
    assert "give that one other data, and discard this one" in refused
    mend(connection, GOOD, dead)
    drain(connection)
    assert amounts(store) == [20]


def test_the_last_data_before_the_handling_counts(connection, store, dead):
    """What was replaced was never an intent that took effect; who gave it stays known."""
    mend(connection, OTHER, reason="first")
    mend(connection, GOOD, reason="second")
    drain(connection)
    assert amounts(store) == [20]
    assert given(connection, dead) == (GOOD, [("correct", "second"), ("correct", "first")])
    assert "handled already" in mend(connection, OTHER, dead, status=2)
    write_raw(connection, COMMANDS, "Deposit", OTHER)
    drain(connection)
    assert ("dead", "conflict") in letters(connection).values()


def test_of_two_operators_at_once_one_waits_for_the_other(connection, database_url, dead):
    """The data of the later counts, and both are known."""
    call = (
        "SELECT reservation.retry_with_data('account', 'accountTransaction', %s, %s, %s,"
        " NULL, gen_random_uuid())"
    )
    first, second = ([dead, json.dumps(data), str(data["amount"])] for data in (OTHER, GOOD))
    with psycopg.connect(database_url) as own:
        own.execute(call, first)
        connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(call, second)
    connection.execute(call, second)
    assert given(connection, dead) == (GOOD, [("correct", "20"), ("correct", "30")])


def test_data_that_cannot_be_taken_is_refused(connection, dead):
    """The refusal is one line without anything of the data, and nothing has changed."""
    for data, problem in [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        (b"\xff", "is not UTF-8"),
        (GOOD | {"note": "\0"}, "The store refuses the data"),
        (
            '{"note": [' + ",".join(["1e308"] * 60_000) + "]}",
            "has more than 16777216 bytes of JSON",
        ),
        (GOOD | {"depositId": "much"}, "in depositId"),
        ("{}", "in accountId, depositId, which make its key and its"),
    ]:
        refused = mend(connection, data, status=2)
        assert problem in refused
        assert (refused.count("\n"), "much" in refused) == (1, False), problem
    assert letters(connection) == {dead: ("dead", "undecodable")}
    assert given(connection, dead) == (None, [])


def test_data_that_cannot_be_decoded_makes_the_letter_dead_again(connection, store, dead):
    """The letter can be given data once more."""
    mend(connection, GOOD | {"amount": "still a lot"})
    drain(connection)
    assert letters(connection) == {dead: ("dead", "undecodable")}
    mend(connection, GOOD)
    drain(connection)
    assert amounts(store) == [20]


def test_data_needs_a_reason_and_a_letter_that_it_can_help(connection, store, dead):
    """Neither what has no letter nor what is parked can be given data."""
    store.write(deposit("d2"), COMMANDS)
    drain(connection)
    (parked,) = [at for at, (state, _) in letters(connection).items() if state == "parked"]
    for at, reason, problem in [
        (dead, " ", "Give --reason"),
        (1, "r", "There is no dead letter at global position 1;"),
        (parked, "r", f"behind global position {dead}; retry or discard"),
    ]:
        assert problem in mend(connection, GOOD, at, reason=reason, status=2)


# Commands of each kind


@dataclass(frozen=True)
class Pay:
    payment_id: str
    till_id: str
    amount: int

    def __post_init__(self):
        if self.amount > 1000:
            raise ValueError("too much")


@dataclass(frozen=True)
class Setup:
    till_id: str
    amount: int


@dataclass(frozen=True)
class Ask:
    payment_id: str
    till_id: str
    amount: int


@dataclass(frozen=True)
class Paid:
    till_id: str
    amount: int


@dataclass
class Drawer:
    total: int = 0


class Till:
    """A component with a command of each kind, whose handlers refuse amounts below 0.

    The class of its reserved command checks itself, so the server does not take its key.
    """

    def __init__(
        self,
        connection,
        *,
        attempts=1,
        entity=None,
        pay=Key("payment_id", into="tillPayment"),  # noqa: B008  it is a value
        ask=Processed(key="payment_id"),  # noqa: B008
    ):
        self.connection = connection
        self.calls = []
        self.before = lambda command: None
        component = Component("till", entity=entity, id="till_id", attempts=attempts)
        component.handle(Pay, key=pay)(self.handle)
        component.initiate(Setup)(lambda command, context: self.handle(command, None, context))
        component.handle(Ask, once=ask)(self.handle)
        if entity is not None:
            component.message(Paid)
        self.component = component

    def handle(self, command, entity, context):
        self.calls.append(command.amount)
        self.before(command)
        if command.amount < 0:
            raise ValueError(f"secret {command.amount}")
        if entity is not None:
            entity.total += command.amount
        return context.follow(command, Paid)

    def send(self, amount, type_="Pay", **names):
        """Send a command as a foreign client does, and return its global position."""
        data = data_of(amount, type_, **names)
        return write_raw(self.connection, f"till:command-{names.get('till', '1')}", type_, data)

    def send_and_drain(self, amount, type_="Pay"):
        at = self.send(amount, type_)
        self.drain()
        return at

    def mend_and_drain(self, data, at=None):
        mend(self.connection, data, at)
        self.drain()

    def drain(self):
        drain(self.connection, self.component)


def data_of(amount, type_="Pay", key="p1", till="1"):
    keys = {} if type_ == "Setup" else {"paymentId": key}
    return keys | {"tillId": till, "amount": amount}


@pytest.fixture
def till(connection):
    return Till(connection)


def paid(store, till="1"):
    return amounts(store, f"till-{till}", "Paid")


def test_a_retry_without_data_keeps_the_data(connection, till):
    """Also of a letter that failed again with it."""
    at = till.send_and_drain(-1)
    at = letter(connection)
    till.mend_and_drain(data_of(-2))
    assert letters(connection)[at][0] == "dead"
    decide(connection, "retry", str(at))
    till.drain()
    assert till.calls == [-1, -2, -2]


def test_a_command_that_was_never_reserved_is_reserved_as_it_was_corrected(connection, store, till):
    """The copy has the corrected content, and reissues of either content are duplicates."""
    amounts_of = {"undecodable": "much", "refused-by-its-class": 2000}

    def send_all():
        return {to: till.send(amount, till=to) for to, amount in amounts_of.items()}

    sent = send_all()
    till.drain()
    assert letters(connection) == dict.fromkeys(sent.values(), ("dead", "undecodable"))
    again = send_all()
    till.drain()
    assert [letters(connection)[at][0] for at in again.values()] == ["parked", "parked"]
    for to, at in sent.items():
        mend(connection, data_of(7, till=to), at)
        till.send(7, till=to)
    send_all()
    till.drain()
    assert {to: paid(store, to) for to in sent} == {to: [7] for to in sent}
    assert till.calls == [7, 7]
    assert {state for state, _ in letters(connection).values()} == {"handled"}
    copies = {
        message.metadata.causation_message_global_position: message
        for message in store.read_category("tillPayment")
    }
    for to, at in sent.items():
        assert (json.loads(copies[at].data)["amount"], copies[at].position) == (7, 0), to


def test_a_reissue_that_cannot_be_decoded_is_a_duplicate_once_the_letter_is_handled(
    connection, store, till
):
    """It is not taken for the corrected command while that may still be given other data."""
    data = data_of("much", "Setup")
    at = write_raw(connection, "till:command-x", "Setup", data)
    till.drain()
    mend(connection, data | {"amount": 7}, at)
    write_raw(connection, "till:command-y", "Setup", data)
    till.drain()
    assert (letters(connection), paid(store)) == ({at: ("handled", "undecodable")}, [7])


def test_a_reissue_takes_no_data_of_a_letter_that_was_discarded(connection, store, till):
    """It has a letter of its own."""
    at = till.send_and_drain("much")
    mend(connection, data_of(7), at)
    decide(connection, "discard", str(at), "--yes")
    again = till.send_and_drain("much")
    assert letters(connection)[again] == ("dead", "undecodable")
    assert paid(store) == []


def test_the_data_of_a_subscribers_letter_corrects_nothing_of_the_commands_own_component(
    connection, store, till
):
    """Under the key it is other content, and the outcome of the command is not corrected."""
    watch = Component("watch", id="till_id", attempts=1)

    @watch.handle(Pay, category="till:command", id="till_id", once=None)
    def see(command, entity, context):
        if command.amount == 5:
            raise ValueError
        return context.follow(command, Paid)

    at = till.send_and_drain(5)
    drain(connection, watch)
    mend(connection, data_of(6), at)
    drain(connection, watch)
    other = till.send_and_drain(6)
    assert letters(connection) == {at: ("handled", "handler"), other: ("dead", "conflict")}
    assert paid(store) == [5]
    assert not store.outcome(Pay("p1", "1", 5), till.component).corrected


def test_both_a_command_and_its_copy_can_be_corrected(connection, store, till):
    """Reissues of each of the three contents are duplicates."""
    till.send_and_drain("much")
    till.mend_and_drain(data_of(-1))
    (copy,) = [one for one, (state, _) in letters(connection).items() if state == "dead"]
    mend(connection, data_of(7), copy)
    for amount in ("much", -1, 7):
        till.send(amount)
    till.drain()
    assert paid(store) == [7]
    assert "conflict" not in {reason for _, reason in letters(connection).values()}
    till.send_and_drain(8)
    assert ("dead", "conflict") in letters(connection).values()


def test_a_command_that_is_handled_directly_can_be_corrected(connection, store, till):
    """Initiating commands, and those of other strategies, take effect once too."""
    cases = {
        f"{type_}-{amount}": (type_, amount)
        for type_ in ("Setup", "Ask")
        for amount in ("much", -1)
    }
    named = {to: {"till": to, "key": to} for to in cases}
    sent = {to: till.send(amount, type_, **named[to]) for to, (type_, amount) in cases.items()}
    till.drain()
    assert {letters(connection)[at][0] for at in sent.values()} == {"dead"}
    for to, (type_, _) in cases.items():
        mend(connection, data_of(7, type_, **named[to]), sent[to])
    till.drain()
    for to, (type_, amount) in cases.items():
        if type_ == "Setup" or amount == -1:
            till.send(amount, type_, **named[to])
        till.send(7, type_, **named[to])
    till.drain()
    assert {to: paid(store, to) for to in cases} == {to: [7] for to in cases}
    assert {state for state, _ in letters(connection).values()} == {"handled"}


def test_a_message_that_is_read_again_is_handled_as_it_was_corrected(connection, store, till):
    """After a position was set back, the original is never handled again."""
    cases = {"undecodable": "much", "refused-by-its-handler": -1}
    for to, amount in cases.items():
        till.send(amount, till=to, key=to)
    till.drain()
    for to, at in zip(cases, open_letters(connection), strict=True):
        mend(connection, data_of(7, till=to, key=to), at)
    till.drain()
    before = letters(connection)
    till.calls.clear()
    read_again(connection)
    till.drain()
    assert -1 not in till.calls
    assert {to: paid(store, to) for to in cases} == {to: [7] for to in cases}
    assert letters(connection) == before


@pytest.mark.parametrize(
    "once", [None, StateBased()], ids=["its copy is handled", "its state is stored"]
)
def test_a_correction_that_arrives_while_former_data_is_tried_is_what_counts(
    connection, store, once
):
    """What the handler did with the former data is rolled back, although it succeeded."""
    till = Till(connection, ask=once, entity=Drawer) if once else Till(connection)
    type_ = "Ask" if once else "Pay"
    till.send_and_drain(-1, type_)
    at = letter(connection)
    mend(connection, data_of(5, type_))
    till.before = lambda command: command.amount == 5 and mend(connection, data_of(7, type_), at)
    till.calls.clear()
    till.drain()
    assert (till.calls, paid(store)) == ([5, 7], [7])


def test_a_correction_that_arrives_while_the_original_fails_again_is_what_counts(
    connection, store, till
):
    """The letter is not dead again, but handled as it was corrected."""
    till.send_and_drain(-1)
    at = letter(connection)
    decide(connection, "retry", str(at))
    till.before = lambda command: command.amount == -1 and mend(connection, data_of(7), at)
    till.calls.clear()
    till.drain()
    assert (till.calls, paid(store)) == ([-1, 7], [7])


def test_a_message_whose_state_is_stored_is_given_no_other_data(connection, store):
    """It was handled, and what it wrote stands, although it cannot be decoded any more."""

    def handled_as(class_):
        component = Component("till", entity=Drawer, id="till_id", attempts=1)
        component.handle(class_, once=StateBased())(
            lambda command, entity, context: Paid(command.till_id, command.amount)
        )
        return component

    Till(connection).send(5, "Ask")
    drain(connection, handled_as(Ask))
    read_again(connection)
    fields = [("payment_id", str), ("till_id", str), ("amount", int), ("note", str)]
    drain(connection, handled_as(make_dataclass("Ask", fields)))
    assert "was handled, and what it wrote stands" in mend(connection, data_of(7, "Ask"), status=2)
    assert paid(store) == [5]


def test_a_correction_waits_for_a_message_that_is_read_again(connection, till):
    """While a message with an open letter is handled in the ordinary way, nobody corrects it."""
    till.send_and_drain(-1, "Ask")
    at = letter(connection)
    read_again(connection)
    connection.execute("UPDATE reservation.dead_letters SET entity = NULL")
    call = (
        "SELECT reservation.retry_with_data('till', 'till:command', %s, %s, 'late',"
        " NULL, gen_random_uuid())"
    )
    connection.execute("SET lock_timeout = '50ms'")
    seen = []

    def try_to_correct(command):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(call, [at, json.dumps(data_of(7, "Ask"))])
        seen.append(command.amount)

    till.before = try_to_correct
    till.calls.clear()
    till.drain()
    assert seen == [-1] * len(till.calls) != []


# Keys


def test_of_a_command_that_cannot_be_decoded_the_fields_of_its_key_are_compared(connection, till):
    """The data says what those fields say; what the command lacks it can be given."""
    cases = [
        ({"paymentId": "another"}, "in paymentId"),
        ({"tillId": "another"}, "in tillId"),
        ({"paymentId": None}, None),
    ]
    names = [{"key": f"p{n}", "till": f"{n}"} for n in range(len(cases))]
    sent = [
        write_raw(connection, f"till:command-{n}", "Pay", data_of("much", **names[n]) | former)
        for n, (former, _) in enumerate(cases)
    ]
    till.drain()
    for at, named, (_, problem) in zip(sent, names, cases, strict=True):
        said = mend(connection, data_of(7, **named), at, status=2 if problem else 0)
        assert (problem or "To be retried") in said


@dataclass(frozen=True)
class Adjust:
    till_id: str
    amount: int
    revision: int
    source: str


@pytest.mark.parametrize(
    ("strategy", "named"), [(Revisions(), "revision, source"), (Revisions(source=None), "revision")]
)
def test_data_keeps_the_revision_of_its_message(connection, strategy, named):
    """With a higher one, the messages of the revisions between would be passed as duplicates."""
    component = Component("till", id="till_id", attempts=1)

    @component.handle(Adjust, once=strategy)
    def adjust(command, entity, context):
        raise ValueError

    data = {"tillId": "1", "amount": -1, "revision": 1, "source": "a"}
    write_raw(connection, "till:command-1", "Adjust", data)
    drain(connection, component)
    refused = mend(connection, data | {"revision": 9, "source": "b"}, status=2)
    assert f"in {named}, which make" in refused
    mend(connection, data | {"amount": 1})


def test_a_message_without_a_key_is_not_taken_for_another_one_without_it(connection, store, till):
    """The data says which command it is, and nothing of the others that say the same."""
    nameless = data_of(7, key=None)
    first, second = (write_raw(connection, "till:command-1", "Pay", nameless) for _ in range(2))
    till.drain()
    till.mend_and_drain(data_of(7), first)
    assert letters(connection)[first][0] == "handled"
    third = write_raw(connection, "till:command-1", "Pay", nameless)
    till.drain()
    assert "handled" not in [letters(connection)[at][0] for at in (second, third)]
    assert paid(store) == [7]
    till.mend_and_drain(data_of(7, key="p2"), second)
    assert paid(store) == [7, 7]


def test_the_consumer_compares_a_key_that_a_function_makes(connection, store):
    """The server cannot; with another key the letter is dead again, and has no effect."""
    till = Till(
        connection,
        pay=Key(lambda c: c.payment_id, into="tillPayment"),
        ask=Processed(key=lambda c: c.payment_id),
    )
    types = ("Pay", "Ask")
    for type_ in types:
        till.send(-1, type_, till=type_)
    till.drain()
    dead = {
        row["global_position"]: row["entity"].removeprefix("till-")
        for row in letter_rows(connection)
    }
    for wrong in ({"key": "p2"}, {"till": "2"}):
        for at, type_ in dead.items():
            mend(connection, data_of(7, type_, **{"till": type_} | wrong), at)
        till.drain()
        assert {at: letters(connection)[at] for at in dead} == dict.fromkeys(dead, ("dead", "key"))
        assert list(store.read_category("till")) == []
    for at, type_ in dead.items():
        mend(connection, data_of(7, type_, till=type_), at)
    till.drain()
    assert {type_: paid(store, type_) for type_ in types} == {"Pay": [7], "Ask": [7]}


def test_what_the_code_of_a_key_raises_is_reported_without_its_values(connection, till):
    """The letter is dead again, and names the command whose key cannot be compared."""
    till.send_and_drain(-1)

    def by(command):
        if command.amount > 0:
            raise ValueError(f"secret {command.amount}")
        return command.payment_id

    other = Till(connection, pay=Key(by, into="tillPayment"))
    other.mend_and_drain(data_of(7))
    (row,) = letter_rows(connection)
    assert row["state"] == "dead"
    assert "Cannot compare the key of Pay" in row["error"]
    assert "secret" not in str(row)


# Ends of processes


class Killed(BaseException):
    """Stands for the end of a process."""


def killed_everywhere(monkeypatch, work, step=1):
    """Do some work, killed at its first exchange with the server, then `step` later, and so on.

    Yield after each time; the last is when it has come to its end.
    """
    wait = psycopg.Connection.wait
    for most in itertools.count(step=step):
        left = iter(range(most))

        def counted(self, *arguments, left=left, **options):
            if next(left, None) is None:
                self.pgconn.finish()
                raise Killed
            return wait(self, *arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(psycopg.Connection, "wait", counted)
            with contextlib.suppress(Killed, psycopg.Error, consumers.Crashed):
                work()
        yield most
        if next(left, None) is not None:
            return


def test_a_correction_is_written_as_a_whole_wherever_its_process_ends(
    connection, store, dead, monkeypatch
):
    """There is data if, and only if, the letter is to be retried."""
    data, seen = json.dumps(GOOD), []
    env = {"RESERVATION_DATABASE_URL": address(connection)}
    named = ["dead-letters", "retry", str(dead), "--data", "-", "--reason", "r"]
    for _ in killed_everywhere(monkeypatch, lambda: invoke_cli(*named, env=env, input=data)):
        ((state, stored),) = connection.execute(
            "SELECT state, data FROM reservation.dead_letters"
        ).fetchall()
        seen.append((state, stored))
    assert all(one in [("dead", None), ("waiting", GOOD)] for one in seen)
    assert seen[0] != seen[-1]
    assert len(seen) > 5
    drain(connection)
    assert amounts(store) == [20]


def test_a_consumer_that_dies_while_it_handles_a_correction_takes_effect_once(
    connection, store, monkeypatch
):
    """It is killed at every fifth exchange with the server; `tests/soak` kills it at each."""
    dies_everywhere(connection, store, monkeypatch, step=5)


def dies_everywhere(connection, store, monkeypatch, step):
    """Correct a command, and kill the consumer that handles it at every `step`-th exchange."""
    till = Till(connection, attempts=1000)
    till.send_and_drain("much", "Ask")
    mend(connection, data_of(7, "Ask"))
    times, url = 0, address(connection)
    work = partial(consumers.drain, till.component, url)
    for times in killed_everywhere(monkeypatch, work, step):  # noqa: B007
        assert paid(store) in ([], [7])
    assert times > 10
    till.drain()
    assert paid(store) == [7]
    assert {state for state, _ in letters(connection).values()} == {"handled"}


# The command line


def test_the_command_takes_data_from_a_file_and_shows_it_on_request(connection, dead, tmp_path):
    """`show` prints who gave the data and why, and the data only with its option."""
    file = tmp_path / "corrected.json"
    file.write_text(json.dumps(GOOD))
    named = ("retry", str(dead), "--reason", "ticket 12")
    said = dead_letters(connection, *named, "--data", str(file))
    assert said.startswith("To be retried: 1 dead letter. The running consumer handles them")
    again = decide(connection, *named, "--data", "-", data=json.dumps(OTHER))
    assert [one["state"] for one in again["changed"]] == ["waiting"]
    shown = decide(connection, "show", str(dead))
    assert (shown["corrected"], shown["correction"]["reason"]) == (True, "ticket 12")
    assert "data" not in shown["correction"]
    assert [one["decision"] for one in shown["decisions"]] == ["correct", "correct"]
    assert "a lot" not in dead_letters(connection, "show", str(dead))
    assert given(connection, dead)[0] == OTHER
    assert "corrected data" in dead_letters(connection, "show", str(dead), "--data")


@pytest.mark.usefixtures("dead")
def test_the_command_refuses(connection):
    """Data is for one letter, with a reason."""
    for arguments, problem in [
        (["4", "--data", "-"], "Give --reason"),
        (["4", "5", "--data", "-", "--reason", "r"], "--data needs exactly one global position"),
        (["--all", "--data", "-", "--reason", "r"], "--data needs exactly one global position"),
        (["4", "--dry-run", "--data", "-", "--reason", "r"], "cannot be given with --dry-run"),
    ]:
        assert problem in dead_letters(connection, "retry", *arguments, data="?", status=2)


def test_the_guide_does_what_it_says(connection, store, database_url, tmp_path, monkeypatch):
    """Its programs and commands run one after the other, with the positions that it names."""
    page = ROOT / "docs" / "how-to" / "correct-a-message.md"
    monkeypatch.setenv("RESERVATION_DATABASE_URL", database_url)
    monkeypatch.syspath_prepend(str(tmp_path))
    module, other, data = blocks(page, "python")[:2] + blocks(page, "json")
    (tmp_path / "payments.py").write_text(module.text)
    (tmp_path / "corrected.json").write_text(data.text)
    names = {}
    exec(compile(other.text, str(page), "exec"), names)
    said = []
    for _, (words, *_) in commands(page):
        if words[:2] == ["reservation", "dead-letters"]:
            if words[2:] == ["show", "3", "--data"]:
                drain(connection, names["account"])
            done = invoke_cli(*words[1:], cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), words
            said.append(done.stdout)
    sys.modules.pop("payments")
    assert "conflict" in said[0]
    assert "handled" in said[-1]
    assert amounts(store, type_="Paid") == [20]
