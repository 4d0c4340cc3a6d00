"""Processes of the previous release on the schema of this one, beside those of this release."""

import itertools
import os
import re
import uuid

import pytest
from psycopg import conninfo, sql
from psycopg.types.json import Jsonb

from bank.invariants import progress
from reservation import install
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed
from reservation.store.schema.missing_rights import known_roles
from reservation.store.schema.scripts import SCHEMA_VERSION
from tests.bank import READS, RESERVED, broken, wait_until_drained
from tests.former import RELEASE, as_former, former_release, run_former, sender
from tests.processes import EXAMPLES, PATIENCE, Started, run_cli
from tests.stored_positions import store_position

pytestmark = [pytest.mark.slow, pytest.mark.check]

_numbers = itertools.count(1)

# What a program calls or reads by name: arguments and what is returned, tables and their columns.
USED = """
-- A function that has got further arguments with defaults is called as before.
SELECT format('function %s(%s) %s', p.oid::regproc, (
         SELECT string_agg(type::regtype::text, ', ' ORDER BY place)
         FROM unnest(p.proargtypes) WITH ORDINALITY AS a(type, place) WHERE place <= n
       ), pg_get_function_result(p.oid))
FROM pg_proc p, generate_series((p.pronargs - p.pronargdefaults)::int, p.pronargs) AS n
WHERE p.pronamespace::regnamespace::text IN ('reservation', 'message_store')
UNION ALL
SELECT 'column ' || a.attrelid::regclass || '.' || a.attname || ' '
       || format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace::regnamespace::text IN ('reservation', 'message_store')
  AND c.relkind IN ('r', 'v', 'p') AND a.attnum > 0 AND NOT a.attisdropped
"""

# How many commands came after another of their key, of those that are kept by it from taking effect
# again.
REISSUES = """
SELECT count(*) - count(DISTINCT coalesce(
         data->>'depositId', data->>'withdrawalId', data->>'accountId'))
FROM message_store.messages
WHERE message_store.category(stream_name) = 'account:command' AND type <> 'Close'
"""


@pytest.fixture(scope="module")
def former(tmp_path_factory):
    """Give the folder of the previous release."""
    return former_release(tmp_path_factory.mktemp("former"))


@pytest.fixture
def roles(admin):
    """Give a function that names a role for this test."""
    names = []

    def new(kind):
        names.append(f"test_{os.getpid()}_{next(_numbers)}_{kind}")
        return names[-1]

    yield new
    for name in names:
        admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


@pytest.fixture
def former_store(former, empty_database_url, roles):
    """Give the address of a store that the previous release installed, and its roles' addresses."""

    def do(*arguments):
        done = run_former(former, *arguments, database_url=empty_database_url)
        assert done.returncode == 0, done.stderr

    do("store", "install")
    addresses = {}
    for kind, further in (
        ("sender", ["--category", "account:command"]),
        ("consumer", []),
        ("auditor", []),
    ):
        role = roles(kind)
        do("store", "grants", kind, role, *further)
        with connect(empty_database_url, autocommit=True) as connection:
            login = sql.SQL("ALTER ROLE {} LOGIN PASSWORD 'secret'")
            connection.execute(login.format(sql.Identifier(role)))
        addresses[kind] = conninfo.make_conninfo(empty_database_url, user=role, password="secret")
    yield empty_database_url, addresses
    with connect(empty_database_url, autocommit=True) as connection:
        for address in addresses.values():
            role = sql.Identifier(conninfo.conninfo_to_dict(address)["user"])
            connection.execute(sql.SQL("DROP OWNED BY {}").format(role))


def used(connection):
    """Return all that programs use of the two schemas."""
    return {row[0] for row in connection.execute(USED)}


def acknowledged(*senders):
    """Return the ids that senders printed, once they have ended well."""
    ids = []
    for one in senders:
        out, err = one.communicate(timeout=PATIENCE)
        assert one.returncode == 0, err
        ids += map(uuid.UUID, out.split())
    return ids


def test_an_upgrade_takes_nothing_that_the_previous_release_uses(former_store):
    """Functions keep their arguments and results, tables their columns, roles their rights."""
    url, _ = former_store
    with connect(url, autocommit=True) as connection:
        before = used(connection)
        assert len(before) > 100
        installed = install(connection)
        assert installed.from_version < installed.to_version == SCHEMA_VERSION
        assert before - used(connection) == set()
        known = {role.kind: role.lacks for role in known_roles(connection)}
        assert known == {"sender": (), "consumer": (), "auditor": ()}


def test_an_upgrade_gives_nothing_to_a_role_that_is_of_no_kind(former_store, roles):
    """What its owner took from it, or gave it by hand, stays as it is."""
    url, addresses = former_store
    consumer = conninfo.conninfo_to_dict(addresses["consumer"])["user"]
    other = roles("other")
    with connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {other}")
        connection.execute(f"GRANT USAGE ON SCHEMA reservation TO {other}")
        connection.execute(f"GRANT INSERT, UPDATE ON reservation.dead_letters TO {other}")
        connection.execute(f"REVOKE UPDATE ON reservation.snapshots FROM {consumer}")
        install(connection)
        known = {role.role: role.lacks for role in known_roles(connection)}
        assert other not in known
        assert {"UPDATE on reservation.snapshots", "SELECT on reservation.upgrades"} <= {
            *known[consumer]
        }
        # The upgrade made this function anew, and the role could call it before.
        assert "EXECUTE on reservation.reserve" not in known[consumer]
        connection.execute(f"DROP OWNED BY {other}")


def test_an_upgrade_takes_no_message_for_a_correction(former_store):
    """The previous release knew none, so somebody else wrote it."""
    url, _ = former_store
    content = {
        "consumer": "account",
        "category": "account:command",
        "globalPosition": 1,
        "messageId": str(uuid.uuid4()),
        "corrected": {},
    }
    with connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT message_store.write_message(%s, 'account:correction-1', 'Corrected', %s)",
            [str(uuid.uuid4()), Jsonb(content)],
        )
        install(connection)
        assert connection.execute("SELECT FROM reservation.corrections").fetchall() == []


def test_a_former_program_leaves_a_newer_schema_as_it_is(former, former_store, database_url):
    """It installs nothing over it, and finds it in order."""
    url, addresses = former_store
    with connect(url, autocommit=True) as connection:
        install(connection)
        before = used(connection)
        done = run_former(former, "store", "install", database_url=url)
        assert done.returncode == 0, done.stderr
        assert "was there already, left as it is" in done.stdout.splitlines()[-1]
        assert used(connection) == before
        check_installed(connection)
    for command in (["status", "bank:account"], ["positions", "list"], ["dead-letters", "list"]):
        done = run_former(former, *command, database_url=addresses["auditor"])
        assert (done.returncode, done.stderr) == (0, ""), (RELEASE, command)


def test_a_former_program_that_cannot_change_positions_changes_nothing(former, former_store):
    """It finds no key for its statement; the command of this release does it."""
    url, _ = former_store
    with connect(url, autocommit=True) as connection:
        install(connection)
        for partition in range(2):
            store_position(connection, "account", "account:command", 0, partition)
        connection.execute(
            "INSERT INTO reservation.groups (consumer, category, partitions) "
            "VALUES ('account', 'account:command', 2)"
        )
        stored = "SELECT * FROM reservation.positions ORDER BY category, partition"
        before = connection.execute(stored).fetchall()
        command = ("partitions", "bank:account", "3", "--category", "account:command")
        done = run_former(former, *command, database_url=url)
        assert done.returncode == 2
        assert "The database refused" in done.stderr
        assert connection.execute(stored).fetchall() == before
        done = run_cli(*command, env={"RESERVATION_DATABASE_URL": url})
        assert done.returncode == 0, done.stderr
        assert len(connection.execute(stored).fetchall()) == 3


@pytest.mark.faults
def test_processes_of_both_releases_share_one_group_through_an_upgrade(former, former_store):
    """The schema is upgraded under load; all roles keep the rights that the former release gave."""
    url, addresses = former_store
    old = as_former(former)
    arguments = ("--batch-size", "20", "--partitions", "4")
    with (
        connect(url, autocommit=True) as connection,
        Started(addresses["consumer"], *arguments, cwd=former / "examples", env=old) as of_former,
    ):
        for category in READS:
            of_former.wait_for("consumer_started", category=category)
        sending = sender(old, addresses["sender"], "prompt", sends=1500)
        of_former.wait_for("batch_committed", category=RESERVED)
        assert install(connection).to_version == SCHEMA_VERSION
        of_former.wait_for("batch_committed", category=RESERVED)
        with Started(addresses["consumer"], *arguments) as of_this:
            unknown = of_this.wait_for("members_unknown")
            assert len(unknown["processes"]) == len(READS)
            for category in READS:
                of_this.wait_for("consumer_started", category=category)
                of_former.wait_for("partitions_left", category=category)
            new = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
            again = [
                sender(environment, addresses["sender"], "again", sends=1500)
                for environment in (new, old)
            ]
            ids = acknowledged(sending, *again)
            wait_until_drained(connection, of_former, of_this)
            assert of_former.stop() == 0
            of_this.wait_for("partitions_taken", category=RESERVED)
            assert of_this.stop() == 0
        assert not any(unread for unread, _ in progress(connection).values())
        assert broken(connection, set(ids)) == {}
        assert connection.execute("SELECT * FROM reservation.dead_letters").fetchall() == []
        log = of_former.log + of_this.log
        assert '"conflict"' not in log
        duplicates = sum(map(int, re.findall(r'"duplicate": (\d+)', log)))
        assert duplicates == connection.execute(REISSUES).fetchone()[0] > 2_000
    for program in (
        run_cli("status", "--json", env={"RESERVATION_DATABASE_URL": addresses["auditor"]}),
        run_former(former, "status", "--json", database_url=addresses["auditor"]),
        run_cli("check", "bank:account", env={"RESERVATION_DATABASE_URL": addresses["auditor"]}),
    ):
        assert program.returncode == 0, program.stdout + program.stderr
