"""Coming from Eventide: what its published account component stored is read as it is."""

import json
from decimal import Decimal

import pytest
from psycopg.types.json import Jsonb

from bank import account
from bank.messages import Deposit
from consumers.testing import run_in_memory
from reservation import Component, Key
from reservation.errors import DeclarationError, GroupError
from reservation.strategies import MessageIdInEvents
from tests.apps.bank import drain, event_types
from tests.apps.idempotence import purse
from tests.consumers.builders import stored_letters, write_raw
from tests.support.commands import invoke_cli
from tests.support.controls import COMMANDS, deposit, withdraw
from tests.support.stored_positions import store_position

TIME = "2026-01-02T03:04:05.000Z"
RESERVED = "accountTransaction"

OPEN = {"accountId": "123", "customerId": "456", "time": TIME}
DEPOSIT = {"depositId": "d1", "accountId": "123", "amount": 11, "time": TIME}
WITHDRAW = {"withdrawalId": "w1", "accountId": "123", "amount": 4.5, "time": TIME}
REFUSED = WITHDRAW | {"withdrawalId": "w2", "amount": 99}


class Eventide:
    """Writes what the account component of Eventide writes, in its own form."""

    def __init__(self, connection):
        self._connection = connection

    def write(self, stream_name, type_, data, source=None):
        """Write a message that follows the one given as a stream and a position; give its place."""
        metadata = {}
        if source is not None:
            metadata = {
                "causationMessageStreamName": source[0],
                "causationMessagePosition": source[1],
                "causationMessageGlobalPosition": source[2],
            }
        write_raw(self._connection, stream_name, type_, Jsonb(data), Jsonb(metadata))
        return self._connection.execute(
            "SELECT stream_name, position, global_position FROM message_store.messages"
            " ORDER BY global_position DESC LIMIT 1"
        ).fetchone()

    def reserve(self, key, type_, data):
        """Write a command, and its copy to a stream that is named by the key alone."""
        command = self.write(COMMANDS, type_, data)
        return self.write(f"{RESERVED}-{key}", type_, data, command)

    def processed(self, category, position):
        """Store the position of the consumer of a category."""
        name = f"{category}+position" if ":" in category else f"{category}:position"
        self.write(name, "Recorded", {"position": position})


@pytest.fixture
def eventide(connection):
    return Eventide(connection)


def moved(former_key="deposit_id"):
    """Return an account whose reservations were named by the key alone, and now by the entity."""
    return purse(
        MessageIdInEvents(),
        name="account",
        add_key=Key("deposit_id", ignoring="time", former_key=former_key),
        take_key=Key("withdrawal_id", ignoring="time", former_key="withdrawal_id"),
    )


moved_account = moved()  # what the command line finds by its name in this module


@pytest.fixture
def cli(database_url):
    """Give a function that runs the command line on the test's store."""

    def run(*arguments):
        return invoke_cli(*arguments, env={"RESERVATION_DATABASE_URL": database_url})

    return run


def test_the_bank_reads_every_event_of_the_published_component(eventide, store):
    """The bank reads every event of Eventide's published component with its fields."""
    opened = eventide.write(COMMANDS, "Open", OPEN)
    eventide.write("account-123", "Opened", OPEN | {"processedTime": TIME}, opened)
    for key, type_, data, event in (
        ("d1", "Deposit", DEPOSIT, "Deposited"),
        ("w1", "Withdraw", WITHDRAW, "Withdrawn"),
        ("w2", "Withdraw", REFUSED, "WithdrawalRejected"),
    ):
        copy = eventide.reserve(key, type_, data)
        of_event = {"sequence": copy[2]}
        if event != "WithdrawalRejected":
            of_event["processedTime"] = TIME
        eventide.write("account-123", event, data | of_event, copy)
    head = eventide.write(COMMANDS, "Close", {"accountId": "123", "time": TIME})
    eventide.write(
        "account-123", "Closed", {"accountId": "123", "time": TIME, "processedTime": TIME}, head
    )
    entity = run_in_memory(account, store.read_stream("account-123")).entity(account, "123")
    assert entity.balance == Decimal("6.5")
    assert entity.closed is not None
    assert entity.sequence == copy[2]


@pytest.fixture
def handled(eventide, connection):
    """Have Eventide reserve and handle two commands, and store its positions up to there."""
    for key, type_, data, event in (
        ("d1", "Deposit", DEPOSIT, "Deposited"),
        ("w1", "Withdraw", WITHDRAW, "Withdrawn"),
    ):
        copy = eventide.reserve(key, type_, data)
        eventide.write(
            "account-123", event, data | {"sequence": copy[2], "processedTime": TIME}, copy
        )
    eventide.processed("account:command", 1)  # it stores its position now and then
    eventide.processed(RESERVED, copy[2])


@pytest.mark.usefixtures("handled")
def test_reservations_under_other_names_are_refused(cli, connection):
    """Reservations under other names are refused in one line that says what to declare."""
    done = cli("positions", "import", "bank:account")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "accountTransaction-d1 has a Deposit that would be reserved as " in line
    assert "accountTransaction-123+d1" in line
    assert "add former_key='deposit_id' to Key(…) in @account.handle(Deposit, …)" in line
    with pytest.raises(DeclarationError, match="add former_key='deposit_id'"):
        drain(connection)
    assert connection.execute("SELECT count(*) FROM reservation.positions").fetchone() == (0,)


@pytest.mark.usefixtures("handled")
def test_with_the_former_name_late_reissues_are_duplicates(connection, store):
    """With the former name declared, late reissues are duplicates or conflicts."""
    store.write([deposit("d1", "11"), deposit("d1", "12"), deposit("d2", "1")], COMMANDS)
    store.write([withdraw("w1", "4.5")], COMMANDS)
    # All commands are read again, the two that Eventide reserved too.
    ((head,),) = connection.execute("SELECT reservation.category_head(%s)", [RESERVED]).fetchall()
    store_position(connection, "account", RESERVED, head)
    counts = drain(connection, moved()).counts
    assert counts == {"reserved": 1, "duplicate": 4, "conflict": 1, "handled": 1}
    assert store.stream_version(f"{RESERVED}-123+d1") == -1
    assert store.stream_version(f"{RESERVED}-123+d2") == 0
    assert event_types(store) == ["Deposited", "Withdrawn", "Deposited"]
    assert drain(connection, moved()).counts == {}


def test_a_conflict_names_the_stream_of_the_first_command(eventide, connection, store):
    """A conflict names the stream of the first command, under its former name if it has one."""
    eventide.reserve("old", "Deposit", DEPOSIT | {"depositId": "old"})
    store.write([deposit("old", "12"), deposit("new"), deposit("new", "12")], COMMANDS)
    assert drain(connection, moved()).counts["conflict"] == 2
    names = [f"{RESERVED}-old", f"{RESERVED}-123+new"]
    for name, conflict in zip(names, stored_letters(connection), strict=True):
        assert f"the key of {name}, " in conflict.error


def test_reissues_in_the_batch_of_a_new_command_are_duplicates_too(eventide, connection, store):
    """In one batch, reissues with and without a former reservation are duplicates."""
    eventide.reserve("old", "Deposit", DEPOSIT | {"depositId": "old"})
    store.write([deposit("old", "11"), deposit("new"), deposit("new"), deposit("old")], COMMANDS)
    counts = drain(connection, moved()).counts
    assert counts == {"reserved": 1, "duplicate": 3, "conflict": 1, "handled": 2}


@pytest.mark.parametrize(
    "former_key",
    [
        "deposit_id",
        ("deposit_id",),
        lambda command: command.deposit_id,
        lambda command: [command.deposit_id],
    ],
)
def test_a_copy_that_eventide_left_unhandled_is_handled(eventide, connection, store, former_key):
    """It is found by its former name: a field, several fields or a function, as a key is."""
    eventide.reserve("d1", "Deposit", DEPOSIT)
    assert drain(connection, moved(former_key)).counts == {"duplicate": 1, "handled": 1}
    assert event_types(store) == ["Deposited"]


def test_wrong_former_names_are_refused_when_declared():
    """Each wrong former name is refused in one line when it is declared."""
    component = Component("account", id="account_id")
    with pytest.raises(DeclarationError, match="no field 'deposit'"):
        component.handle(Deposit, key=Key("deposit_id", former_key="deposit"))
    with pytest.raises(DeclarationError, match="former_key= names no field"):
        component.handle(Deposit, key=Key("deposit_id", former_key=()))


def fill(connection, copies, misnamed, few=1):
    """Store copies under the declared name, except for a few in a row, under the key alone."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type, data)"
        " SELECT %(category)s || CASE WHEN n BETWEEN %(at)s AND %(at)s + %(few)s - 1 THEN '-d'"
        "                             ELSE '-123+d' END || n,"
        "        0, 'Deposit', jsonb_build_object('depositId', 'd' || n) || %(data)s::jsonb"
        " FROM generate_series(1, %(copies)s) AS n",
        {
            "category": RESERVED,
            "copies": copies,
            "at": misnamed,
            "few": few,
            "data": json.dumps({"accountId": "123", "amount": 1, "time": TIME}),
        },
    )


@pytest.mark.parametrize("at", [1, 4000, 7940])
def test_a_few_reservations_of_another_form_are_found_among_many(connection, at):
    """A few reservations of another form are found wherever they are among many."""
    fill(connection, 8000, at, few=60)
    with pytest.raises(DeclarationError, match="add former_key='deposit_id'"):
        drain(connection)


def test_an_import_finds_a_single_copy_of_another_name(eventide, connection, cli):
    """It compares all copies, and so finds one that the check at the start misses."""
    fill(connection, 5000, misnamed=2519)
    eventide.processed(RESERVED, 5000)
    done = cli("positions", "import", "bank:account")
    assert done.returncode == 2
    assert "accountTransaction-d2519 has a Deposit" in done.stderr
    done = cli("positions", "import", "tests.consumers.test_eventide:moved_account")
    assert done.returncode == 0, done.stderr


def test_copies_that_cannot_be_compared_are_left_to_the_consumers(eventide, connection, cli):
    """Copies that the check cannot compare are left to the consumers."""
    eventide.write(f"{RESERVED}-x", "Other", {})
    eventide.write(f"{RESERVED}-y", "Deposit", {"depositId": 5})
    eventide.write(f"{RESERVED}-123+d1", "Deposit", DEPOSIT)
    eventide.write(f"{RESERVED}-123+d1", "Deposit", DEPOSIT | {"depositId": "d9"})
    eventide.processed("account:command", 1)
    eventide.processed(RESERVED, 1)
    done = cli("positions", "import", "bank:account")
    assert done.returncode == 0, done.stderr
    drain(connection)


def test_reservations_that_wait_under_a_former_name_keep_the_category_from_being_shared(
    eventide, connection, store, cli
):
    """Unhandled copies under former names prevent sharing, which would change their partition."""
    waiting = "accountTransaction-d1 and perhaps others were reserved under a former name"
    partitions = ("partitions", "tests.consumers.test_eventide:moved_account")
    assert cli(*partitions, "2").returncode == 0
    eventide.reserve("d1", "Deposit", DEPOSIT)
    with pytest.raises(GroupError, match=waiting):
        drain(connection, moved())
    assert cli(*partitions, "1").returncode == 0
    done = cli(*partitions, "2")
    assert done.returncode == 2
    assert waiting in done.stderr
    drain(connection, moved())
    connection.execute("DELETE FROM reservation.members")
    done = cli(*partitions, "2")
    assert done.returncode == 0, done.stderr
    store.write(deposit("d2"), COMMANDS)
    assert drain(connection, moved()).counts == {"reserved": 1, "handled": 1}
