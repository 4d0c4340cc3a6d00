"""What each kind of role may do with the store, and no more."""

import json
from dataclasses import dataclass
from uuid import uuid4

import pytest
from psycopg import connect, errors
from psycopg.types.json import Jsonb

import consumers
from bank import account
from reservation import Component, MessageStore, Metadata
from reservation.errors import StoreError
from tests.apps.bank import broken, drain, event_types
from tests.store.builders import as_login, check_denied, grant, granted, new_role, run
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS, Deposit, deposit, open_, withdraw

__all__ = ["as_login", "granted", "new_role", "run"]  # fixtures, and what other files use


@dataclass
class Replied:
    """What a handler replies."""

    text: str


def write(connection, stream_name):
    """Write a message through the function for one."""
    connection.execute(
        "SELECT reservation.write_message(gen_random_uuid(), %s, 'Deposit', '{}', NULL, NULL)",
        [stream_name],
    )


def write_many(connection, stream_names):
    """Write a message to each stream, through the function for many."""
    n = len(stream_names)
    connection.execute(
        "SELECT * FROM reservation.write_messages("
        "%s::uuid[], %s::text[], %s::text[], %s::jsonb[], %s::jsonb[], %s::bigint[])",
        [[uuid4() for _ in range(n)], stream_names, ["T"] * n, ["{}"] * n, [None] * n, [None] * n],
    )


def refused(connection, stream_name):
    """Return the error of a refused write, or None."""
    try:
        with connection.transaction(force_rollback=True):
            write(connection, stream_name)
    except errors.InsufficientPrivilege as error:
        return error.diag.message_primary
    return None


def test_a_sender_may_write_to_its_categories_and_do_nothing_else(connection, granted):
    """A sender can write to its categories, in no other way, and cannot read."""
    role = granted("sender", "account:command")
    run(connection, "SET ROLE {}", role)
    write(connection, COMMANDS)
    assert refused(connection, "account-123") == (
        f"The role {role} may not write to the category account"
    )
    check_denied(
        connection,
        "SELECT FROM message_store.messages",
        "SELECT message_store.write_message('x', 'account-1', 'Deposit', '{}')",
        "SELECT reservation.read_stream('account:command-123', 0, 1)",
        "SELECT reservation.lock_categories('{account-1}')",
        "SELECT FROM reservation.positions",
        "INSERT INTO reservation.sender_categories VALUES (current_user::regrole, 'account')",
    )


def test_a_sender_has_no_reply_written_where_it_may_not_write(connection, database_url, granted):
    """The consumer, with whose rights replies are written, replies to declared categories alone."""
    role = granted("sender", "till:command")
    till = Component("till", id="account_id", attempts=1, replies_to="client")
    till.handle(Deposit, once=None)(lambda command, entity, context: context.reply(Replied("paid")))
    with MessageStore.open(as_login(connection, database_url, role)) as sender:
        for name in ("client-1", "account-1", "till-1", "account:command-1"):
            metadata = Metadata(reply_stream_name=name)
            sender.write(deposit(name), "till:command-1", metadata=metadata)
    consumers.drain(till, database_url)
    with MessageStore.open(database_url) as store:
        assert [reply.type for reply in store.read_stream("client-1")] == ["Replied"]
        for name in ("account-1", "till-1", "account:command-1"):
            assert list(store.read_stream(name)) == []
    letters = connection.execute("SELECT state, reason FROM reservation.dead_letters").fetchall()
    assert letters == [("dead", "handler"), ("parked", "parked"), ("parked", "parked")]


def test_a_batch_of_a_sender_is_refused_for_its_first_forbidden_category(connection, granted):
    """A batch with a forbidden category is refused as a whole, with what to do."""
    role = granted("sender", "a", "b")
    run(connection, "SET ROLE {}", role)
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        write_many(connection, ["a-1", "d-1", "c-1", "b-1"])
    assert caught.value.diag.message_primary.endswith("to the category d")
    assert f"reservation store grants sender {role}" in caught.value.diag.message_hint
    write_many(connection, ["a-1", "b-1"])
    connection.execute("RESET ROLE")
    names = connection.execute("SELECT stream_name FROM message_store.messages ORDER BY 1")
    assert names.fetchall() == [("a-1",), ("b-1",)]


def schedule(connection, stream_name, message_id=None):
    """Schedule a message through the function for one, and return its id."""
    message_id = message_id or uuid4()
    connection.execute(
        "SELECT reservation.schedule_message(%s, %s, 'Deposit', '{}', NULL, NULL, '1 hour')",
        [message_id, stream_name],
    )
    return message_id


def cancel(connection, message_id):
    """Cancel a message, and return what became of it."""
    query = "SELECT reservation.cancel_scheduled(%s)"
    return connection.execute(query, [message_id]).fetchone()[0]


def make_due(connection):
    """Write all that is scheduled, as the owner of the store."""
    connection.execute("RESET ROLE")
    connection.execute("UPDATE reservation.scheduled SET due_at = now()")
    connection.execute("SELECT reservation.write_scheduled(100)")


def test_a_sender_schedules_and_cancels_what_it_may_write(connection, granted):
    """The categories of a sender are checked when it schedules, and when it cancels."""
    role, other = granted("sender", "a"), granted("sender", "a")
    run(connection, "SET ROLE {}", role)
    first, second = schedule(connection, "a-1"), schedule(connection, "a-2")
    with pytest.raises(errors.InsufficientPrivilege, match="may not write to the category b"):
        schedule(connection, "b-1")
    run(connection, "SET ROLE {}", other)
    assert cancel(connection, first) == cancel(connection, first) == "cancelled"
    connection.execute("RESET ROLE")
    grant(connection, "sender", role, ["c"])  # what it has scheduled before is written all the same
    make_due(connection)
    run(connection, "SET ROLE {}", other)
    assert (cancel(connection, second), cancel(connection, first)) == ("written", "cancelled")
    check_denied(
        connection,
        "SELECT FROM reservation.scheduled",
        "DELETE FROM reservation.scheduled",
        "INSERT INTO reservation.scheduled (id) VALUES (gen_random_uuid())",
        "SELECT reservation.write_scheduled(1)",
        "SELECT reservation.next_scheduled()",
    )


def test_a_sender_learns_nothing_of_what_others_schedule(connection, granted):
    """Scheduled, cancelled, written, or never there: a message of others is unknown to a sender."""
    role = granted("sender", "a")
    open_one, cancelled, written = (schedule(connection, "b-1") for _ in range(3))
    cancel(connection, cancelled)
    connection.execute("UPDATE reservation.scheduled SET due_at = now() WHERE id = %s", [written])
    connection.execute("SELECT reservation.write_scheduled(100)")
    run(connection, "SET ROLE {}", role)
    ids = (open_one, cancelled, written, uuid4())
    assert {cancel(connection, message_id) for message_id in ids} == {"unknown"}
    for message_id in (open_one, cancelled):  # which are in nobody's way
        schedule(connection, "a-1", message_id)
    with pytest.raises(errors.UniqueViolation) as caught:
        schedule(connection, "a-1", written)
    said = str(caught.value).replace(str(written), "")  # an id may hold any letters
    assert "b-1" not in said  # nor anything else of it
    assert caught.value.diag.message_detail is None
    connection.execute("RESET ROLE")
    assert cancel(connection, open_one) == "cancelled"


def test_a_sender_does_not_wait_for_a_message_that_it_may_not_cancel(
    connection, database_url, granted
):
    """How long an answer takes says nothing of a message of others that is being written."""
    role = granted("sender", "a")
    named = schedule(connection, "b-1")
    with connect(database_url) as writing:
        writing.execute("SELECT FROM reservation.scheduled FOR UPDATE")
        run(connection, "SET ROLE {}", role)
        connection.execute("SET lock_timeout = '1ms'")
        assert cancel(connection, named) == "unknown"


@pytest.mark.parametrize(
    "call",
    [
        "write_message(gen_random_uuid(), 'a-1', 'T', '{}', NULL, NULL)",
        "schedule_message(gen_random_uuid(), 'a-1', 'T', '{}', NULL, now(), NULL)",
        "cancel_scheduled(named)",
    ],
    ids=["write", "schedule", "cancel"],
)
def test_code_that_a_sender_leaves_behind_does_nothing_for_others(connection, granted, call):
    """Code of a sender that a superuser runs, as in an index, can neither send nor cancel."""
    role = granted("sender", "a")
    run(connection, "CREATE SCHEMA lair AUTHORIZATION {}", role)
    named = schedule(connection, "b-1")
    run(connection, "SET ROLE {}", role)
    connection.execute(
        "CREATE FUNCTION lair.sly(named uuid) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS "
        f"$$ BEGIN PERFORM reservation.{call}; RETURN named; END $$"
    )
    connection.execute("CREATE TABLE lair.bait (named uuid)")
    connection.execute("CREATE INDEX ON lair.bait (lair.sly(named))")
    connection.execute("INSERT INTO lair.bait VALUES (%s)", [named])
    connection.execute("RESET ROLE")
    done = "SELECT (SELECT count(*) FROM message_store.messages), count(*), count(cancelled_at)"
    before = connection.execute(f"{done} FROM reservation.scheduled").fetchone()
    for statement in ("REINDEX TABLE lair.bait", "ANALYZE lair.bait"):
        with pytest.raises(errors.InsufficientPrivilege, match="came from another role"):
            connection.execute(statement)
    assert connection.execute(f"{done} FROM reservation.scheduled").fetchone() == before


def test_a_stream_without_a_name_is_refused(connection, granted):
    """A stream without a name is refused for a sender, whatever else is wrong."""
    role = granted("sender", "a")
    run(connection, "SET ROLE {}", role)
    assert refused(connection, None).endswith("to the category NULL")
    assert refused(connection, "").endswith("to the category ")


def test_the_caller_is_the_role_that_was_set_or_the_user_of_the_session(connection, new_role):
    """The caller is the role of SET ROLE or else the user of the session."""
    sender, other, user = new_role(), new_role(), new_role()
    grant(connection, "sender", sender, ["a"])
    grant(connection, "sender", other, ["b"])
    run(connection, "GRANT {}, {} TO {}", sender, other, user)
    run(connection, "ALTER ROLE {} NOINHERIT", user)

    assert refused(connection, "b-1") is None  # the owner
    run(connection, "SET ROLE {}", sender)
    assert (refused(connection, "a-1"), refused(connection, "b-1") is None) == (None, False)
    connection.execute("RESET ROLE")
    with connection.transaction():
        run(connection, "SET LOCAL ROLE {}", other)
        assert (refused(connection, "b-1"), refused(connection, "a-1") is None) == (None, False)
    assert refused(connection, "a-1") is None

    run(connection, "SET SESSION AUTHORIZATION {}", sender)
    assert (refused(connection, "a-1"), refused(connection, "b-1") is None) == (None, False)
    connection.execute("RESET SESSION AUTHORIZATION")
    run(connection, "SET ROLE {}", sender)
    run(connection, "SET SESSION AUTHORIZATION {}", other)  # which ends SET ROLE
    assert (refused(connection, "b-1"), refused(connection, "a-1") is None) == (None, False)
    connection.execute("RESET SESSION AUTHORIZATION")


def test_a_function_of_the_sender_lends_nobody_its_categories(connection, granted):
    """In SECURITY DEFINER functions the session's rights count, not the owner's."""
    sender, other = granted("sender", "a"), granted("sender", "b")
    connection.execute(
        "CREATE FUNCTION public.lend(name text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS "
        "$$ BEGIN PERFORM reservation.write_message("
        "gen_random_uuid(), name, 'T', '{}', NULL, NULL); END $$"
    )
    run(connection, "ALTER FUNCTION public.lend OWNER TO {}", sender)
    run(connection, "SET ROLE {}", other)
    with pytest.raises(errors.InsufficientPrivilege, match=f"{other} may not .* category a"):
        connection.execute("SELECT public.lend('a-1')")
    connection.execute("SELECT public.lend('b-1')")


def test_a_member_of_a_sender_may_send_what_it_inherits(connection, database_url, new_role):
    """A member of a sender may write what it inherits."""
    group, user = new_role(), new_role()
    grant(connection, "sender", group, ["a"])
    run(connection, "GRANT {} TO {}", group, user)
    with connect(as_login(connection, database_url, user), autocommit=True) as session:
        write(session, "a-1")
        assert refused(session, "b-1").startswith(f"The role {user} may not")


def test_roles_that_may_insert_into_the_log_may_write_anywhere(connection, granted):
    """Roles that may insert into the log need no list of categories."""
    role = granted("consumer")
    for name in (role, "message_store"):
        run(connection, "SET ROLE {}", name)
        write(connection, "anything-1")
        connection.execute("RESET ROLE")


def test_the_consumers_of_the_bank_run_as_a_consumer(connection, store, database_url, granted):
    """A consumer role has all that `reservation start` needs."""
    role = granted("consumer")
    store.write([open_(), deposit(), withdraw(), deposit(), open_()], COMMANDS)
    run(connection, "SET ROLE {}", role)
    drain(connection)
    connection.execute("RESET ROLE")
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn"]
    store.write(deposit("d2"), COMMANDS)
    with hosted(account, as_login(connection, database_url, role)):
        until(lambda: event_types(store)[3:] == ["Deposited"])
    assert broken(connection) == {}


def test_a_consumer_changes_no_message_and_no_right(connection, granted):
    """A consumer role can append to the log but change no message and no right."""
    role = granted("consumer")
    run(connection, "SET ROLE {}", role)
    check_denied(
        connection,
        "UPDATE message_store.messages SET type = 'x'",
        "DELETE FROM message_store.messages",
        "TRUNCATE message_store.messages",
        "DELETE FROM reservation.leases",
        "INSERT INTO reservation.sender_categories VALUES (current_user::regrole, 'account')",
        "CREATE TABLE reservation.mine ()",
        "CREATE TABLE message_store.mine ()",
    )


def dead_deposit(connection, store):
    """Have a deposit that cannot be decoded, and return the global position of its letter."""
    store.write(open_(), COMMANDS)
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', %s)",
        [COMMANDS, Jsonb(BAD_DEPOSIT)],
    )
    drain(connection)
    return connection.execute("SELECT global_position FROM reservation.dead_letters").fetchone()[0]


BAD_DEPOSIT = {"depositId": "d1", "accountId": "123", "amount": "-", "time": "2026-01-02T03:04:05Z"}
RETRY_WITH_DATA = (
    "SELECT reservation.retry_with_data("
    "'account', 'accountTransaction', %s, %s, %s, NULL, gen_random_uuid())"
)


def test_an_operator_decides_about_dead_letters(connection, store, database_url, granted):
    """It corrects, retries and discards by the command line, and is the one who is noted."""
    role = granted("operator")
    at = str(dead_deposit(connection, store))
    env = {"RESERVATION_DATABASE_URL": as_login(connection, database_url, role)}
    content = json.dumps(BAD_DEPOSIT | {"amount": 20})
    for arguments in (
        ["list"],
        ["show", at, "--data"],
        ["retry", at],
        ["retry", at, "--data", "-", "--reason", "a slip"],
    ):
        done = invoke_cli("dead-letters", *arguments, env=env, input=content)
        assert (done.returncode, done.stderr) == (0, "")
    drain(connection)
    assert event_types(store) == ["Opened", "Deposited"]
    given = connection.execute(
        "SELECT h.decided_by, h.reason, d.data->'amount' FROM reservation.dead_letters d "
        "JOIN reservation.letter_decisions h ON h.number = d.correction"
    ).fetchall()
    assert given == [(role, "a slip", 20)]

    connection.execute("UPDATE reservation.dead_letters SET state = 'dead', next_attempt_at = NULL")
    done = invoke_cli("dead-letters", "discard", at, "--yes", env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_operator_writes_no_message_of_its_own(connection, store, granted):
    """It changes no letter but its state, no decision of anybody, and no data of a letter."""
    role = granted("operator")
    at = dead_deposit(connection, store)
    run(connection, "SET ROLE {}", role)
    check_denied(
        connection,
        "INSERT INTO message_store.messages (stream_name, type, position) VALUES ('a-1', 'T', 0)",
        "DELETE FROM message_store.messages",
        "UPDATE reservation.dead_letters SET reason = 'x'",
        "DELETE FROM reservation.dead_letters",
        "UPDATE reservation.dead_letters SET data = '{}'",
        "UPDATE reservation.dead_letters SET correction = NULL",
        "DELETE FROM reservation.finding_decisions",
        "INSERT INTO reservation.finding_decisions (decided_by) VALUES ('somebody else')",
        "INSERT INTO reservation.letter_decisions (decided_by) VALUES ('somebody else')",
        "UPDATE reservation.letter_decisions SET reason = 'x'",
        "DELETE FROM reservation.letter_decisions",
        "UPDATE reservation.moves SET position = 0",
    )
    with pytest.raises(errors.InvalidParameterValue, match="and a reason"):
        connection.execute(RETRY_WITH_DATA, [at, Jsonb(BAD_DEPOSIT), " "])
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no dead letter"):
        connection.execute(RETRY_WITH_DATA, [1, Jsonb(BAD_DEPOSIT), "r"])
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="in accountId, depositId"):
        connection.execute(RETRY_WITH_DATA, [at, Jsonb({}), "r"])
    connection.execute(RETRY_WITH_DATA, [at, Jsonb(BAD_DEPOSIT), "r"])


@pytest.mark.parametrize("kind", ["consumer", "auditor", "message_store"])
def test_nobody_else_gives_a_letter_data(connection, store, database_url, new_role, kind):
    """Neither by the function nor by the columns, although a consumer writes letters."""
    role = "message_store" if kind == "message_store" else new_role()
    if kind != "message_store":
        grant(connection, kind, role)
    at = dead_deposit(connection, store)
    run(connection, "SET ROLE {}", role)
    with pytest.raises(errors.InsufficientPrivilege, match="function retry_with_data"):
        connection.execute(RETRY_WITH_DATA, [at, Jsonb(BAD_DEPOSIT | {"amount": 1}), "r"])
    check_denied(
        connection,
        "UPDATE reservation.dead_letters SET data = '{}'",
        "UPDATE reservation.dead_letters SET correction = 1",
        "INSERT INTO reservation.dead_letters (data) VALUES ('{}')",
    )
    connection.execute("RESET ROLE")
    assert event_types(store) == ["Opened"]


def test_an_auditor_reads_with_every_client_and_writes_nothing(connection, store, granted):
    """An auditor reads with every client, and writes nothing."""
    role = granted("auditor")
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    run(connection, "SET ROLE {}", role)
    assert len(list(store.read_stream(COMMANDS))) == 2
    assert len(list(store.read_category("account:command"))) == 2
    assert len(store.read_streams({COMMANDS: 0})) == 2
    assert store.last_message(COMMANDS).position == store.stream_version(COMMANDS) == 1
    for query in (
        "SELECT message_store.get_stream_messages('account:command-123')",
        "SELECT message_store.get_category_messages('account:command', 1, 10, NULL, 0, 1)",
        "SELECT message_store.get_last_stream_message('account:command-123')",
        "SELECT message_store.stream_version('account:command-123')",
        "SELECT FROM message_store.type_summary",
    ):
        assert connection.execute(query).fetchall() != []
    check_denied(
        connection,
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}')",
        "SELECT reservation.write_message(gen_random_uuid(), 'a-1', 'T', '{}', NULL, NULL)",
        "SELECT nextval('message_store.messages_global_position_seq')",
        "UPDATE reservation.moves SET position = 0",
    )


def test_a_sender_writes_through_the_client(connection, database_url, granted):
    """A sender writes through the client, and its refusal is an error of the store."""
    role = granted("sender", "account:command")
    with MessageStore.open(as_login(connection, database_url, role)) as client:
        assert client.write(deposit(), COMMANDS) == 0
        assert client.write([deposit("d2"), deposit("d3")], COMMANDS) == 2
        with pytest.raises(StoreError, match=r"may not write to the category account; connect as"):
            client.write(deposit(), "account-123")


def test_the_error_of_a_sender_says_that_the_owner_may_not_insert_either(connection, new_role):
    """The rights used for senders' writes can be taken from the owner of the schema."""
    owner, sender = new_role("_owner"), new_role()
    grant(connection, "sender", sender, ["account:command"])
    grant(connection, "consumer", owner)
    run(connection, "GRANT SELECT ON reservation.sender_categories TO {}", owner)
    run(connection, "GRANT CREATE ON SCHEMA reservation TO {}", owner)
    function = "reservation.send_messages(uuid[], text[], text[], jsonb[], jsonb[], bigint[])"
    run(connection, f"ALTER FUNCTION {function} OWNER TO {{}}", owner)
    run(connection, "REVOKE INSERT ON message_store.messages FROM {}", owner)
    run(connection, "SET SESSION AUTHORIZATION {}", sender)
    with pytest.raises(errors.InsufficientPrivilege, match=f"{owner}, with whose rights senders"):
        write(connection, COMMANDS)
