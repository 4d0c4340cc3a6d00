"""What ``reservation check`` finds in stores that were made wrong, and in those in order."""

import io
import json
import os
import re
from dataclasses import dataclass

import pytest
from psycopg import conninfo, sql
from rich.console import Console

from bank import account
from cli.check.table import render
from consumers.checking.check import check
from consumers.checking.messages import sampled
from consumers.checking.report import Kind
from reservation import Component, StoredMessage
from reservation.inspection import sampling
from reservation.inspection.tally import MOST_TYPES, Inspector, Knowledge, Tally
from reservation.postgres.connection import connect
from reservation.store.schema.roles import grant
from tests.bank import RESERVED, drain
from tests.commands import invoke_cli
from tests.controls import COMMANDS, deposit, open_, stored, withdraw
from tests.processes import run_cli
from tests.test_members import bank, joined

INSERT = """
INSERT INTO message_store.messages (stream_name, position, type, data, metadata)
SELECT %(stream)s, coalesce(max(position), -1) + 1, %(type)s, %(data)s::jsonb, %(metadata)s::jsonb
FROM message_store.messages WHERE stream_name = %(stream)s
RETURNING global_position
"""

MANY = """
INSERT INTO message_store.messages (stream_name, position, type, data)
SELECT %(category)s || '-' || n %% 100, n, %(type)s, '{"accountId": "a", "time": "2026-01-01"}'
FROM generate_series(%(first)s::bigint, %(last)s) AS n
"""


def insert(connection, stream, type_, data="{}", metadata=None):
    """Store a message as another program may, and return its global position."""
    values = {"stream": stream, "type": type_, "data": data, "metadata": metadata}
    return connection.execute(INSERT, values).fetchone()[0]


def checked(connection, component=account, **options):
    """Return what a check finds."""
    return check(connection, component, "bank:account", **options)


def findings(report, severity="finding"):
    """Return the kind, category, name and count of each finding."""
    return [
        (one.kind.value, one.category, one.name, one.count)
        for one in report.findings
        if one.severity == severity
    ]


def text(report, kind):
    """Return the text and the way out of the only finding of a kind."""
    (found,) = [one for one in report.findings if one.kind == kind]
    return f"{found.text}; {found.action}"


@pytest.fixture(name="bank_check")
def _bank_check(database_url):
    """Give a function that runs the command, and returns its status and output."""

    def run(*arguments, url=database_url, app="bank:account"):
        environment = {"RESERVATION_DATABASE_URL": url, "COLUMNS": "400"}
        return invoke_cli("check", app, *arguments, env=environment)

    return run


def test_a_store_in_order_is_in_order(connection, store, bank_check):
    """Each type is counted in each category, and nothing is said about any."""
    store.write([open_(), deposit(), deposit(), withdraw()], COMMANDS)
    drain(connection)
    done = bank_check()
    assert (done.returncode, done.stderr) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    assert ["account:command", "Deposit", "2", "2", "in order", ""] in rows
    assert [RESERVED, "Deposit", "1", "1", "in order", ""] in rows
    assert ["account", "Closed", "0", "0", "none stored", ""] in rows
    assert "In order. Up to 2,000 messages of each category were decoded" in done.stdout
    assert findings(checked(connection), "note") == []


def test_the_first_command_of_a_stream_is_no_reservation(connection, store):
    """Only a message of the reservation category has the name of a reservation."""
    store.write([deposit(), withdraw()], COMMANDS)
    assert findings(checked(connection)) == []
    drain(connection)
    assert findings(checked(connection)) == []


def test_an_empty_store_is_in_order(connection, bank_check):
    """A first deployment can be checked too."""
    assert bank_check().returncode == 0
    assert {one.messages for one in checked(connection).types} == {0}


def test_a_check_changes_nothing(connection, store, bank_check):
    """It runs where nothing can be written."""
    store.write([open_(), deposit()], COMMANDS)
    name = sql.Identifier(connection.info.dbname)
    read_only = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
    connection.execute(read_only.format(name))
    done = bank_check()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("stream", "way_out"),
    [
        (COMMANDS, "declare a handler"),
        (f"{RESERVED}-123+k", "declare its reservation"),
        ("account-123", "declare a projector"),
    ],
)
def test_a_type_that_nobody_declared_is_found(connection, store, bank_check, stream, way_out):
    """In each kind of category; what is ignored is not."""
    store.write(open_(), COMMANDS)
    for _ in range(3):
        insert(connection, stream, "MoneyDeposited")
    report = checked(connection)
    category = stream.partition("-")[0]
    assert findings(report) == [("unknown-type", category, "MoneyDeposited", 3)]
    said = text(report, Kind.UNKNOWN_TYPE)
    assert f"not declared; {way_out}, name it as a former name with was='MoneyDeposited'" in said
    done = bank_check()
    assert done.returncode == 1
    assert "1 finding to be looked at first" in done.stdout
    ignoring = bank()
    ignoring.handle(type(withdraw()))(lambda command, entity, context: None)
    ignoring.ignore("MoneyDeposited")
    assert findings(checked(connection, ignoring)) == []


def test_messages_that_cannot_be_decoded_are_counted(connection, store):
    """The first of them is named with what is wrong with it, and without what it holds."""
    store.write(open_(), COMMANDS)
    first = insert(connection, COMMANDS, "Deposit", '{"amount": "secret"}')
    insert(connection, COMMANDS, "Deposit", '["secret"]')
    report = checked(connection)
    assert findings(report) == [("unreadable", "account:command", "Deposit", 2)]
    said = text(report, Kind.UNREADABLE)
    assert said.startswith(f"2 of 2 cannot be read, the first at global position {first}: Invalid")
    assert "$.amount" in said
    assert "secret" not in repr(report)


@pytest.mark.parametrize(
    "data",
    [
        '{"depositId": "", "accountId": "1", "amount": 1, "time": "2026-01-01T00:00:00Z"}',
        '{"depositId": "d", "accountId": "", "amount": 1, "time": "2026-01-01T00:00:00Z"}',
    ],
)
def test_a_command_without_a_usable_key_cannot_be_read_either(connection, data):
    """It would be a dead letter too."""
    insert(connection, COMMANDS, "Deposit", data)
    report = checked(connection)
    assert findings(report) == [("unreadable", "account:command", "Deposit", 1)]
    assert "its key, or its entity's id, cannot name a stream" in text(report, Kind.UNREADABLE)


def test_fields_that_the_data_or_the_class_lacks_are_told(connection, store):
    """They need no attention: a default stands for the one, and the other is passed over."""
    data = '{"accountId": "1", "customerId": "c", "time": "2026-01-01T00:00:00Z", "branch": "x"}'
    insert(connection, COMMANDS, "Open", data)
    data = '{"withdrawalId": "w", "accountId": "1", "amount": 1, "time": "2026-01-01T00:00:00Z", '
    insert(connection, "account-1", "WithdrawalRejected", data + '"sequence": 4}')
    report = checked(connection)
    assert (report.in_order, findings(report)) == (True, [])
    assert findings(report, "note") == [
        ("fields", "account:command", "Open", 1),
        ("fields", "account", "WithdrawalRejected", 1),
    ]
    texts = [one.text for one in report.findings]
    assert texts == ["field branch: only in 1 of 1", "field processedTime: lacked by 1 of 1"]


def test_fields_are_compared_after_upcasters(connection):
    """A former shape is no reason to say anything, and one that cannot be upcast is."""

    @dataclass
    class Move:
        __schema_version__ = 2
        account_id: str
        metres: int

    component = Component("robot", id="account_id")
    component.handle(Move)(lambda command, entity, context: None)

    @component.upcast(Move, to=2)
    def in_metres(data):
        return {"accountId": data["accountId"], "metres": data["feet"] // 3}

    insert(connection, "robot:command-1", "Move", '{"accountId": "1", "feet": 6}')
    insert(
        connection,
        "robot:command-1",
        "Move",
        '{"accountId": "1", "metres": 6}',
        '{"schemaVersion": 2}',
    )
    assert checked(connection, component).findings == []
    insert(connection, "robot:command-1", "Move", '{"accountId": "1"}')
    assert findings(checked(connection, component)) == [("unreadable", "robot:command", "Move", 1)]
    problem = text(checked(connection, component), Kind.UNREADABLE)
    assert re.search(r"KeyError in \S*in_metres ", problem)
    connection.execute("DELETE FROM message_store.messages WHERE data ? 'feet' OR data ? 'metres'")
    insert(connection, "robot:command-1", "Move", '{"accountId": "1"}', '{"schemaVersion": 9}')
    connection.execute("DELETE FROM message_store.messages WHERE metadata IS NULL")
    assert "schemaVersion that is none of 1 to 2" in text(
        checked(connection, component), Kind.UNREADABLE
    )


def test_reservations_in_another_form_are_found(connection, store):
    """The first is named with what to declare."""
    store.write([open_(), deposit(), deposit("d2")], COMMANDS)
    drain(connection, bank(entity=None))
    report = checked(connection, bank())
    assert ("reservation-names", RESERVED, "Deposit", 2) in findings(report)
    said = text(report, Kind.RESERVATION_NAMES)
    assert f"{RESERVED}-d1" in said
    assert "add formerly='deposit_id' to account.reserve(Deposit, …)" in said
    assert findings(checked(connection, bank(formerly="deposit_id"))) == []


def test_copies_in_the_command_category_in_another_form_are_found(connection, store):
    """There they stand beneath their commands."""
    within = {"into": None, "entity": None}
    store.write([open_(), deposit()], COMMANDS)
    drain(connection, bank(**within))
    changed = bank(key="account_id", **within)
    assert ("reservation-names", "account:command", "Deposit", 1) in findings(
        checked(connection, changed)
    )
    named = bank(key="account_id", formerly="deposit_id", **within)
    assert findings(checked(connection, named)) == []


def test_positions_of_another_log_are_found(connection, store):
    """As `status` finds them; the way out names the command."""
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    connection.execute("TRUNCATE message_store.messages")
    report = checked(connection)
    assert [one[:2] for one in findings(report)] == [
        ("positions", "account:command"),
        ("positions", RESERVED),
    ]
    assert "run `reservation positions reset bank:account`" in report.findings[0].action


def test_a_category_that_is_no_longer_declared_is_found_as_long_as_it_has_unhandled_messages(
    connection, store
):
    """Nobody would handle them."""
    store.write([open_(), deposit()], COMMANDS)
    old = bank(into="accountDeposit")
    drain(connection, old)
    report = checked(connection, bank())
    assert (findings(report), findings(report, "note")) == (
        [],
        [("positions", "accountDeposit", None, 0)],
    )
    connection.execute(
        "UPDATE reservation.positions SET position = 0 WHERE category = %s", ["accountDeposit"]
    )
    report = checked(connection, bank())
    assert findings(report) == [("positions", "accountDeposit", None, 1)]
    assert "1 messages in it are not handled" in text(report, Kind.POSITIONS)


def test_partitions_in_which_an_entity_would_lose_its_order_are_found(
    connection, store, database_url
):
    """The declaration that leads reservations with the entity gets several, and another not."""
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    for category in ("account:command", RESERVED):
        done = invoke_cli(
            *("partitions", "bank:account", "4", "--category", category),
            env={"RESERVATION_DATABASE_URL": database_url},
        )
        assert done.returncode == 0, done.stderr
    report = checked(connection, bank(entity=None, formerly=("account_id", "deposit_id")))
    assert ("partitions", RESERVED, None, None) in findings(report)
    assert "whose first id is not 'account_id'" in text(report, Kind.PARTITIONS)
    connection.execute("DELETE FROM reservation.positions WHERE partition = 2")
    report = checked(connection)
    assert [one[0] for one in findings(report)] == ["partitions", "partitions"]
    assert "4 partitions, and positions of 3" in report.findings[0].text


def test_members_that_do_not_fit_are_found(connection, store):
    """One with another key, and one of a program that stores nothing."""
    membership = joined(connection, bank(entity=None), "account:command")
    ((process,),) = connection.execute("SELECT process FROM reservation.members").fetchall()
    report = checked(connection, bank())
    assert findings(report) == [("members", None, process, None)]
    assert "the reservations of Deposit are named by depositId there" in text(report, Kind.MEMBERS)
    connection.execute("UPDATE reservation.members SET declaration = NULL")
    report = checked(connection, bank())
    assert (findings(report), findings(report, "note")) == (
        [],
        [("members", None, process, None)],
    )
    membership.leave(connection)
    assert checked(connection, bank()).findings == []


def test_snapshots_that_will_be_discarded_are_counted(connection, store):
    """They need no attention; what follows from it is said."""

    @dataclass
    class Balance:
        n: int = 0

    def component(revision):
        made = Component(
            "account", entity=Balance, id="account_id", snapshot_every=1, snapshot_revision=revision
        )
        made.initiate(type(open_()))(account.initiations["Open"].handler)
        made.project(type(withdraw()))(lambda entity, event: None)
        made.message(account.types["Opened"])
        return made

    store.write(open_(), COMMANDS)
    drain(connection, component(1))
    assert checked(connection, component(1)).findings == []
    report = checked(connection, component(2))
    assert (report.in_order, findings(report, "note")) == (
        True,
        [("snapshots", "account", None, 1)],
    )
    assert "1 of 1 snapshots were made by other code" in text(report, Kind.SNAPSHOTS)


@pytest.fixture
def roles(connection):
    """Give a role of each kind, made by the command for it."""
    made = {
        kind: f"test_{os.getpid()}_{kind}" for kind in ("sender", "consumer", "operator", "auditor")
    }
    for kind, role in made.items():
        grant(connection, kind, role, ["account:command"] if kind == "sender" else [])
    yield made
    for role in made.values():
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


GRANTED = """
SELECT format('ALL ON SCHEMA %%I', n.nspname) FROM pg_namespace n, aclexplode(n.nspacl) a
WHERE a.grantee = %(role)s::regrole AND n.nspname IN ('message_store', 'reservation')
UNION ALL
SELECT format('%%s ON %%s%%s', a.privilege_type,
              CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END, c.oid::regclass)
FROM pg_class c, aclexplode(c.relacl) a WHERE a.grantee = %(role)s::regrole
UNION ALL
SELECT format('%%s (%%I) ON %%s', a.privilege_type, t.attname, t.attrelid::regclass)
FROM pg_attribute t, aclexplode(t.attacl) a WHERE a.grantee = %(role)s::regrole
UNION ALL
SELECT format('%%s ON ROUTINE %%s', a.privilege_type, p.oid::regprocedure)
FROM pg_proc p, aclexplode(p.proacl) a WHERE a.grantee = %(role)s::regrole
"""


@pytest.mark.parametrize("kind", ["sender", "consumer", "operator", "auditor"])
def test_each_right_that_a_role_lacks_is_found(connection, roles, kind):
    """Whichever of those it is that the command for it grants, and the way out is that command."""
    assert checked(connection).findings == []
    role = roles[kind]
    granted = [row[0] for row in connection.execute(GRANTED, {"role": role})]
    assert len(granted) > 5
    # Message DB lets everybody read the messages' sequence by its other rights.
    unneeded = {"SELECT ON SEQUENCE message_store.messages_global_position_seq"}
    for right in set(granted) - unneeded:
        with connection.transaction(force_rollback=True):
            everybody = " FROM PUBLIC, " if "message_store." in right else " FROM "
            connection.execute(f"REVOKE {right}{everybody}{role}")
            report = checked_within(connection)
            assert [one[:3] for one in findings(report)] == [("rights", None, role)], right
            category = " --category account:command" if kind == "sender" else ""
            command = f"`reservation store grants {kind} {role}{category}`"
            assert command in text(report, Kind.RIGHTS)


def test_a_role_that_reads_a_few_tables_is_no_auditor(connection, roles):
    """It lacks nothing of what it was made for."""
    role = roles["sender"] + "_monitoring"
    with connection.transaction(force_rollback=True):
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT USAGE ON SCHEMA reservation TO {role}")
        connection.execute(
            f"GRANT SELECT ON reservation.positions, reservation.dead_letters TO {role}"
        )
        assert findings(checked_within(connection)) == []


def checked_within(connection):
    """Check by another session's eyes: what this one has not committed is in its snapshot."""
    from consumers.checking.check import _rights
    from consumers.checking.report import CheckReport

    found = list(_rights(connection))
    time, store_id = connection.execute("SELECT now(), reservation.store_id()").fetchone()
    return CheckReport("account", time, store_id, False, 1, [], found)


def test_an_auditor_may_check_and_a_sender_is_told_that_it_may_not(
    connection, roles, database_url, bank_check
):
    """What is lacked for the check itself is no finding: it could not run."""
    for kind, status in (("auditor", 0), ("consumer", 0), ("sender", 2)):
        role = sql.Identifier(roles[kind])
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD 'secret'").format(role))
        url = conninfo.make_conninfo(database_url, user=roles[kind], password="secret")
        done = bank_check(url=url)
        assert (done.returncode, bool(done.stderr)) == (status, status == 2), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--database-url", "postgresql://127.0.0.1:1/none"], "Cannot reach the database"),
        (["--master", "local[2]"], "--master has no effect without --full"),
        (["--full", "--sample", "5"], "--sample has no effect with --full"),
        (["--sample", "0"], "0 is not in the range"),
    ],
)
def test_what_could_not_check_says_so(bank_check, arguments, said):
    """With another status than a finding has."""
    done = bank_check(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_store_without_the_schema_cannot_be_checked(connection, bank_check):
    """The line names the command that installs it."""
    connection.execute("DROP SCHEMA reservation CASCADE")
    done = bank_check()
    assert done.returncode == 2
    assert "reservation store install" in done.stderr


HOSTILE = "Pay\x1b[31m\x1b]0;owned\x07\u202e\r\n[bold]" + "x" * 2_000


def test_hostile_names_do_not_reach_the_terminal(connection, bank_check):
    """Of types, fields and streams; JSON has them as they are, escaped."""
    insert(connection, COMMANDS, HOSTILE)
    data = {"accountId": "1", "customerId": "c", "time": "2026-01-01T00:00:00Z", HOSTILE: 1}
    insert(connection, COMMANDS, "Open", json.dumps(data))
    connection.execute(
        "INSERT INTO reservation.members (consumer, category, process, expires_at) "
        "VALUES ('account', 'account:command', %s, now() + '1 hour')",
        [HOSTILE],
    )
    done = bank_check()
    assert done.returncode == 1
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    terminal.print(render(checked(connection)))
    for printed in (done.stdout, terminal.file.getvalue()):
        assert not any(c in printed for c in "\x1b]\x07\u202e\r"[0:1] + "\x07\u202e\r")
        assert "Pay\\x1b[31m" in printed.replace("│\n", "")
        assert "[bold]" in printed.replace("\n", "")
    found = json.loads(bank_check("--json").stdout)
    assert HOSTILE in [one["type"] for one in found["types"]]


def test_more_types_than_anybody_declares_are_counted_in_sum(connection):
    """A store that others write to may hold any number."""
    inspector = Inspector(account, "account:command")
    messages = [
        StoredMessage(str(n), COMMANDS, f"Type{n}", n, n, "{}", None, stored(open_()).time)
        for n in range(MOST_TYPES + 5)
    ]
    tally = inspector.tally(messages)
    assert (len(tally.types), tally.others, tally.messages) == (MOST_TYPES, 5, MOST_TYPES + 5)
    tally.add(inspector.tally(messages))
    assert (len(tally.types), tally.others) == (MOST_TYPES, 10)
    assert Tally.from_json(tally.to_json()) == tally
    report = checked(
        connection,
        tallies=dict.fromkeys(("account:command",), tally)
        | {
            RESERVED: Tally(),
            "account": Tally(),
        },
    )
    unknown = [one for one in report.types if one.knowledge is Knowledge.UNKNOWN]
    assert (len(unknown), unknown[-1].type) == (51, None)
    assert sum(one.messages for one in unknown) == 2 * (MOST_TYPES + 5)


def many(connection, first, last, type_="Close"):
    """Store so many commands in one statement."""
    values = {"category": "account:command", "type": type_, "first": first, "last": last}
    connection.execute(MANY, values)


def test_a_large_category_is_estimated_and_says_so(connection, monkeypatch, bank_check):
    """The count is about right, the sample has its size, and both ends are in it."""
    monkeypatch.setattr(sampling, "MOST_COUNTED", 1_000)
    insert(connection, COMMANDS, "First")
    many(connection, 1, 9_000)
    connection.execute("SELECT setval('message_store.messages_global_position_seq', 500000)")
    many(connection, 9_001, 12_000, "Open")
    insert(connection, COMMANDS, "Last")
    report = checked(connection, sample=300)
    counted = {one.type: one for one in report.types if one.category == "account:command"}
    assert not counted["Close"].exact
    assert sum(one.messages for one in counted.values()) == pytest.approx(12_002, rel=0.1)
    assert sum(one.looked_at for one in counted.values()) == 300
    unknown = {name for kind, _, name, _ in findings(report) if kind == "unknown-type"}
    assert unknown == {"First", "Last"}
    assert "~" in bank_check("--sample", "300").stdout


@pytest.mark.parametrize("size", [1, 2, 7, 50, 1_000])
def test_a_sample_of_any_size_is_of_the_category(connection, size):
    """It has no more than that, give or take one place, and all of a small category."""
    many(connection, 1, 100)
    insert(connection, "other-1", "Other")
    with connection.transaction():
        sampling.use_indexes(connection)
        found = sampling.sample(connection, "account:command", size)
        messages = list(sampling.messages_at(connection, found.positions))
    assert {one.type for one in messages} == {"Close"}
    assert found.count.exact
    assert (found.count.messages, found.count.counted) == (100, {"Close": 100})
    assert min(size, 100) <= len(messages) <= max(size, 2)
    assert len({one.global_position for one in messages}) == len(messages)


def test_the_work_does_not_grow_with_the_category(connection, monkeypatch):
    """Neither the number of statements nor, beyond the limits, the rows that they read."""
    monkeypatch.setattr(sampling, "MOST_COUNTED", 500)
    real = type(connection).execute

    def statements():
        executed = []

        def execute(self, query, *arguments, **options):
            executed.append(query)
            return real(self, query, *arguments, **options)

        with monkeypatch.context() as counting:
            counting.setattr(type(connection), "execute", execute)
            checked(connection, sample=100)
        return len(executed)

    def read():
        return connection.execute(
            "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables "
            "WHERE schemaname = 'message_store' AND relname = 'messages'"
        ).fetchone()

    def rows():
        with connection.transaction():
            before = read()
            sampling.use_indexes(connection)
            sampled(connection, account, 100)
            return [after - then for after, then in zip(read(), before, strict=True)]

    many(connection, 1, 2_000)
    few = statements(), *rows()
    many(connection, 2_001, 30_000)
    large = statements(), *rows()
    assert few[:2] == large[:2] == (few[0], 0), "the log was scanned"
    assert 0 < large[2] <= 1.1 * few[2]


def test_all_of_it_is_one_snapshot(connection, database_url, store, monkeypatch):
    """What is written meanwhile is in none of its parts."""
    store.write(open_(), COMMANDS)
    with connect(database_url, autocommit=True) as other:

        def began(what):
            if what == "messages":
                many(other, 1, 10)

        report = checked(connection, began=began)
    assert [one.messages for one in report.types if one.type == "Close"] == [0]


def test_the_json_has_everything(connection, store, bank_check):
    """And fits its schema, which the documentation names."""
    store.write([open_(), deposit()], COMMANDS)
    insert(connection, COMMANDS, "Unknown")
    done = bank_check("--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["component"], found["inOrder"], found["full"]) == ("account", False, False)
    assert found["sample"] == 2_000
    (one,) = [one for one in found["findings"] if one["severity"] == "finding"]
    assert (one["kind"], one["category"], one["name"], one["count"]) == (
        *("unknown-type", "account:command", "Unknown"),
        1,
    )
    types = {(one["category"], one["type"]): one for one in found["types"]}
    assert types["account:command", "Deposit"]["declared"] == "declared"
    assert types["account:command", "Unknown"]["declared"] == "unknown"


@pytest.mark.slow
def test_the_command_runs_as_a_process(database_url):
    """With nothing on standard error, which is no terminal, and without importing Spark."""
    done = run_cli(
        *("check", "bank:account", "--json"),
        env={"RESERVATION_DATABASE_URL": database_url, "PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert done.returncode == 0
    assert "pyspark" not in done.stderr
    imported = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert imported == done.stderr.splitlines()
