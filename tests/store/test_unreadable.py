"""Rows that cannot be read: too large for a text, or of a time that Python has not."""

import json

import pytest
from psycopg import errors

from bank import account
from reservation import Component, MessageStore
from reservation.errors import DecodeError, RefusedError
from tests.apps.bank import RESERVED, broken, drain, event_types
from tests.store.builders import grant, new_role, run  # noqa: F401  a fixture
from tests.store.clients import Client, in_loop
from tests.support.commands import invoke_cli
from tests.support.controls import COMMANDS, deposit, open_

# As JSON it takes 70 MB. Its row has a few hundred bytes.
LARGE = "('[' || repeat('1e131071,', 539) || '1e131071]')::jsonb"

TIMES = ["infinity", "0001-01-01 00:00:00 BC", "10000-01-01"]


def spoil(connection, global_position, column, value):
    """Change a column of a message, as repairs by hand and imports do."""
    expression = {
        "data": f"data || jsonb_build_object('rest', {LARGE})",
        "metadata": f"coalesce(metadata, '{{}}') || jsonb_build_object('properties',"
        f" jsonb_build_object('rest', {LARGE}))",
        "time": f"timestamp '{value}'",
    }[column]
    connection.execute(
        f"UPDATE message_store.messages SET {column} = {expression} WHERE global_position = %s",
        [global_position],
    )


def last(connection):
    """Return the global position of the last message."""
    query = "SELECT max(global_position) FROM message_store.messages"
    return connection.execute(query).fetchone()[0]


def letters(connection):
    """Return the letters, by the positions of their messages: the state and the error."""
    rows = connection.execute(
        "SELECT global_position, state, error FROM reservation.dead_letters"
    ).fetchall()
    return {position: (state, error) for position, state, error in rows}


# One that is too large takes a fifth of a second wherever it is met.
COLUMNS = [("data", None), ("metadata", None), *(("time", time) for time in TIMES)]
SIZE_AND_TIME = [("data", None), ("time", "infinity")]
ONE_OF_EACH = [*SIZE_AND_TIME, ("metadata", None)]


@pytest.mark.parametrize(("column", "value"), ONE_OF_EACH)
def test_only_the_message_and_its_entity_wait(store, connection, column, value):
    """A message that a handler cannot be given is a dead letter; those of other entities go on."""
    store.write(open_(), COMMANDS)
    spoil(connection, bad := last(connection), column, value)
    store.write([deposit("d1"), deposit("d2")], COMMANDS)
    store.write([open_("456"), deposit("e1", account="456")], "account:command-456")
    drain(connection)
    assert event_types(store, "456") == ["Opened", "Deposited"]
    state, error = letters(connection)[bad]
    assert state == "dead"
    assert f"Open at {COMMANDS}, global position {bad}, position 0 of its stream" in error
    assert f"its {column} is" in error


def test_the_status_names_a_message_whose_time_cannot_be_read(store, connection, database_url):
    """It goes on, and says which of the messages that are left it is."""
    store.write([open_(), deposit("d1")], COMMANDS)
    drain(connection)
    store.write([deposit("d2"), deposit("d3")], COMMANDS)
    spoil(connection, bad := last(connection), "time", "infinity")
    env = {"RESERVATION_DATABASE_URL": database_url}
    shown = invoke_cli("status", "--json", env=env)
    found = {one["category"]: one for one in json.loads(shown.stdout)["partitions"]}
    assert found["account:command"]["unreadable"] == bad
    assert found["account:command"]["lagSeconds"] is not None
    assert found[RESERVED]["unreadable"] is None
    named = f"the time of the message at global position {bad} in account:command"
    assert named in " ".join(invoke_cli("status", env=env).stdout.split())


@pytest.mark.parametrize(("column", "value"), SIZE_AND_TIME)
def test_a_command_is_copied_whatever_its_row_has(store, connection, column, value):
    """A command is reserved without being read; only its copy must be readable."""
    store.write([open_(), deposit("d1")], COMMANDS)
    spoil(connection, bad := last(connection), column, value)
    store.write([open_("456"), deposit("e1", account="456")], "account:command-456")
    drain(connection)
    assert event_types(store, "456") == ["Opened", "Deposited"]
    if column == "time":  # which the copy has of its own
        assert letters(connection) == {}
        assert event_types(store) == ["Opened", "Deposited"]
        assert broken(connection) == {}
        return
    ((position, (state, error)),) = letters(connection).items()
    assert (state, f"its {column} is too large" in error) == ("dead", True)
    assert position > bad


@pytest.mark.parametrize(("column", "value"), SIZE_AND_TIME)
def test_an_event_that_cannot_be_read_stops_its_entity_alone(store, connection, column, value):
    """An event that cannot be projected fails the commands of its entity; its time is not asked."""
    store.write([open_(), deposit("d1")], COMMANDS)
    store.write([open_("456"), deposit("e1", account="456")], "account:command-456")
    drain(connection)
    bad = connection.execute(
        "SELECT global_position FROM message_store.messages WHERE stream_name = 'account-123'"
        " AND position = 1"
    ).fetchone()[0]
    spoil(connection, bad, column, value)
    store.write(deposit("d2"), COMMANDS)
    store.write(deposit("e2", account="456"), "account:command-456")
    drain(connection)
    assert event_types(store, "456") == ["Opened", "Deposited", "Deposited"]
    if column == "data":
        ((_, (state, error)),) = letters(connection).items()
        assert (state, f"global position {bad}, " in error) == ("dead", True)
    else:  # what no projector is given
        assert letters(connection) == {}


def test_a_subscriber_goes_on(store, connection):
    """A message of another component's category is a dead letter; those after it are handled."""
    seen = []
    watcher = Component("watcher", id="account_id")
    watcher.handle(type(deposit()), category="account:command", id="account_id")(
        lambda message, entity, context: seen.append(message.deposit_id)
    )
    bad = []
    for n, (column, value) in enumerate(COLUMNS):
        store.write(deposit(f"bad{n}", account=str(n)), f"account:command-{n}")
        spoil(connection, last(connection), column, value)
        bad.append(last(connection))
    store.write(deposit("good", account="x"), "account:command-x")
    drain(connection, watcher)
    assert seen == ["good"]
    assert sorted(letters(connection)) == bad


@pytest.mark.parametrize(
    ("client", "column", "value"),
    [("sync", *one) for one in COLUMNS] + [("async", "time", "infinity")],
)
@in_loop
async def test_a_client_names_the_message(client, store, connection, database_url, column, value):
    """Whoever reads a message that cannot be read gets those before it, and its name."""
    store.write([deposit("d1"), deposit("d2"), deposit("d3")], COMMANDS)
    bad = last(connection) - 1
    spoil(connection, bad, column, value)
    named = f"Deposit at {COMMANDS}, global position {bad}, position 1 of its stream: its {column}"
    async with await Client(client == "async").open(database_url) as used:
        for reading in (used.read_stream(COMMANDS), used.read_category("account:command")):
            reading = aiter(reading)
            assert (await anext(reading)).position == 0
            with pytest.raises(DecodeError, match=named):
                await anext(reading)
        with pytest.raises(DecodeError, match=named):
            await used.read_streams({COMMANDS: 0})
        assert [m.position async for m in used.read_stream(COMMANDS, position=2)] == [2]
        assert (await used.last_message(COMMANDS)).position == 2
        spoil(connection, last(connection), column, value)
        with pytest.raises(DecodeError, match=f"position 2 of its stream: its {column}"):
            await used.last_message(COMMANDS)


@pytest.mark.parametrize(("column", "value"), SIZE_AND_TIME)
def test_the_outcome_and_the_story_name_it(store, connection, database_url, column, value):
    """The outcome and the story of a message that cannot be read say which column it is."""
    store.write(open_(), COMMANDS)
    spoil(connection, bad := last(connection), column, value)
    drain(connection)
    outcome = store.outcome(open_(), account)
    assert (outcome.state, f"its {column} is" in outcome.reason) == ("dead", True)
    assert f"its {column} is" in outcome.message.unreadable
    told = invoke_cli(
        "story", str(bad), "--data", env={"RESERVATION_DATABASE_URL": database_url}
    ).stdout
    assert f"global position {bad}, cannot be read: its {column} is" in told


def test_every_command_goes_on(store, connection, database_url):
    """Commands that meet a message that cannot be read end without a traceback."""
    store.write(open_(), COMMANDS)
    spoil(connection, bad := last(connection), "time", "infinity")
    drain(connection)
    store.write(deposit("d1"), COMMANDS)
    spoil(connection, last(connection), "time", "infinity")
    env = {"RESERVATION_DATABASE_URL": database_url}
    for command in (
        ("status", "--json"),
        ("dead-letters", "list", "--json"),
        ("dead-letters", "show", str(bad), "--json", "--data"),
        ("dead-letters", "show", str(bad), "--data"),
        ("check", "bank:account"),
        ("story", str(bad), "--json", "--data"),
        ("dead-letters", "retry", str(bad)),
    ):
        done = invoke_cli(*command, env=env)
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr
    told = json.loads(invoke_cli("story", str(bad), "--json", env=env).stdout)
    assert told["entries"][0]["time"] is None
    drain(connection)
    assert letters(connection)[bad][0] == "dead"


def test_the_letter_of_a_row_that_was_mended_is_handled(store, connection, database_url):
    """Once its time is mended, a letter is handled when it is retried."""
    store.write(open_(), COMMANDS)
    spoil(connection, bad := last(connection), "time", "infinity")
    drain(connection)
    spoil(connection, bad, "time", "2026-01-02 03:04:05")
    env = {"RESERVATION_DATABASE_URL": database_url}
    assert invoke_cli("dead-letters", "retry", str(bad), env=env).returncode == 0
    drain(connection)
    assert event_types(store) == ["Opened"]
    assert broken(connection) == {}


def test_conflicts_with_what_cannot_be_read(store, connection):
    """A command whose key is that of one that cannot be read is a duplicate, or a conflict."""
    store.write([open_(), deposit("d1"), deposit("d1")], COMMANDS)
    for position in (last(connection), last(connection) - 1):
        spoil(connection, position, "data", None)
    store.write(deposit("d1", amount="2"), COMMANDS)
    drain(connection)
    found = letters(connection)
    assert "dead" in found[last_of(connection, "account:command")]
    copies = connection.execute(
        "SELECT count(*) FROM message_store.messages WHERE stream_name LIKE %s", [f"{RESERVED}-%"]
    ).fetchone()
    assert copies == (1,)


def last_of(connection, category):
    """Return the global position of the last message of a category."""
    return connection.execute("SELECT reservation.category_head(%s)", [category]).fetchone()[0]


# What a sender's role may write.


ESCAPES = "jsonb_build_object('a', repeat(E'\\x01', %s))"

TOO_LONG = [
    ("'T'", ESCAPES % 3_000_000, "NULL"),
    ("'T'", "'{}'", ESCAPES % 3_000_000),
    ("'T'", LARGE.replace("539", "150"), "NULL"),
]
WAYS = {
    "one": "reservation.write_message(gen_random_uuid(), 'a-1', {type}, {data}, {metadata}, NULL)",
    "many": "reservation.write_messages(ARRAY[gen_random_uuid()], ARRAY['a-1'], ARRAY[{type}],"
    " ARRAY[{data}]::jsonb[], ARRAY[{metadata}]::jsonb[], ARRAY[NULL]::bigint[])",
    "later": "reservation.schedule_message(gen_random_uuid(), 'a-1', {type}, {data}, {metadata},"
    " now(), NULL)",
    "many later": "reservation.schedule_messages(ARRAY[gen_random_uuid()], ARRAY['a-1'],"
    " ARRAY[{type}], ARRAY[{data}]::jsonb[], ARRAY[{metadata}]::jsonb[], ARRAY[now()])",
    "sent": "reservation.send_messages(ARRAY[gen_random_uuid()], ARRAY['a-1'], ARRAY[{type}],"
    " ARRAY[{data}]::jsonb[], ARRAY[{metadata}]::jsonb[], ARRAY[NULL]::bigint[])",
}


def test_a_sender_writes_no_more_than_a_client_does(connection, new_role):  # noqa: F811
    """The functions refuse a sender what is longer as text than a client writes."""
    role = new_role()
    grant(connection, "sender", role, ["a"])
    run(connection, "SET ROLE {}", role)
    calls = [
        *((call, *TOO_LONG[0]) for call in WAYS.values()),
        *((WAYS["one"], *too_long) for too_long in TOO_LONG[1:]),
    ]
    for call, type_, data, metadata in calls:
        with pytest.raises(errors.ProgramLimitExceeded, match="A message for a-1 has"):
            connection.execute("SELECT " + call.format(type=type_, data=data, metadata=metadata))
    allowed = {"data": ESCAPES % 2_700_000, "metadata": ESCAPES % 2_700_000}
    connection.execute("SELECT " + WAYS["one"].format(type="'T'", **allowed))
    connection.execute("RESET ROLE")  # the owner of the store is bound as Message DB binds it
    large = LARGE.replace("539", "150")
    connection.execute("SELECT " + WAYS["one"].format(type="'T'", data=large, metadata="NULL"))


def test_the_refusal_is_the_message_s_fault(connection, new_role, store):  # noqa: F811
    """A client's error of what is too long is that of a value, and the connection goes on."""
    role = new_role()
    grant(connection, "sender", role, ["account:command"])
    run(connection, "SET ROLE {}", role)
    long = deposit("x" * (17 * 2**20))
    with pytest.raises(RefusedError, match="has data of more than 16777216 bytes of JSON"):
        MessageStore(connection, max_bytes=2**30).write(long, COMMANDS)
    assert MessageStore(connection).write(deposit(), COMMANDS) == 0
