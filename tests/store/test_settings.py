"""Settings of a database: whatever they are, the same commands have the same effects."""

import json
import threading

import psycopg
import pytest
from psycopg import sql

import consumers
from bank import account
from reservation import MessageStore
from reservation.errors import ReservationError
from tests.store.clients import CLIENTS, in_loop
from tests.support.commands import invoke_cli
from tests.support.controls import COMMANDS, deposit, open_, withdraw
from tests.support.started import PATIENCE
from tests.support.watching import until

# Of what the commands print: what is of a run.
OF_A_RUN = {
    *("time", "storeId", "process", "createdAt", "changedAt", "updatedAt", "id", "messageId"),
    *("lookedUntil", "alternatives", "lagSeconds"),
}
UNDECODABLE = {"depositId": "bad", "accountId": "123", "amount": "x"}
COMMANDS_TO_RUN = [
    ("status", "--json"),
    ("dead-letters", "list", "--json"),
    ("story", "w1", "--json"),
    ("check", "bank:account", "--json"),
    ("positions", "list", "--json"),
]


def play(database_url, control):
    """Send, reserve, handle, refuse, schedule and ask; return all that a user sees."""
    with MessageStore.open(database_url) as store:
        store.write([open_(), deposit("d1"), deposit("d1"), deposit("d1", amount="9")], COMMANDS)
        store.write(withdraw("w1"), COMMANDS)
        store.write(deposit("ü\\'\"\u2028"), COMMANDS)
        control.execute(
            "SELECT message_store.write_message(gen_random_uuid()::text, %s, 'Deposit', %s)",
            [COMMANDS, json.dumps(UNDECODABLE)],
        )
        store.write(deposit("later"), COMMANDS, after="0s")
        store.cancel(store.write(deposit("never"), COMMANDS, after="1d"))
        consumers.drain(account, database_url)
        store.write([open_("456"), deposit("e1", account="456")], "account:command-456")
        consumers.drain(account, database_url)
        asked = [open_(), withdraw("w1"), deposit("d1"), deposit("d1", amount="9"), deposit("no")]
        outcomes = [store.outcome(command, account) for command in asked]
        seen = {
            "outcomes": [(one.state, [type(e).__name__ for e in one.events]) for one in outcomes],
            "read": [m.type for m in store.read_category("account:command", batch_size=3)],
            "last": store.last_message("account-123").type,
        }
    env = {"RESERVATION_DATABASE_URL": database_url}
    for command in COMMANDS_TO_RUN:
        done = invoke_cli(*command, env=env)
        seen[command] = (done.returncode, done.stderr, steady(json.loads(done.stdout or "null")))
    seen["log"] = control.execute(
        "SELECT stream_name, position, type, data - 'processedTime', metadata"
        " FROM message_store.messages ORDER BY stream_name, position"
    ).fetchall()
    seen["letters"] = control.execute(
        "SELECT global_position, state, reason, error, entity FROM reservation.dead_letters"
        " ORDER BY global_position"
    ).fetchall()
    return seen


def steady(value):
    """Return JSON without what is of a run."""
    if isinstance(value, dict):
        return {name: steady(part) for name, part in value.items() if name not in OF_A_RUN}
    return [steady(part) for part in value] if isinstance(value, list) else value


@pytest.fixture
def played(make_database, template):
    """Give a function that plays in a database with some settings, and returns what is seen."""

    def with_settings(settings):
        database_url = make_database(template)
        with psycopg.connect(database_url, autocommit=True) as control:
            for name, value in settings:
                set_for_database(control, name, value)
            try:
                return play(database_url, control)
            except ReservationError as error:
                return {"raised": str(error)}

    return with_settings


def set_for_database(control, name, value):
    """Set something for all later sessions of a database."""
    text = sql.SQL(value) if name == "search_path" else sql.Literal(value)
    control.execute(
        sql.SQL("ALTER DATABASE {} SET {} = {}").format(
            sql.Identifier(control.info.dbname), sql.Identifier(name), text
        )
    )


def test_settings_that_changed_something(played):
    """Settings under which a consumer stopped, or a sender could not write, change nothing."""
    wanted = played([])
    assert wanted == played([("array_nulls", "off"), ("session_replication_role", "replica")])
    assert wanted == played([("default_transaction_read_only", "on")])
    assert wanted == played([("default_transaction_isolation", "serializable")])


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_sender_sees_what_was_written_while_it_waited(client, level, database_url, connection):
    """A sender that waited for its category's lock writes behind what the holder wrote."""
    set_for_database(connection, "default_transaction_isolation", level)

    @in_loop
    async def send():
        async with await client.open(database_url) as sender:
            sent.append(await sender.write(deposit("d2"), COMMANDS))

    sent = []
    with psycopg.connect(database_url) as holder:
        holder.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        MessageStore(holder).write(deposit("d1"), COMMANDS)
        sending = threading.Thread(target=send)
        sending.start()
        until(lambda: connection.execute(WAITING).fetchone() == (1,))
        holder.commit()
    sending.join(PATIENCE)
    assert sent == [1]


WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
