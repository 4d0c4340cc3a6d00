"""What ``reservation store grants`` gives to a role, and to which roles it gives nothing."""

import pytest
from psycopg import connect

from reservation.admin import install
from tests.store.builders import as_login, grant, granted, new_role, refusal, run
from tests.store.test_roles import refused, write

__all__ = ["granted", "new_role"]  # fixtures


def rights_of(text):
    """Return the rights of a table, in which each line that is not indented begins with one."""
    lines = text.strip().replace("\n  ", " ").splitlines()
    return {
        f"{privilege} on {name}"
        for privileges, names in (line.split(": ") for line in lines)
        for privilege in privileges.split()
        for name in names.split(", ")
    }


# What is granted to each kind, but for the functions that consumers may call. Updates and inserts
# of operators are limited to some columns.
SENDER = rights_of("""
USAGE: schema reservation
EXECUTE: reservation.answer_http_request, reservation.ask, reservation.begin_http_request,
  reservation.cancel_scheduled, reservation.cancel_sent, reservation.commit_each,
  reservation.commit_message, reservation.commit_messages, reservation.expect_no_notice,
  reservation.expect_notice, reservation.flush_with_commit, reservation.http_request,
  reservation.log_record, reservation.may_insert, reservation.may_read, reservation.next_revision,
  reservation.notice_channel, reservation.notice_lock, reservation.outcome,
  reservation.park_http_request, reservation.schedule_message, reservation.schedule_messages,
  reservation.send_http_command, reservation.send_messages, reservation.send_scheduled,
  reservation.sent_http_commands, reservation.write_each, reservation.write_message,
  reservation.write_messages
""")
CONSUMER = rights_of("""
SELECT INSERT UPDATE: reservation.dead_letters, reservation.groups, reservation.leases,
  reservation.processed_handlers, reservation.revisions, reservation.series,
  reservation.snapshots, reservation.state_horizons
SELECT INSERT: message_store.messages, reservation.letter_decisions, reservation.passes,
  reservation.processed_messages
SELECT: reservation.finding_decisions, reservation.positions, reservation.store_identity,
  reservation.versions
SELECT INSERT UPDATE DELETE: reservation.breakers, reservation.heartbeats, reservation.members,
  reservation.moves, reservation.scheduled
USAGE SELECT: message_store.messages_global_position_seq
SELECT INSERT DELETE: reservation.pauses, reservation.rates, reservation.states
USAGE: schema message_store, schema reservation
""")
OPERATOR = rights_of("""
SELECT: message_store.messages, reservation.groups, reservation.members, reservation.series,
  reservation.store_identity, reservation.versions
SELECT INSERT DELETE: reservation.pauses
SELECT UPDATE: reservation.dead_letters, reservation.scheduled
SELECT INSERT: reservation.finding_decisions, reservation.letter_decisions
USAGE: schema message_store, schema reservation
EXECUTE: reservation.cancel_scheduled, reservation.flush_with_commit,
  reservation.readable_large_text, reservation.readable_text, reservation.readable_time,
  reservation.readable_type, reservation.retry_with_data
""")

# All rights that a role has on the two schemas, however it came by them. Everybody may call the
# functions of message_store, which run with the caller's rights.
RIGHTS = """
SELECT privilege || ' on schema ' || nspname
FROM pg_namespace, unnest('{USAGE,CREATE}'::text[]) AS privilege
WHERE nspname IN ('message_store', 'reservation')
  AND has_schema_privilege(%(role)s, oid, privilege)
UNION ALL
SELECT privilege || ' on ' || oid::regclass
FROM pg_class,
  unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER,USAGE}'::text[]) AS privilege
WHERE relnamespace IN ('message_store'::regnamespace, 'reservation'::regnamespace)
  AND CASE
    WHEN relkind = 'S' THEN privilege IN ('SELECT', 'UPDATE', 'USAGE')
      AND has_sequence_privilege(%(role)s, oid, privilege)
    WHEN relkind <> 'i' AND privilege IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
    THEN has_any_column_privilege(%(role)s, oid, privilege)
    WHEN relkind <> 'i' AND privilege <> 'USAGE'
    THEN has_table_privilege(%(role)s, oid, privilege)
  END
UNION ALL
SELECT 'EXECUTE on reservation.' || proname FROM pg_proc
WHERE pronamespace = 'reservation'::regnamespace
  AND has_function_privilege(%(role)s, oid, 'EXECUTE')
"""


def rights(connection, role):
    """Return what a role may do in the two schemas, with the functions of ours that it may call."""
    return {right for (right,) in connection.execute(RIGHTS, {"role": role})}


def sending(connection):
    """Return the roles that may send, each with a category."""
    query = "SELECT role::text, category FROM reservation.sender_categories ORDER BY category"
    return connection.execute(query).fetchall()


@pytest.mark.parametrize("suffix", ["'; DROP ROLE x --", '"quoted"', "Zoë %s {x} \\"])
def test_odd_names_are_only_names(connection, new_role, suffix):
    """Special characters in roles and categories are quoted correctly."""
    role = new_role(suffix, create=False)
    names = ["o'x:command+x", '"c" {role} %s', "back\\slash"]
    assert grant(connection, "sender", role, names)["created"]
    assert rights(connection, role) == SENDER
    run(connection, "SET ROLE {}", role)
    for name in names:
        write(connection, f"{name}-1")
    assert refused(connection, "o-1") == f"The role {role} may not write to the category o"


def test_a_grant_is_exactly_what_it_says_whatever_was_before(connection, new_role):
    """A grant replaces the rights of another kind and those granted by hand."""
    role = new_role(create=False)
    first = grant(connection, "sender", role, ["b", "a", "b"])
    assert (first["created"], first["categories"]) == (True, ["a", "b"])
    login = connection.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", [role])
    assert login.fetchone() == (False,)
    run(connection, "GRANT DELETE, SELECT (type) ON message_store.messages TO {}", role)
    run(connection, "GRANT ALL ON SCHEMA message_store TO {}", role)
    assert not grant(connection, "sender", role, ["b"])["created"]
    assert rights(connection, role) == SENDER
    assert sending(connection) == [(role, "b")]

    grant(connection, "auditor", role)
    held = rights(connection, role)
    assert "SELECT on message_store.messages" in held
    assert not [right for right in held if not right.startswith(("SELECT", "USAGE", "EXECUTE"))]
    assert not [right for right in held if "write_message" in right or "seq" in right]
    assert sending(connection) == []

    grant(connection, "consumer", role)
    held = rights(connection, role)
    assert {right for right in held if not right.startswith("EXECUTE")} == CONSUMER
    assert "EXECUTE on reservation.retry_with_data" not in held

    grant(connection, "operator", role)
    assert rights(connection, role) == OPERATOR


@pytest.mark.parametrize("kind", ["sender", "consumer", "operator", "auditor"])
def test_the_statements_do_the_same_when_others_run_them(connection, new_role, kind):
    """A dry run changes nothing, and running its statements does the whole grant."""
    role = new_role(create=False)
    names = ["o'x"] if kind == "sender" else []
    shown = grant(connection, kind, role, names, "--dry-run")
    assert (shown["created"], shown["applied"]) == (True, False)
    assert connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None
    connection.execute(shown["sql"])
    printed = rights(connection, role)
    grant(connection, kind, role, names)
    assert rights(connection, role) == printed


def test_a_role_that_would_keep_more_is_refused_and_left_as_it_was(connection, new_role):
    """A role that would keep further rights is refused and left unchanged."""
    role, reader = new_role(), new_role()
    grant(connection, "sender", role, ["a"])
    run(connection, "GRANT pg_read_all_data TO {}", role)
    told = refusal(connection, "sender", role, ["b"])
    assert "would keep SELECT on message_store." in told
    assert "a member of" in told
    assert sending(connection) == [(role, "a")]

    run(connection, "GRANT SELECT ON message_store.messages TO {} WITH GRANT OPTION", reader)
    run(connection, "GRANT USAGE ON SCHEMA message_store TO {}", reader)
    run(connection, "SET ROLE {}", reader)
    run(connection, "GRANT SELECT ON message_store.messages TO {}", role)
    connection.execute("RESET ROLE")
    told = refusal(connection, "sender", reader, ["a"])
    assert "has granted privileges of the store to others" in told


@pytest.mark.parametrize(
    ("role", "problem"),
    [
        ("message_store", "Message DB's clients"),
        ("public", "not the name of a role"),
        ("Public", "not the name of a role"),
        ("none", "not the name of a role"),
        ("", "1 to 63 bytes"),
        ("x" * 64, "1 to 63 bytes"),
        ("new\nline", "no control character"),
        ("pg_mine", "the server's own"),
    ],
)
def test_a_reserved_role_name_is_refused(connection, role, problem):
    """Names with a meaning to the server and Message DB's own role are refused."""
    assert problem in refusal(connection, "auditor", role)


def test_superusers_and_owners_are_refused(connection, new_role):
    """Superusers and owners are refused: their rights do not come from grants."""
    owner = new_role()
    (superuser,) = connection.execute("SELECT current_user").fetchone()
    assert "it is a superuser" in refusal(connection, "auditor", superuser)
    run(connection, "ALTER TABLE message_store.messages OWNER TO {}", owner)
    assert "it owns a part of the store" in refusal(connection, "auditor", owner)


@pytest.mark.parametrize(
    ("kind", "names", "problem"),
    [
        ("sender", [], "A sender needs --category"),
        ("auditor", ["a"], "--category is for a sender"),
        ("sender", ["account:command-123"], "name of a stream"),
    ],
)
def test_categories_are_for_senders_and_are_categories(connection, new_role, kind, names, problem):
    """Categories are accepted for senders only, and checked before anything is changed."""
    role = new_role(create=False)
    assert problem in refusal(connection, kind, role, names)
    assert connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None


def test_a_role_that_may_not_grant_is_an_error(connection, database_url, new_role):
    """Granting without the right to is an error, where the server would merely warn."""
    role, poor = new_role(), new_role()
    grant(connection, "auditor", poor)
    with connect(as_login(connection, database_url, poor)) as session:
        told = refusal(session, "auditor", role)
    assert "refuses" in told
    assert "connect as" in told
    assert rights(connection, role) == set()


def test_a_database_without_the_store_is_named(empty_database_url):
    """The error for a database without the store names the command that installs it."""
    with connect(empty_database_url) as empty:
        assert "reservation store install" in refusal(empty, "auditor", "nobody")


def test_a_role_made_anew_under_an_old_name_may_send_nothing(connection, granted):
    """A role created again under an old name has none of its former categories."""
    role = granted("sender", "a")
    run(connection, "DROP OWNED BY {}", role)
    run(connection, "DROP ROLE {}", role)
    run(connection, "CREATE ROLE {}", role)
    run(connection, "GRANT USAGE ON SCHEMA reservation TO {}", role)
    run(connection, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reservation TO {}", role)
    run(connection, "SET ROLE {}", role)
    assert refused(connection, "a-1").startswith(f"The role {role} may not")
    connection.execute("RESET ROLE")
    grant(connection, "sender", role, ["b"])
    assert sending(connection) == [(role, "b")]


def test_a_sender_that_is_renamed_keeps_its_categories(connection, new_role):
    """A renamed sender keeps its categories."""
    role, renamed = new_role(), new_role(create=False)
    grant(connection, "sender", role, ["a"])
    run(connection, "ALTER ROLE {} RENAME TO {}", role, renamed)
    run(connection, "SET ROLE {}", renamed)
    write(connection, "a-1")


def test_roles_without_a_grant_may_call_no_function_of_ours(connection, new_role):
    """Roles without a grant may call no function of ours, also after they are made anew."""
    role = new_role()
    run(connection, "GRANT USAGE ON SCHEMA reservation TO {}", role)
    connection.execute("CREATE FUNCTION reservation.later() RETURNS int LANGUAGE sql RETURN 1")
    assert "EXECUTE on reservation.later" in rights(connection, role)
    connection.execute("DROP FUNCTION reservation.outcome")
    assert install(connection).restored == 1
    assert rights(connection, role) == {"USAGE on schema reservation"}
