"""Coming from Eventide: what its published account component stored is read as it is."""

import json
from decimal import Decimal

import pytest

from bank import account
from bank.messages import Deposit
from reservation import Component, MessageStore
from reservation.entity.cache import EntityCache
from reservation.errors import DeclarationError
from reservation.maintenance import reservation_names
from reservation.maintenance.reservation_names import AT_EACH, PLACES, check_names
from tests.bank import batches, event_types
from tests.controls import COMMANDS, deposit, withdraw
from tests.formerly import moved
from tests.idempotence import drained, purse
from tests.processes import EXAMPLES, run_cli

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
        (position,) = self._connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s, %s)",
            [stream_name, type_, json.dumps(data), json.dumps(metadata)],
        ).fetchone()
        (global_position,) = self._connection.execute(
            "SELECT max(global_position) FROM message_store.messages"
        ).fetchone()
        return stream_name, position, global_position

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


def test_the_bank_reads_every_event_of_the_published_component(eventide, connection):
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
    cache = EntityCache(account.entity, account.projection)
    entity = cache.load(MessageStore(connection), ["account-123"])["account-123"].entity
    assert entity.balance == Decimal("6.5")
    assert entity.closed is not None
    assert (
        entity.sequence
        == connection.execute(
            "SELECT (data->>'sequence')::bigint FROM message_store.messages"
            " WHERE type = 'WithdrawalRejected'"
        ).fetchone()[0]
    )


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


def cli(database_url, *arguments):
    return run_cli(*arguments, env={"RESERVATION_DATABASE_URL": database_url})


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(
    "arguments", [("positions", "import", "bank:account"), ("start", "bank:account")]
)
def test_reservations_under_other_names_are_refused(database_url, connection, arguments):
    """Reservations under other names are refused in one line that says what to declare."""
    done = cli(database_url, *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "accountTransaction-d1 has a Deposit that would be reserved as " in line
    assert "accountTransaction-123+d1" in line
    assert "add formerly='deposit_id' to account.reserve(Deposit, …)" in line
    assert connection.execute("SELECT count(*) FROM reservation.positions").fetchone() == (0,)


@pytest.mark.usefixtures("handled")
def test_with_the_former_name_late_reissues_are_duplicates(connection, store):
    """With the former name declared, late reissues are duplicates or conflicts."""
    component = moved()
    check_names(connection, component)
    store.write([deposit("d1", "11"), deposit("d1", "12"), deposit("d2", "1")], COMMANDS)
    store.write([withdraw("w1", "4.5")], COMMANDS)
    # All commands are read again, the two that Eventide reserved too.
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, position, epoch)"
        " SELECT 'account', %s, max(global_position), 1 FROM message_store.messages"
        " WHERE message_store.category(stream_name) = %s",
        [RESERVED, RESERVED],
    )
    counts = drained(connection, component)
    assert counts == {"reserved": 1, "duplicate": 4, "conflict": 1, "handled": 1}
    assert store.stream_version(f"{RESERVED}-123+d1") == -1
    assert store.stream_version(f"{RESERVED}-123+d2") == 0
    assert event_types(store) == ["Deposited", "Withdrawn", "Deposited"]
    check_names(connection, component)


def test_a_conflict_names_the_stream_of_the_first_command(eventide, connection, store):
    """A conflict names the stream of the first command, under its former name if it has one."""
    eventide.reserve("old", "Deposit", DEPOSIT | {"depositId": "old"})
    store.write([deposit("old", "12"), deposit("new"), deposit("new", "12")], COMMANDS)
    results = batches(connection, moved())
    names = [f"{RESERVED}-old", f"{RESERVED}-123+new"]
    assert [name for result in results for _, name in result.conflicts] == names
    letters = connection.execute(
        "SELECT error FROM reservation.dead_letters ORDER BY global_position"
    ).fetchall()
    assert [f"the key of {name}, " in row[0] for name, row in zip(names, letters, strict=True)] == [
        True,
        True,
    ]


def test_reissues_in_the_batch_of_a_new_command_are_duplicates_too(eventide, connection, store):
    """In one batch, reissues with and without a former reservation are duplicates."""
    eventide.reserve("old", "Deposit", DEPOSIT | {"depositId": "old"})
    component = moved()
    store.write([deposit("old", "11"), deposit("new"), deposit("new"), deposit("old")], COMMANDS)
    assert drained(connection, component) == {
        "reserved": 1,
        "duplicate": 3,
        "conflict": 1,
        "handled": 2,
    }


def test_a_copy_that_eventide_left_unhandled_is_handled(eventide, connection, store):
    """A copy that Eventide reserved and did not handle is handled under its former name."""
    eventide.reserve("d1", "Deposit", DEPOSIT)
    assert drained(connection, moved()) == {"duplicate": 1, "handled": 1}
    assert event_types(store) == ["Deposited"]


@pytest.mark.parametrize(
    "formerly",
    [lambda command: command.deposit_id, lambda command: [command.deposit_id], ("deposit_id",)],
)
def test_a_former_name_is_a_field_several_or_a_function(eventide, connection, formerly):
    """A former name is a field, several fields or a function, as a key is."""
    eventide.reserve("d1", "Deposit", DEPOSIT)
    component = moved(formerly)
    check_names(connection, component)
    assert drained(connection, component) == {"duplicate": 1, "handled": 1}


def test_wrong_former_names_are_refused_when_declared():
    """Each wrong former name is refused in one line when it is declared."""
    component = purse(name="account")
    with pytest.raises(DeclarationError, match="no field 'deposit'"):
        component.reserve(Deposit, into=RESERVED, key="deposit_id", formerly="deposit")
    with pytest.raises(DeclarationError, match="formerly= names no field"):
        component.reserve(Deposit, into=RESERVED, key="deposit_id", formerly=())


@pytest.mark.parametrize("at", [1, 4000, 7999])
def test_a_few_reservations_of_another_form_are_found_among_many(connection, at):
    """A few reservations of another form are found wherever they are among many."""
    component = Component("account", id="account_id")
    component.reserve(Deposit, into=RESERVED, entity="account_id", key="deposit_id")
    component.handle(Deposit)(lambda *_: None)
    few = 60  # in a row
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type, data)"
        " SELECT %(category)s || CASE WHEN n BETWEEN %(at)s AND %(at)s + %(few)s THEN '-d' || n"
        "        ELSE '-123+d' || n END, 0, 'Deposit',"
        "        jsonb_build_object('depositId', 'd' || n) || %(data)s::jsonb"
        " FROM generate_series(1, 8000) AS n",
        {
            "category": RESERVED,
            "at": at,
            "few": few,
            "data": json.dumps({"accountId": "123", "amount": 1, "time": TIME}),
        },
    )
    assert PLACES * AT_EACH < 8000
    with pytest.raises(DeclarationError, match="add formerly='deposit_id'"):
        check_names(connection, component)


def fill(connection, copies, misnamed):
    """Store copies under the declared name, except for one under the key alone."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type, data)"
        " SELECT %(category)s || CASE WHEN n = %(misnamed)s THEN '-d' ELSE '-123+d' END || n,"
        "        0, 'Deposit', jsonb_build_object('depositId', 'd' || n) || %(data)s::jsonb"
        " FROM generate_series(1, %(copies)s) AS n",
        {
            "category": RESERVED,
            "copies": copies,
            "misnamed": misnamed,
            "data": json.dumps({"accountId": "123", "amount": 1, "time": TIME}),
        },
    )


def test_an_import_finds_a_single_copy_of_another_name(connection, monkeypatch):
    """An import finds the one copy under another name that the check at the start misses."""
    monkeypatch.setattr(reservation_names, "PORTION", 700)
    fill(connection, 5000, misnamed=2519)
    check_names(connection, account)
    with pytest.raises(DeclarationError, match=r"-d2519 has a Deposit .*formerly='deposit_id'"):
        check_names(connection, account, entirely=True)
    check_names(connection, moved(), entirely=True)


def test_an_import_refuses_a_single_copy_of_another_name(connection, database_url):
    """An import refuses a single copy under another name and stores nothing."""
    fill(connection, 5000, misnamed=2519)
    done = cli(database_url, "positions", "import", "bank:account")
    assert (done.returncode, "accountTransaction-d2519" in done.stderr) == (2, True), done.stderr


def test_copies_that_cannot_be_compared_are_left_to_the_consumers(eventide, connection):
    """Copies that the check cannot compare are left to the consumers."""
    eventide.write(f"{RESERVED}-x", "Other", {})
    eventide.write(f"{RESERVED}-y", "Deposit", {"depositId": 5})
    eventide.write(f"{RESERVED}-123+d1", "Deposit", DEPOSIT)
    eventide.write(f"{RESERVED}-123+d1", "Deposit", DEPOSIT | {"depositId": "d9"})
    check_names(connection, account)
    check_names(connection, account, entirely=True)


def test_a_store_without_reservations_has_none_of_another_form(connection):
    """A store without reservations passes the check of their names."""
    check_names(connection, account)


FORMERLY = f"""
import sys; sys.path += [{str(EXAMPLES)!r}, {str(EXAMPLES.parent)!r}]
from tests.formerly import moved

account = moved()
"""


def test_reservations_that_wait_under_a_former_name_keep_the_category_from_being_shared(
    eventide, connection, store, database_url, tmp_path
):
    """Unhandled copies under former names prevent sharing, which would change their partition."""
    eventide.reserve("d1", "Deposit", DEPOSIT)
    (tmp_path / "app.py").write_text(FORMERLY)

    def run(*arguments):
        return cli(database_url, *arguments, "--app-dir", str(tmp_path))

    for refused in (("partitions", "app:account", "2"), ("start", "app:account", "--workers", "2")):
        done = run(*refused)
        assert done.returncode == 2, done.stderr
        assert (
            "accountTransaction-d1 and perhaps others were reserved under a former name"
            in done.stderr
        )
    assert connection.execute("SELECT count(*) FROM reservation.groups").fetchone() == (0,)
    drained(connection, moved())
    connection.execute("DELETE FROM reservation.members")
    done = run("partitions", "app:account", "2")
    assert done.returncode == 0, done.stderr
    store.write(deposit("d2"), COMMANDS)
    assert drained(connection, moved()) == {"reserved": 1, "handled": 1}
