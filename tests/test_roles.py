"""What each kind of role may do with the store, and no more."""

import itertools
import json
import os
from uuid import uuid4

import pytest
from psycopg import conninfo, errors, sql
from psycopg.types.json import Jsonb

from bank import account
from consumers.correcting.correct import correct
from reservation import MessageStore, install
from reservation.errors import MissingRightError, SchemaError, StoreError, StreamNameError
from reservation.maintenance import stored_reports
from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries
from reservation.store.schema.identity import store_id
from reservation.store.schema.roles import grant
from reservation.store.schema.scripts import SCHEMA_VERSION
from spark_jobs.common.declaration import Declaration
from spark_jobs.source.columns import TYPES, CategoryQuery, PositionsQuery
from spark_jobs.source.passes import queries as passes_queries
from tests.bank import RESERVED, broken, drain, event_types
from tests.commands import invoke_cli
from tests.controls import COMMANDS, deposit, open_, withdraw
from tests.processes import Started, run_cli

_numbers = itertools.count(1)

WRITE_ONE = "reservation.write_message(uuid, text, text, jsonb, jsonb, bigint)"
WRITE_MANY = "reservation.write_messages(uuid[], text[], text[], jsonb[], jsonb[], bigint[])"

SENDER = {
    "EXECUTE on reservation.answer_http_request",
    "EXECUTE on reservation.ask",
    "EXECUTE on reservation.begin_http_request",
    "EXECUTE on reservation.cancel_scheduled",
    "EXECUTE on reservation.cancel_sent",
    "EXECUTE on reservation.commit_each",
    "EXECUTE on reservation.commit_message",
    "EXECUTE on reservation.commit_messages",
    "EXECUTE on reservation.expect_no_notice",
    "EXECUTE on reservation.expect_notice",
    "EXECUTE on reservation.flush_with_commit",
    "EXECUTE on reservation.http_request",
    "EXECUTE on reservation.log_record",
    "EXECUTE on reservation.may_insert",
    "EXECUTE on reservation.may_read",
    "EXECUTE on reservation.next_revision",
    "EXECUTE on reservation.notice_channel",
    "EXECUTE on reservation.notice_lock",
    "EXECUTE on reservation.outcome",
    "EXECUTE on reservation.park_http_request",
    "EXECUTE on reservation.schedule_message",
    "EXECUTE on reservation.schedule_messages",
    "EXECUTE on reservation.send_messages",
    "EXECUTE on reservation.send_scheduled",
    "EXECUTE on reservation.write_each",
    "EXECUTE on reservation.write_message",
    "EXECUTE on reservation.write_messages",
    "USAGE on schema reservation",
}
CONSUMER = {
    "INSERT on message_store.messages",
    "SELECT on message_store.messages",
    "SELECT on message_store.messages_global_position_seq",
    "USAGE on message_store.messages_global_position_seq",
    "USAGE on schema message_store",
    "USAGE on schema reservation",
    "SELECT on reservation.versions",
    "SELECT on reservation.upgrades",
    "SELECT on reservation.store_identity",
    "SELECT on reservation.corrections",
    "SELECT on reservation.finding_decisions",
    "SELECT on reservation.letter_decisions",
    "INSERT on reservation.letter_decisions",  # of what the server does not note itself
    "DELETE on reservation.members",
    "DELETE on reservation.states",
    "DELETE on reservation.scheduled",
    *(
        f"{privilege} on reservation.{table}"
        for table in (
            "groups",
            "positions",
            "members",
            "leases",
            "dead_letters",
            "snapshots",
            "processed_handlers",
            "revisions",
            "states",
            "state_horizons",
            "scheduled",
        )
        for privilege in ("SELECT", "INSERT", "UPDATE")
    ),
    "SELECT on reservation.processed_messages",
    "INSERT on reservation.processed_messages",
    "SELECT on reservation.passes",
    "INSERT on reservation.passes",
}
OPERATOR = {
    "USAGE on schema message_store",
    "USAGE on schema reservation",
    "SELECT on message_store.messages",
    *(
        f"SELECT on reservation.{table}"
        for table in (
            "versions",
            "upgrades",
            "store_identity",
            "dead_letters",
            "corrections",
            "finding_decisions",
            "letter_decisions",
            "scheduled",
        )
    ),
    "UPDATE on reservation.dead_letters",  # of three columns
    "INSERT on reservation.finding_decisions",  # of four columns
    "INSERT on reservation.letter_decisions",  # of what the server does not note itself
    "UPDATE on reservation.scheduled",  # of one column
    "EXECUTE on reservation.cancel_scheduled",
    "EXECUTE on reservation.correct",
    "EXECUTE on reservation.flush_with_commit",
}


@pytest.fixture
def new_role(connection):
    """Give a function that names a role for this test, and creates it on request."""
    names = []

    def new(suffix="", *, create=True):
        name = f"test_{os.getpid()}_{next(_numbers)}{suffix}"
        if create:
            run(connection, "CREATE ROLE {}", name)
        names.append(name)
        return name

    yield new
    connection.execute("RESET SESSION AUTHORIZATION")
    for name in names:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).fetchone():
            run(connection, "DROP OWNED BY {}", name)
            run(connection, "DROP ROLE {}", name)


def run(connection, statement, *names):
    """Execute a statement with these identifiers in it."""
    connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


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


def rights(connection, role):
    """Return what a role may do in the two schemas, with the functions of ours that it may call."""
    query = load_queries("reservation.store.schema", "roles.sql")["effective"]
    return {row[0] for row in connection.execute(query, {"role": role})}


def as_login(connection, database_url, role):
    """Let a role log in, and return the database's address for it."""
    run(connection, "ALTER ROLE {} LOGIN PASSWORD 'secret'", role)
    return conninfo.make_conninfo(database_url, user=role, password="secret")


def test_a_sender_may_write_to_its_categories_and_do_nothing_else(connection, new_role):
    """A sender can write to its categories, in no other way, and cannot read."""
    role = new_role()
    grant(connection, "sender", role, ["account:command"])
    assert rights(connection, role) == SENDER
    run(connection, "SET ROLE {}", role)
    write(connection, COMMANDS)
    assert refused(connection, "account-123") == (
        f"The role {role} may not write to the category account"
    )
    for statement in (
        "SELECT FROM message_store.messages",
        "SELECT message_store.write_message('x', 'account-1', 'Deposit', '{}')",
        "SELECT reservation.read_stream('account:command-123', 0, 1)",
        "SELECT reservation.lock_categories('{account-1}')",
        "SELECT FROM reservation.positions",
        "INSERT INTO reservation.sender_categories VALUES (current_user::regrole, 'account')",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement)


def test_a_batch_of_a_sender_is_refused_for_its_first_forbidden_category(connection, new_role):
    """A batch with a forbidden category is refused as a whole, with what to do."""
    role = new_role()
    grant(connection, "sender", role, ["a", "b"])
    run(connection, "SET ROLE {}", role)
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        write_many(connection, ["a-1", "d-1", "c-1", "b-1"])
    assert caught.value.diag.message_primary.endswith("to the category d")
    assert f"reservation store grants sender {role}" in caught.value.diag.message_hint
    write_many(connection, ["a-1", "b-1"])
    connection.execute("RESET ROLE")
    names = connection.execute("SELECT stream_name FROM message_store.messages ORDER BY 1")
    assert names.fetchall() == [("a-1",), ("b-1",)]


def test_code_that_a_sender_leaves_behind_writes_nothing_for_others(connection, new_role):
    """Code of a sender that a superuser runs, as in an index, cannot send."""
    role = new_role()
    grant(connection, "sender", role, ["a"])
    run(connection, "CREATE SCHEMA lair AUTHORIZATION {}", role)
    run(connection, "SET ROLE {}", role)
    connection.execute(
        "CREATE FUNCTION lair.sly(stream_name text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$"
        "BEGIN PERFORM reservation.write_message(gen_random_uuid(), stream_name, 'T', '{}', NULL,"
        " NULL); RETURN stream_name; END $$"
    )
    connection.execute("CREATE TABLE lair.bait (stream_name text)")
    connection.execute("CREATE INDEX ON lair.bait (lair.sly(stream_name))")
    connection.execute("INSERT INTO lair.bait VALUES ('a-1')")
    connection.execute("RESET ROLE")
    with pytest.raises(errors.InsufficientPrivilege, match="came from another role"):
        connection.execute("REINDEX TABLE lair.bait")
    with pytest.raises(errors.InsufficientPrivilege, match="came from another role"):
        connection.execute("ANALYZE lair.bait")
    assert len(list(MessageStore(connection).read_category("a"))) == 1


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


def test_a_sender_schedules_and_cancels_what_it_may_write(connection, new_role):
    """The categories of a sender are checked when it schedules, and when it cancels."""
    role, other = new_role(), new_role()
    grant(connection, "sender", role, ["a"])
    grant(connection, "sender", other, ["a"])
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
    for statement in (
        "SELECT FROM reservation.scheduled",
        "DELETE FROM reservation.scheduled",
        "INSERT INTO reservation.scheduled (id) VALUES (gen_random_uuid())",
        "SELECT reservation.write_scheduled(1)",
        "SELECT reservation.next_scheduled()",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement)


def test_a_sender_learns_nothing_of_what_others_schedule(connection, new_role):
    """Scheduled, cancelled, written, or never there: a message of others is unknown to a sender."""
    role = new_role()
    grant(connection, "sender", role, ["a"])
    open_one, cancelled, written = (schedule(connection, "b-1") for _ in range(3))
    cancel(connection, cancelled)
    connection.execute("UPDATE reservation.scheduled SET due_at = now() WHERE id = %s", [written])
    connection.execute("SELECT reservation.write_scheduled(100)")
    run(connection, "SET ROLE {}", role)
    ids = (open_one, cancelled, written, uuid4())
    assert {cancel(connection, message_id) for message_id in ids} == {"unknown"}
    for message_id in (open_one, cancelled, written):
        with pytest.raises(errors.UniqueViolation) as caught:
            schedule(connection, "a-1", message_id)
        assert "b-1" not in str(caught.value)  # nor anything else of it
        assert caught.value.diag.message_detail is None
    connection.execute("RESET ROLE")
    assert cancel(connection, open_one) == "cancelled"


def test_a_sender_does_not_wait_for_a_message_that_it_may_not_cancel(
    connection, database_url, new_role
):
    """How long an answer takes says nothing of a message of others that is being written."""
    role = new_role()
    grant(connection, "sender", role, ["a"])
    named = schedule(connection, "b-1")
    with connect(database_url) as writing:
        writing.execute("SELECT FROM reservation.scheduled FOR UPDATE")
        run(connection, "SET ROLE {}", role)
        connection.execute("SET lock_timeout = '1ms'")
        assert cancel(connection, named) == "unknown"


@pytest.mark.parametrize(
    "call",
    [
        "cancel_scheduled(named)",
        "schedule_message(gen_random_uuid(), 'a-1', 'T', '{}', NULL, now(), NULL)",
    ],
    ids=["cancel", "schedule"],
)
def test_code_that_a_sender_leaves_behind_schedules_and_cancels_nothing_for_others(
    connection, new_role, call
):
    """Code of a sender that a superuser runs, as in an index, can neither schedule nor cancel."""
    role = new_role()
    grant(connection, "sender", role, ["a"])
    run(connection, "CREATE SCHEMA lair AUTHORIZATION {}", role)
    named = schedule(connection, "b-1")
    run(connection, "SET ROLE {}", role)
    connection.execute(
        "CREATE FUNCTION lair.sly(named uuid) RETURNS uuid LANGUAGE plpgsql IMMUTABLE AS "
        f"$$ BEGIN PERFORM reservation.{call}; RETURN named; END $$".encode()
    )
    connection.execute("CREATE TABLE lair.bait (named uuid)")
    connection.execute("CREATE INDEX ON lair.bait (lair.sly(named))")
    connection.execute("INSERT INTO lair.bait VALUES (%s)", [named])
    connection.execute("RESET ROLE")
    with pytest.raises(errors.InsufficientPrivilege, match="came from another role"):
        connection.execute("REINDEX TABLE lair.bait")
    rows = connection.execute(
        "SELECT cancelled_at FROM reservation.scheduled WHERE id = %s", [named]
    )
    assert rows.fetchall() == [(None,)]


def test_a_stream_without_a_name_is_refused(connection, new_role):
    """A stream without a name is refused for a sender, whatever else is wrong."""
    role = new_role()
    grant(connection, "sender", role, ["a"])
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


def test_a_function_of_the_sender_lends_nobody_its_categories(connection, new_role):
    """In SECURITY DEFINER functions the session's rights count, not the owner's."""
    sender, other = new_role(), new_role()
    grant(connection, "sender", sender, ["a"])
    grant(connection, "sender", other, ["b"])
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


def test_roles_that_may_insert_into_the_log_may_write_anywhere(connection, new_role):
    """Roles that may insert into the log need no list of categories."""
    role = new_role()
    grant(connection, "consumer", role)
    for name in (role, "message_store"):
        run(connection, "SET ROLE {}", name)
        write(connection, "anything-1")
        connection.execute("RESET ROLE")


def test_a_role_made_anew_under_an_old_name_may_send_nothing(connection, new_role):
    """A role created again under an old name has none of its former categories."""
    role = new_role()
    grant(connection, "sender", role, ["a"])
    run(connection, "DROP OWNED BY {}", role)
    run(connection, "DROP ROLE {}", role)
    run(connection, "CREATE ROLE {}", role)
    run(connection, "GRANT USAGE ON SCHEMA reservation TO {}", role)
    run(connection, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reservation TO {}", role)
    run(connection, "SET ROLE {}", role)
    assert refused(connection, "a-1").startswith(f"The role {role} may not")
    connection.execute("RESET ROLE")
    grant(connection, "sender", role, ["b"])
    rows = connection.execute("SELECT role::text, category FROM reservation.sender_categories")
    assert rows.fetchall() == [(role, "b")]


def test_a_sender_that_is_renamed_keeps_its_categories(connection, new_role):
    """A renamed sender keeps its categories."""
    role, renamed = new_role(), new_role(create=False)
    grant(connection, "sender", role, ["a"])
    run(connection, "ALTER ROLE {} RENAME TO {}", role, renamed)
    run(connection, "SET ROLE {}", renamed)
    write(connection, "a-1")


@pytest.mark.parametrize("suffix", ["'; DROP ROLE x --", '"quoted"', "Zoë %s {x} \\"])
def test_odd_names_are_only_names(connection, new_role, suffix):
    """Special characters in roles and categories are quoted correctly."""
    role = new_role(suffix, create=False)
    categories = ["o'x:command+x", '"c" {role} %s', "back\\slash"]
    granted = grant(connection, "sender", role, categories)
    assert granted.created
    assert rights(connection, role) == SENDER
    run(connection, "SET ROLE {}", role)
    for category in categories:
        write(connection, f"{category}-1")
    assert refused(connection, "o-1") == f"The role {role} may not write to the category o"


def test_a_grant_is_exactly_what_it_says_whatever_was_before(connection, new_role):
    """A grant replaces the rights of another kind and those granted by hand."""
    role = new_role(create=False)
    first = grant(connection, "sender", role, ["b", "a", "b"])
    assert (first.created, first.categories) == (True, ("a", "b"))
    login = connection.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", [role])
    assert login.fetchone() == (False,)
    run(connection, "GRANT DELETE, SELECT (type) ON message_store.messages TO {}", role)
    run(connection, "GRANT ALL ON SCHEMA message_store TO {}", role)
    assert not grant(connection, "sender", role, ["b"]).created
    assert rights(connection, role) == SENDER
    rows = connection.execute("SELECT role::text, category FROM reservation.sender_categories")
    assert rows.fetchall() == [(role, "b")]

    grant(connection, "auditor", role)
    held = rights(connection, role)
    assert "SELECT on message_store.messages" in held
    assert not [right for right in held if not right.startswith(("SELECT", "USAGE", "EXECUTE"))]
    assert not [right for right in held if "write_message" in right or "seq" in right]
    assert connection.execute("SELECT FROM reservation.sender_categories").fetchall() == []

    grant(connection, "consumer", role)
    held = rights(connection, role)
    assert {right for right in held if not right.startswith("EXECUTE")} == CONSUMER
    assert "EXECUTE on reservation.correct" not in held

    grant(connection, "operator", role)
    assert rights(connection, role) == OPERATOR


def test_the_statements_do_the_same_when_others_run_them(connection, new_role):
    """A dry run changes nothing, and running its statements does the whole grant."""
    role = new_role(create=False)
    kinds = (("sender", ["o'x"]), ("consumer", []), ("operator", []), ("auditor", []))
    for kind, categories in kinds:
        shown = grant(connection, kind, role, categories, dry_run=True)
        before = rights(connection, role) if not shown.created else None
        assert shown.created == (kind == "sender")
        connection.execute(shown.statements)
        printed = rights(connection, role)
        assert printed != before
        grant(connection, kind, role, categories)
        assert rights(connection, role) == printed


def test_a_role_that_would_keep_more_is_refused_and_left_as_it_was(connection, new_role):
    """A role that would keep further rights is refused and left unchanged."""
    role, reader = new_role(), new_role()
    grant(connection, "sender", role, ["a"])
    run(connection, "GRANT pg_read_all_data TO {}", role)
    with pytest.raises(StoreError, match=r"would keep SELECT on message_store.* a member of"):
        grant(connection, "sender", role, ["b"])
    rows = connection.execute("SELECT category FROM reservation.sender_categories")
    assert rows.fetchall() == [("a",)]
    run(connection, "GRANT SELECT ON message_store.messages TO {} WITH GRANT OPTION", reader)
    run(connection, "SET ROLE {}", reader)
    connection.execute("RESET ROLE")
    run(connection, "GRANT USAGE ON SCHEMA message_store TO {}", reader)
    run(connection, "SET ROLE {}", reader)
    run(connection, "GRANT SELECT ON message_store.messages TO {}", role)
    connection.execute("RESET ROLE")
    with pytest.raises(StoreError, match=r"has granted privileges of the store to others"):
        grant(connection, "sender", reader, ["a"])


@pytest.mark.parametrize(
    ("role", "problem"),
    [
        ("message_store", "Message DB's clients"),
        ("public", "no role"),
        ("Public", "no role"),
        ("none", "no role"),
        ("", "1 to 63 bytes"),
        ("x" * 64, "1 to 63 bytes"),
        ("new\nline", "no control character"),
        ("pg_mine", "the server.s own"),
    ],
)
def test_a_reserved_role_name_is_refused(connection, role, problem):
    """Names with a meaning to the server and Message DB's own role are refused."""
    with pytest.raises(StoreError, match=problem):
        grant(connection, "auditor", role)


def test_superusers_and_owners_are_refused(connection, new_role):
    """Superusers and owners are refused: their rights do not come from grants."""
    owner = new_role()
    (superuser,) = connection.execute("SELECT current_user").fetchone()
    with pytest.raises(StoreError, match="it is a superuser"):
        grant(connection, "auditor", superuser)
    run(connection, "ALTER TABLE message_store.messages OWNER TO {}", owner)
    with pytest.raises(StoreError, match="it owns a part of the store"):
        grant(connection, "auditor", owner)


def test_categories_are_for_senders_and_are_categories(connection, new_role):
    """Categories are accepted for senders only, and checked before anything is changed."""
    role = new_role(create=False)
    with pytest.raises(StoreError, match="none is named"):
        grant(connection, "sender", role)
    with pytest.raises(StoreError, match="Categories are for senders"):
        grant(connection, "auditor", role, ["a"])
    with pytest.raises(StreamNameError, match="name of a stream"):
        grant(connection, "sender", role, [COMMANDS])
    found = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role])
    assert found.fetchone() is None


def test_a_role_that_may_not_grant_is_an_error(connection, database_url, new_role):
    """Granting without the right to is an error, where the server would merely warn."""
    role, poor = new_role(), new_role()
    grant(connection, "auditor", poor)
    with (
        connect(as_login(connection, database_url, poor), autocommit=True) as session,
        pytest.raises(StoreError, match=r"refuses.*connect as"),
    ):
        grant(session, "auditor", role)
    assert rights(connection, role) == set()


def test_a_database_without_the_store_is_named(empty_database_url):
    """The error for a database without the store names the command that installs it."""
    with (
        connect(empty_database_url, autocommit=True) as empty,
        pytest.raises(SchemaError, match="reservation store install"),
    ):
        grant(empty, "auditor", "nobody")


def test_the_consumers_of_the_bank_run_as_a_consumer(connection, store, database_url, new_role):
    """A consumer role has all that `reservation start` needs."""
    role = new_role()
    grant(connection, "consumer", role)
    store.write([open_(), deposit(), withdraw(), deposit(), open_()], COMMANDS)
    run(connection, "SET ROLE {}", role)
    drain(connection)
    connection.execute("RESET ROLE")
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn"]
    store.write(deposit("d2"), COMMANDS)
    with Started(as_login(connection, database_url, role)) as started:
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        assert started.stop() == 0
    assert broken(connection) == {}


def test_a_consumer_changes_no_message_and_no_right(connection, new_role):
    """A consumer role can append to the log but change no message and no right."""
    role = new_role()
    grant(connection, "consumer", role)
    run(connection, "SET ROLE {}", role)
    for statement in (
        "UPDATE message_store.messages SET type = 'x'",
        "DELETE FROM message_store.messages",
        "TRUNCATE message_store.messages",
        "DELETE FROM reservation.positions",
        "INSERT INTO reservation.sender_categories VALUES (current_user::regrole, 'account')",
        "CREATE TABLE reservation.mine ()",
        "CREATE TABLE message_store.mine ()",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement)


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
CORRECT = "SELECT * FROM reservation.correct('account', 'accountTransaction', %s, '{}', 'r', '{}')"


def test_an_operator_decides_about_dead_letters(connection, store, database_url, new_role):
    """It corrects, retries and discards by the command line, and is the one who is noted."""
    role = new_role()
    grant(connection, "operator", role)
    at = str(dead_deposit(connection, store))
    env = {"RESERVATION_DATABASE_URL": as_login(connection, database_url, role)}
    content = json.dumps(BAD_DEPOSIT | {"amount": 20})
    for arguments in (
        ["list"],
        ["show", at, "--data"],
        ["retry", at],
        ["correct", "bank:account", at, "--data", "-", "--reason", "a slip"],
    ):
        done = invoke_cli("dead-letters", *arguments, env=env, input=content)
        assert (done.returncode, done.stderr) == (0, "")
    drain(connection)
    assert event_types(store) == ["Opened", "Deposited"]
    ((data,),) = connection.execute(
        "SELECT data FROM message_store.messages WHERE type = 'Corrected'"
    ).fetchall()
    assert data["sessionUser"] == role

    connection.execute("UPDATE reservation.dead_letters SET state = 'dead'")
    done = invoke_cli("dead-letters", "discard", at, "--yes", env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_operator_writes_no_message_of_its_own(connection, store, new_role):
    """It changes no letter but its state, no decision of anybody, and nothing of a correction."""
    role = new_role()
    grant(connection, "operator", role)
    at = dead_deposit(connection, store)
    run(connection, "SET ROLE {}", role)
    for statement in (
        "INSERT INTO message_store.messages (stream_name, type, position) VALUES ('a-1', 'T', 0)",
        "DELETE FROM message_store.messages",
        "UPDATE reservation.dead_letters SET reason = 'x'",
        "DELETE FROM reservation.dead_letters",
        "INSERT INTO reservation.corrections VALUES (1)",
        "DELETE FROM reservation.corrections",
        "DELETE FROM reservation.finding_decisions",
        "INSERT INTO reservation.finding_decisions (decided_by) VALUES ('somebody else')",
        "INSERT INTO reservation.letter_decisions (decided_by) VALUES ('somebody else')",
        "UPDATE reservation.letter_decisions SET reason = 'x'",
        "DELETE FROM reservation.letter_decisions",
        "UPDATE reservation.positions SET position = 0",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement)
    with pytest.raises(errors.InvalidParameterValue, match="and a reason"):
        connection.execute(
            "SELECT reservation.correct('account', 'accountTransaction', %s, '{}', ' ', '{}')", [at]
        )
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="no dead letter"):
        connection.execute(CORRECT, [1])
    connection.execute(CORRECT, [at])


@pytest.mark.parametrize("kind", ["consumer", "auditor", "message_store"])
def test_nobody_else_corrects(connection, store, database_url, new_role, kind):
    """A message that says that it is a correction is none: only the function registers one."""
    role = "message_store" if kind == "message_store" else new_role()
    if kind != "message_store":
        grant(connection, kind, role)
    at = dead_deposit(connection, store)
    run(connection, "SET ROLE {}", role)
    with pytest.raises(errors.InsufficientPrivilege, match="function correct"):
        connection.execute(CORRECT, [at])
    with pytest.raises(MissingRightError, match=f"store grants operator {role}`"):
        correct(connection, account, None, at, json.dumps(BAD_DEPOSIT).encode(), "r")
    with pytest.raises(errors.InsufficientPrivilege):
        connection.execute("INSERT INTO reservation.corrections VALUES (1)")
    if kind != "auditor":
        forged = {"consumer": "account", "category": RESERVED, "globalPosition": at}
        connection.execute(
            "SELECT reservation.write_message(gen_random_uuid(), %s, 'Corrected', %s, NULL, NULL)",
            [
                f"account:correction-{at}",
                Jsonb(forged | {"corrected": BAD_DEPOSIT | {"amount": 1}}),
            ],
        )
        connection.execute("UPDATE reservation.dead_letters SET state = 'retry'")
    connection.execute("RESET ROLE")
    drain(connection)
    assert event_types(store) == ["Opened"]


def test_an_auditor_reads_with_every_client_and_writes_nothing(connection, store, new_role):
    """An auditor reads with every client and the Spark jobs and writes nothing."""
    role = new_role()
    grant(connection, "auditor", role)
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
    queries = {
        **load_queries("spark_jobs.source"),
        **load_queries("spark_jobs.snapshot"),
        **load_queries("spark_jobs.snapshot", "checksums.sql"),
    }
    with connection.transaction():
        for name, parameters in {
            "export_snapshot": None,
            "positions": ["account", "account:command"],
            "letters": ["account", "account:command"],
            "position_of_eventide": {"category": "account:command+position"},
            "head": {"category": "account:command"},
            "bounds": {"category": "account:command", "first": 1, "last": 9},
            "pages": None,
            "sample": {"categories": ["account:command"], "first": 1, "last": 9, "percent": 100},
            "limited": {"categories": ["account:command"], "first": [1], "last": [9], "rows": 1},
        }.items():
            found = connection.execute(queries[name], parameters).fetchall()
            assert (found == []) == (name == "letters"), name  # of which there are none
        query = CategoryQuery("account:command", list(TYPES), Declaration.of(account), [])
        assert len(connection.execute(query.text(1, 9, connection)).fetchall()) == 2
        chosen = PositionsQuery(["account:command"], list(TYPES), Declaration.of(account), [])
        assert len(connection.execute(chosen.text([1, 2, 9])).fetchall()) == 2
        (passes,) = passes_queries(["account-payment"], list(TYPES), Declaration.of(account), ())
        assert connection.execute(passes.text(1, 9, connection)).fetchall() == []
    for statement in (
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}')",
        "SELECT reservation.write_message(gen_random_uuid(), 'a-1', 'T', '{}', NULL, NULL)",
        "SELECT nextval('message_store.messages_global_position_seq')",
        "UPDATE reservation.positions SET position = 0",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["consumer", "auditor"])
def test_consumers_and_auditors_know_which_store_it_is(connection, new_role, kind):
    """Consumers and auditors can read the store's id."""
    role = new_role()
    grant(connection, kind, role)
    run(connection, "SET ROLE {}", role)
    assert store_id(connection) is not None


@pytest.mark.long
def test_an_auditor_reconciles(connection, store, database_url, new_role):
    """`reservation reconcile` and its workers run as an auditor."""
    role = new_role()
    grant(connection, "auditor", role)
    store.write([open_(), deposit(), deposit()], COMMANDS)
    drain(connection)
    address = as_login(connection, database_url, role)
    env = {"RESERVATION_DATABASE_URL": address}
    done = run_cli("reconcile", "bank:account", "--store-report", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "In order" in done.stdout
    (stored,) = stored_reports.page(connection, "account", 10)
    assert (stored.stored_by, stored.mode, stored.in_order) == (role, "full", True)


def test_roles_without_a_grant_may_call_no_function_of_ours(connection, new_role, monkeypatch):
    """Roles without a grant may call no function of ours, also after an upgrade."""
    role = new_role()
    run(connection, "GRANT USAGE ON SCHEMA reservation TO {}", role)
    connection.execute("CREATE FUNCTION reservation.later() RETURNS int LANGUAGE sql RETURN 1")
    assert "EXECUTE on reservation.later" in rights(connection, role)
    monkeypatch.setattr("reservation.store.schema.install.SCHEMA_VERSION", SCHEMA_VERSION + 1)
    install(connection)
    assert rights(connection, role) == {"USAGE on schema reservation"}


def test_a_sender_writes_through_the_client(connection, database_url, new_role):
    """A sender writes through the client, and its refusal is an error of the store."""
    role = new_role()
    grant(connection, "sender", role, ["account:command"])
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
    connection.execute(
        sql.SQL(
            "ALTER FUNCTION reservation.send_messages(uuid[], text[], text[], jsonb[], jsonb[], "
            "bigint[]) OWNER TO {}"
        ).format(sql.Identifier(owner))
    )
    run(connection, "REVOKE INSERT ON message_store.messages FROM {}", owner)
    run(connection, "SET SESSION AUTHORIZATION {}", sender)
    with pytest.raises(errors.InsufficientPrivilege, match=f"{owner}, with whose rights senders"):
        write(connection, COMMANDS)
