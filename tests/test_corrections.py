"""Corrections: what could not be handled takes effect with other content, under its key, once."""

import json
import sys
import threading
from dataclasses import dataclass

import pytest
from psycopg import Cursor, errors
from psycopg.types.json import Jsonb

import consumers
from bank import account
from consumers.correcting.correct import correct
from consumers.correcting.same_intent import CorrectionError
from consumers.dead_letters import administration
from consumers.dead_letters.letters import DeadLetters
from consumers.dead_letters.stored_letters import LetterError, Selection
from consumers.runtime.backoff import Backoff
from consumers.testing.crashing.inside.cutting import Cut
from reservation import Component, Processed, StateBased, follow
from reservation.errors import DeclarationError, HandlerError, LockTimeoutError
from reservation.postgres.connection import connect
from reservation.store.schema.install import attach, detach
from tests.bank import RESERVED, address, broken, claim, drain, new_batch
from tests.commands import invoke_cli
from tests.controls import COMMANDS, TIME, deposit, open_
from tests.pages import ROOT, blocks, commands
from tests.processes import PATIENCE

BAD = {"depositId": "d1", "accountId": "123", "amount": "a lot", "time": TIME.isoformat()}
GOOD = BAD | {"amount": 20}
OTHER = BAD | {"amount": 30}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let no test wait between two attempts."""
    monkeypatch.setattr(Backoff, "next", lambda self: 0.0)


def send(connection, data, type_="Deposit", stream_name=COMMANDS):
    """Write a message as a foreign client does; return its global position."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s)",
        [stream_name, type_, Jsonb(data)],
    )
    return last(connection)


def last(connection):
    """Return the global position of the last message."""
    return connection.execute("SELECT max(global_position) FROM message_store.messages").fetchone()[
        0
    ]


def letters(connection):
    """Return each letter's state and reason, by its global position."""
    found = administration.find(connection, Selection(), states=None)
    return {letter.global_position: (letter.state, letter.reason) for letter in found}


def letter(connection):
    """Return the global position of the only open letter."""
    (one,) = administration.find(connection, Selection())
    return one.global_position


def mend(connection, data, at=None, *, component=account, reason="a slip of the pen"):
    """Correct the only letter, or one of several."""
    at = letter(connection) if at is None else at
    return correct(connection, component, None, at, json.dumps(data).encode(), reason)


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
    send(connection, BAD)
    drain(connection)
    return letter(connection)


def test_a_corrected_command_takes_effect_once_with_its_new_content(connection, store, dead):
    """And nothing of the log has changed."""
    before = connection.execute("SELECT m FROM message_store.messages m").fetchall()
    done = mend(connection, GOOD)
    assert (done.number, done.waiting, done.not_compared) == (1, 0, ())
    assert letters(connection) == {dead: ("retry", "undecodable")}
    drain(connection)
    drain(connection)
    assert amounts(store) == [20]
    assert letters(connection) == {dead: ("handled", "undecodable")}
    after = connection.execute("SELECT m FROM message_store.messages m").fetchall()
    assert set(before) < set(after)
    assert not any(broken(connection).values())


def test_the_correction_tells_both_contents_who_and_why(connection, store, dead):
    """It is in a category of its own, so the stream of the key still has one message."""
    mend(connection, GOOD, reason="  ticket 12 ")
    drain(connection)
    (written,) = store.read_category("account:correction")
    assert (written.stream_name, written.type) == (f"account:correction-{dead}", "Corrected")
    ((user, id_),) = connection.execute(
        "SELECT session_user::text, id::text FROM message_store.messages "
        "WHERE global_position = %s",
        [dead],
    ).fetchall()
    assert json.loads(written.data) == {
        "consumer": "account",
        "category": RESERVED,
        "globalPosition": dead,
        "messageId": id_,
        "streamName": f"{RESERVED}-123+d1",
        "type": "Deposit",
        "former": BAD,
        "corrected": GOOD,
        "notCompared": [],
        "reason": "ticket 12",
        "sessionUser": user,
    }
    assert written.metadata.causation_message_global_position == dead
    assert store.stream_version(f"{RESERVED}-123+d1") == 0


def test_what_is_parked_follows_in_order(connection, store, dead):
    store.write(deposit("d2", amount="1"), COMMANDS)
    drain(connection)
    assert [state for state, _ in letters(connection).values()] == ["dead", "parked"]
    assert mend(connection, GOOD, dead).waiting == 1
    drain(connection)
    assert amounts(store) == [20, 1]
    assert {state for state, _ in letters(connection).values()} == {"handled"}
    assert not any(broken(connection).values())


@pytest.mark.parametrize("mended", [True, False], ids=["handled", "waiting"])
def test_reissues_of_the_original_and_of_the_correction_are_duplicates(
    connection, store, dead, mended
):
    """Before and after the corrected command was handled; any other content is a conflict."""
    mend(connection, GOOD)
    if mended:
        drain(connection)
    claimed = claim(connection, "account", "account:command")
    batch = new_batch(connection, account, "account:command")
    for data in (BAD, GOOD, GOOD | {"time": "2030-01-01T00:00:00Z"}, OTHER, BAD):
        send(connection, data)
    result = batch.run(claimed, 100)
    assert result.counts == {"duplicate": 4, "conflict": 1}
    drain(connection)
    assert amounts(store) == [20]


def test_the_command_that_could_only_be_a_conflict_can_be_what_the_first_is_corrected_to(
    connection, store, dead
):
    """Its letter stays a conflict, and can be discarded; correcting it cannot help."""
    conflict = send(connection, GOOD)
    drain(connection)
    assert letters(connection)[conflict] == ("dead", "conflict")
    with pytest.raises(LetterError, match="that one is the command to correct"):
        mend(connection, GOOD, conflict)
    mend(connection, GOOD, dead)
    drain(connection)
    assert amounts(store) == [20]


def test_the_last_correction_before_the_handling_counts(connection, store, dead):
    """A correction that is replaced was never an intent that took effect."""
    mend(connection, OTHER)
    assert mend(connection, GOOD).number == 2
    drain(connection)
    assert amounts(store) == [20]
    assert store.stream_version(f"account:correction-{dead}") == 1
    with pytest.raises(LetterError, match="handled already"):
        mend(connection, OTHER, dead)
    send(connection, OTHER)
    drain(connection)
    assert ("dead", "conflict") in letters(connection).values()


def test_two_operators_at_once_write_two_corrections_of_which_the_later_counts(
    connection, store, dead, database_url
):
    """One waits for the other; none is lost."""
    ready = threading.Barrier(2)

    def one(data):
        with connect(database_url, autocommit=True) as own:
            ready.wait(PATIENCE)
            mend(own, data, dead)

    threads = [threading.Thread(target=one, args=[data]) for data in (GOOD, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    written = list(store.read_stream(f"account:correction-{dead}"))
    assert [message.position for message in written] == [0, 1]
    drain(connection)
    assert amounts(store) == [json.loads(written[1].data)["corrected"]["amount"]]


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


class Till:
    """A component with a command of each kind, whose handlers refuse amounts below 0.

    The class of its reserved command checks itself, so the server does not take its key.
    """

    def __init__(self, within=False):
        self.calls = []
        self.before = lambda command: None
        self.component = component = Component("till", id="till_id", attempts=1)
        into = {} if within else {"into": "tillPayment", "entity": "till_id"}
        component.reserve(Pay, key="payment_id", **into)
        component.handle(Pay)(self.handle)
        component.initiate(Setup)(lambda command, context: self.handle(command, None, context))
        component.handle(Ask, once=Processed(key="payment_id"))(self.handle)

    def handle(self, command, entity, context):
        self.calls.append(command.amount)
        self.before(command)
        if command.amount < 0:
            raise ValueError(f"secret {command.amount}")
        return follow(command, Paid)


def till_command(amount, type_="Pay", key="p1", till="1"):
    keys = {} if type_ == "Setup" else {"paymentId": key}
    return keys | {"tillId": till, "amount": amount}


def send_to_till(connection, amount, type_="Pay", **names):
    data = till_command(amount, type_, **names)
    return send(connection, data, type_, f"till:command-{names.get('till', '1')}")


def drain_till(connection, till):
    connection.execute("DELETE FROM reservation.members")
    consumers.drain(till.component, address(connection))


def paid(store, till="1"):
    return amounts(store, f"till-{till}", "Paid")


@pytest.mark.parametrize("within", [False, True], ids=["into", "within"])
@pytest.mark.parametrize("amount", ["much", 2000], ids=["undecodable", "refused by its class"])
def test_a_command_that_was_never_reserved_is_reserved_as_it_was_corrected(
    connection, store, within, amount
):
    """The copy has the corrected content. What cannot be decoded is a duplicate all the same."""
    till = Till(within)
    at = send_to_till(connection, amount)
    drain_till(connection, till)
    assert letters(connection) == {at: ("dead", "undecodable")}
    again = send_to_till(connection, amount)
    drain_till(connection, till)
    assert letters(connection)[again][0] == "parked"
    mend(connection, till_command(7), at, component=till.component)
    drain_till(connection, till)
    send_to_till(connection, amount)
    send_to_till(connection, 7)
    drain_till(connection, till)
    assert (paid(store), till.calls) == ([7], [7])
    assert {state for state, _ in letters(connection).values()} == {"handled"}
    (copy,) = [
        message
        for message in store.read_category("till:command" if within else "tillPayment")
        if message.metadata.causation_message_global_position == at
    ]
    assert json.loads(copy.data)["amount"] == 7
    assert copy.position == 0


def test_both_a_command_and_its_copy_can_be_corrected(connection, store):
    """Reissues of each of the three contents are duplicates."""
    till = Till()
    at = send_to_till(connection, "much")
    drain_till(connection, till)
    mend(connection, till_command(-1), at, component=till.component)
    drain_till(connection, till)
    (copy,) = [one for one, (state, _) in letters(connection).items() if state == "dead"]
    mend(connection, till_command(7), copy, component=till.component)
    for amount in ("much", -1, 7):
        send_to_till(connection, amount)
    drain_till(connection, till)
    assert paid(store) == [7]
    assert "conflict" not in {reason for _, reason in letters(connection).values()}
    send_to_till(connection, 8)
    drain_till(connection, till)
    assert ("dead", "conflict") in letters(connection).values()


@pytest.mark.parametrize("type_", ["Setup", "Ask"])
@pytest.mark.parametrize("amount", ["much", -1], ids=["undecodable", "refused by its handler"])
def test_a_command_that_is_handled_directly_can_be_corrected(connection, store, type_, amount):
    till = Till()
    at = send_to_till(connection, amount, type_)
    drain_till(connection, till)
    assert letters(connection)[at][0] == "dead"
    mend(connection, till_command(7, type_), at, component=till.component)
    drain_till(connection, till)
    if type_ == "Setup" or amount == -1:
        send_to_till(connection, amount, type_)
    send_to_till(connection, 7, type_)
    drain_till(connection, till)
    assert paid(store) == [7]
    assert set(letters(connection).values()) == {("handled", letters(connection)[at][1])}


def reset(connection, to=0):
    """Set all positions back, as `positions set` does."""
    connection.execute("DELETE FROM reservation.members")
    connection.execute(
        "UPDATE reservation.positions SET position = %s, message_id = NULL, epoch = epoch + 1", [to]
    )


@pytest.mark.parametrize("amount", ["much", -1], ids=["undecodable", "refused by its handler"])
def test_a_message_that_is_read_again_is_handled_as_it_was_corrected(connection, store, amount):
    """In the ordinary way too: the original is never handled again."""
    till = Till()
    send_to_till(connection, amount)
    drain_till(connection, till)
    mend(connection, till_command(7), component=till.component)
    drain_till(connection, till)
    before = letters(connection)
    till.calls.clear()
    reset(connection)
    drain_till(connection, till)
    assert -1 not in till.calls
    assert (paid(store), letters(connection)) == ([7], before)


def test_a_correction_that_arrives_while_the_original_is_tried_again_is_what_counts(
    connection, store, database_url
):
    """What the handler did with the original is rolled back, although it succeeded."""
    till = Till()
    send_to_till(connection, -1)
    drain_till(connection, till)
    at = letter(connection)
    administration.retry(connection, Selection(), [at])
    mend(connection, till_command(5), at, component=till.component)

    def correct_again(command):
        if command.amount == 5:
            with connect(database_url, autocommit=True) as other:
                mend(other, till_command(7), at, component=till.component)

    till.before = correct_again
    till.calls.clear()
    drain_till(connection, till)
    assert (till.calls, paid(store)) == ([5, 7], [7])


@dataclass
class Drawer:
    total: int = 0


def test_a_correction_that_arrives_before_a_state_is_stored_is_what_counts(
    connection, store, database_url
):
    """No state is stored of what the handler did with the original."""
    seen = []
    component = Component("till", entity=Drawer, id="till_id", attempts=1)

    @component.handle(Ask, once=StateBased())
    def ask(command, drawer, context):
        seen.append(command.amount)
        if command.amount < 0:
            raise ValueError
        if command.amount == 5:
            with connect(database_url, autocommit=True) as other:
                mend(other, till_command(7, "Ask"), at, component=component)
        drawer.total += command.amount
        return Paid(command.till_id, drawer.total)

    def drained():
        connection.execute("DELETE FROM reservation.members")
        consumers.drain(component, address(connection))

    send_to_till(connection, -1, "Ask")
    drained()
    at = letter(connection)
    mend(connection, till_command(5, "Ask"), at, component=component)
    drained()
    assert (seen[-2:], paid(store)) == ([5, 7], [7])


def test_a_correction_that_arrives_while_the_original_fails_again_is_what_counts(
    connection, store, database_url
):
    """The letter is not dead again, but handled as it was corrected."""
    till = Till()
    send_to_till(connection, -1)
    drain_till(connection, till)
    at = letter(connection)
    administration.retry(connection, Selection(), [at])

    def correct_now(command):
        if command.amount == -1:
            with connect(database_url, autocommit=True) as other:
                mend(other, till_command(7), at, component=till.component)

    till.before = correct_now
    till.calls.clear()
    drain_till(connection, till)
    assert (till.calls, paid(store)) == ([-1, 7], [7])


def test_a_correction_waits_for_a_message_that_is_read_again(connection, store, database_url):
    """While a message with an open letter is handled in the ordinary way, nobody corrects it."""
    till = Till()
    send_to_till(connection, -1, "Ask")
    drain_till(connection, till)
    reset(connection)
    at = letter(connection)
    connection.execute("UPDATE reservation.dead_letters SET entity = NULL")
    seen = []

    def try_to_correct(command):
        with connect(database_url, autocommit=True) as other:
            other.execute("SET lock_timeout = '50ms'")
            with pytest.raises(LockTimeoutError):
                mend(other, till_command(7, "Ask"), at, component=till.component)
        seen.append(command.amount)

    till.before = try_to_correct
    till.calls.clear()
    drain_till(connection, till)
    assert seen == [-1] * len(till.calls) != []


def test_a_process_that_knows_no_corrections_can_not_handle_a_corrected_letter(connection, dead):
    """It marks letters as an earlier version did, without the correction."""
    handled = "UPDATE reservation.dead_letters SET state = 'handled' WHERE global_position = %s"
    with connection.transaction(force_rollback=True):
        connection.execute(handled, [dead])
    mend(connection, GOOD)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="without its correction"):
        connection.execute(handled, [dead])


class Counting(Cursor):
    """A cursor that counts the statements of its connection."""

    counted = 0

    def execute(self, *arguments, **options):
        """Count and execute."""
        type(self).counted += 1
        return super().execute(*arguments, **options)


def test_nothing_is_looked_up_where_nothing_has_failed(connection, store, monkeypatch):
    """Beyond the last letter a batch has the statements that it always had."""
    till = Till()
    monkeypatch.setattr(Counting, "counted", 0)
    positions = claim(connection, "till", "till:command")
    batch = new_batch(connection, till.component, "till:command")
    counts = []
    for n in range(4):
        send_to_till(connection, -1 if n == 2 else n, "Ask", key=f"p{n}", till=str(n))
        connection.cursor_factory, Counting.counted = Counting, 0
        try:
            batch.run(positions, 100)
        except HandlerError:
            connection.execute("UPDATE reservation.positions SET position = %s", [last(connection)])
            positions = claim(connection, "till", "till:command")
        else:
            counts.append(Counting.counted)
        connection.cursor_factory = Cursor
    first, *others = counts
    assert (first - others[0], len(others)) == (1, 2)


def test_a_store_that_is_attached_again_knows_its_corrections(connection, store, dead):
    """They are in the log, and so is what they were handled as."""
    mend(connection, GOOD)
    drain(connection)
    known = connection.execute("SELECT * FROM reservation.corrections").fetchall()
    send(connection, {"consumer": "account", "globalPosition": 1}, "Corrected", "x:correction-1")
    connection.execute("DELETE FROM reservation.members")
    detach(connection)
    attach(connection)
    assert connection.execute("SELECT * FROM reservation.corrections").fetchall() == known
    drain(connection)
    assert amounts(store) == [20]
    assert letters(connection) == {}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        (b"\xff", "is not UTF-8"),
        (json.dumps(GOOD | {"note": "\0"}), "The store does not take"),
        (json.dumps(GOOD | {"amount": "much"}), "cannot be used: Cannot decode Deposit"),
        (json.dumps(GOOD | {"depositId": "d2"}), "has another key; it must have that of the"),
        (json.dumps(GOOD | {"accountId": "124"}), "has another (key|entity)"),
        (json.dumps({}), "cannot be used: Cannot decode Deposit"),
    ],
)
def test_a_correction_that_is_none_is_refused(connection, dead, data, problem):
    """In one line, without anything of the data; nothing has changed."""
    before = last(connection)
    data = data if isinstance(data, bytes) else data.encode()
    with pytest.raises(CorrectionError, match=problem) as refused:
        correct(connection, account, None, dead, data, "reason")
    assert "much" not in str(refused.value)
    assert (last(connection), letters(connection)) == (before, {dead: ("dead", "undecodable")})


def test_a_correction_needs_a_reason_and_a_letter_that_it_can_help(connection, store, dead):
    store.write(deposit("d2"), COMMANDS)
    drain(connection)
    with pytest.raises(CorrectionError, match="needs a reason"):
        mend(connection, GOOD, dead, reason=" ")
    with pytest.raises(LetterError, match="There is no dead letter at global position 1;"):
        mend(connection, GOOD, 1)
    (parked,) = [at for at, (state, _) in letters(connection).items() if state == "parked"]
    with pytest.raises(LetterError, match=f"behind global position {dead}; correct or discard"):
        mend(connection, GOOD, parked)


@pytest.mark.parametrize(
    ("former", "corrected", "problem"),
    [
        ({"paymentId": "p2"}, {}, "another key; .* payment_id p2"),
        ({"tillId": "2"}, {}, "another entity; .* till_id 2"),
        ({"paymentId": 5}, {}, None),
    ],
)
def test_of_a_command_that_cannot_be_decoded_the_fields_of_its_key_are_compared(
    connection, former, corrected, problem
):
    """Those that it has; which it has not is told."""
    till = Till()
    at = send(connection, till_command("much") | former, "Pay", "till:command-1")
    drain_till(connection, till)
    content = till_command(7) | corrected
    if problem is None:
        assert mend(connection, content, at, component=till.component).not_compared == (
            "payment_id",
        )
    else:
        with pytest.raises(CorrectionError, match=problem):
            mend(connection, content, at, component=till.component)


def test_a_command_that_can_be_decoded_keeps_its_key_and_entity(connection):
    till = Till()
    at = send_to_till(connection, -1, "Ask")
    drain_till(connection, till)
    for names, what in (({"key": "p2"}, "key"), ({"till": "2"}, "entity")):
        with pytest.raises(CorrectionError, match=f"another {what}"):
            mend(connection, till_command(7, "Ask", **names), at, component=till.component)


def test_a_message_without_a_key_is_not_taken_for_another_one_without_it(connection, store):
    """Who corrects one says which command it is, and nothing of the others that say the same."""
    till = Till()
    nameless = till_command(7, key=None)
    first, second = (send(connection, nameless, "Pay", "till:command-1") for _ in range(2))
    drain_till(connection, till)
    done = mend(connection, till_command(7), first, component=till.component)
    assert done.not_compared == ("payment_id",)
    drain_till(connection, till)
    assert letters(connection)[first][0] == "handled"
    third = send(connection, nameless, "Pay", "till:command-1")
    drain_till(connection, till)
    states = [letters(connection)[at][0] for at in (second, third)]
    assert "handled" not in states
    assert paid(store) == [7]
    mend(connection, till_command(7, key="p2"), second, component=till.component)
    drain_till(connection, till)
    assert paid(store) == [7, 7]


def test_a_key_that_an_upcaster_makes_is_compared_as_it_is_today(connection):
    """Not as it is stored; only where the upcasters fail."""
    till = Till()

    def named(data):
        return data | {"paymentId": f"p{data['number']}", "amount": int(data["amount"])}

    till.component.upcast(Pay, to=2, when=lambda data: "number" in data)(named)
    former = {"number": 1, "tillId": "1", "amount": 2000}
    at = send(connection, former, "Pay", "till:command-1")
    drain_till(connection, till)
    with pytest.raises(CorrectionError, match="give it the shape of the message"):
        mend(connection, {"paymentId": "p1"}, at, component=till.component)
    with pytest.raises(CorrectionError, match="another key"):
        mend(connection, former | {"number": 2, "amount": 7}, at, component=till.component)
    done = mend(connection, former | {"amount": 7}, at, component=till.component)
    assert done.not_compared == ()


def test_what_the_code_of_a_key_raises_is_told_without_its_values(connection):
    """In one line that names the message."""
    till = Till()
    at = send_to_till(connection, -1)
    drain_till(connection, till)
    (copy,) = letters(connection)

    def by(command):
        if command.amount > 0:
            raise ValueError(f"secret {command.amount}")
        return command.payment_id

    other = Component("till", id="till_id")
    other.reserve(Pay, key=by, into="tillPayment", entity="till_id")
    other.handle(Pay)(till.handle)
    assert copy != at
    with pytest.raises(CorrectionError, match=r"key of Pay at .* raised ValueError") as refused:
        mend(connection, till_command(7), copy, component=other)
    assert "secret" not in str(refused.value)


class Crash(Exception):
    """Stand for the end of a process."""


def crash():
    """End what runs, instead of an exchange with the server."""
    raise Crash


def cut_off(database_url, at, work):
    """Do some work on a connection that ends instead of its n-th exchange; tell if it was done."""
    own = connect(database_url, autocommit=True)
    try:
        ready = work(own)
        Cut(own, at, crash)
        ready()
    except Crash:
        return False
    finally:
        own.close()
    return True


def test_a_correction_is_written_as_a_whole_wherever_its_process_ends(
    connection, store, dead, database_url
):
    """There is a correction if, and only if, the letter is to be retried."""
    at = 1
    while not cut_off(database_url, at, lambda own: lambda: mend(own, GOOD, dead)):
        state, _ = letters(connection)[dead]
        registered = connection.execute("SELECT FROM reservation.corrections").rowcount
        written = len(list(store.read_category("account:correction")))
        assert (state, registered, written) == ("dead", 0, 0)
        at += 1
    assert at > 5
    drain(connection)
    assert amounts(store) == [20]


def test_a_consumer_that_dies_while_it_handles_a_correction_takes_effect_once(
    connection, store, dead, database_url
):
    """Whichever exchange with the server was its last."""
    mend(connection, GOOD)

    def handle(own):
        positions = claim(own, "account", RESERVED)
        batch = new_batch(own, account, RESERVED)
        due = DeadLetters("account", RESERVED).line_up(own, positions.partitions, 1, 10)
        return lambda: batch.retry_transaction.run(positions, due)

    at = 1
    while not cut_off(database_url, at, handle):
        assert amounts(store) == []
        at += 1
    assert at > 5
    drain(connection)
    assert amounts(store) == [20]
    assert not any(broken(connection).values())


def test_the_category_of_corrections_is_nobodys():
    """A component cannot reserve into it."""
    component = Component("till", id="till_id")
    with pytest.raises(DeclarationError, match="commands, events, corrections or subscriptions"):
        component.reserve(Pay, into="till:correction", key="payment_id")


def cli(database_url, *arguments, data=None):
    """Run a command on dead letters."""
    env = {"RESERVATION_DATABASE_URL": database_url}
    return invoke_cli("dead-letters", *arguments, env=env, input=data)


def test_the_command_corrects_from_a_file_and_says_what_it_did(
    connection, store, dead, database_url, tmp_path
):
    """The data is shown only if that is asked for."""
    file = tmp_path / "corrected.json"
    file.write_text(json.dumps(GOOD))
    named = ("correct", "bank:account", str(dead), "--reason", "ticket 12")
    done = cli(database_url, *named, "--data", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    correction = last(connection)
    corrected, retried = done.stdout.splitlines()
    assert corrected == (
        f"Corrected: Deposit at {RESERVED}-123+d1, global position {dead}, of the consumer account "
        f"of {RESERVED}. The correction is at global position {correction}."
    )
    assert retried.startswith("To be retried: 1 dead letter. The running consumer handles it")
    again = cli(database_url, *named, "--data", "-", "--json", data=json.dumps(OTHER))
    said = json.loads(again.stdout)
    assert said["correction"] == {
        "globalPosition": correction + 1,
        "number": 2,
        "notCompared": [],
    }
    assert [one["state"] for one in said["changed"]] == ["retry"]

    shown = json.loads(cli(database_url, "show", str(dead), "--json").stdout)
    assert [one["reason"] for one in shown["corrections"]] == ["ticket 12"] * 2
    assert "data" not in shown["corrections"][0]
    plain = cli(database_url, "show", str(dead)).stdout
    assert "ticket 12" in plain
    assert "a lot" not in plain
    with_data = json.loads(cli(database_url, "show", str(dead), "--json", "--data").stdout)
    assert [one["data"] for one in with_data["corrections"]] == [GOOD, OTHER]
    assert "corrected data 2" in cli(database_url, "show", str(dead), "--data").stdout


@pytest.mark.parametrize(
    ("data", "problem"),
    [("{}", "Error: The correction cannot be used: Cannot decode Deposit"), ("?", "is not JSON")],
)
def test_the_command_refuses_in_one_line(dead, database_url, data, problem):
    named = ("correct", "bank:account", str(dead), "--reason", "r", "--data", "-")
    refused = cli(database_url, *named, data=data)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert problem in refused.stderr
    assert refused.stderr.count("\n") == 1


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
            if words[2:] == ["show", "4", "--data"]:
                connection.execute("DELETE FROM reservation.members")
                consumers.drain(names["account"], database_url)
            done = invoke_cli(*words[1:], cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), words
            said.append(done.stdout)
    sys.modules.pop("payments")
    assert "conflict" in said[0]
    assert "handled" in said[-1]
    assert amounts(store, type_="Paid") == [20]
    assert len(list(store.read_category("account:correction"))) == 1
