"""What ``reservation check`` finds in stores that were made wrong, and in those in order."""

import json
import os
import re
import sys
import types
from dataclasses import dataclass

import pytest
from psycopg import Cursor, connect, conninfo, sql

from bank import account
from bank.entity import Account
from bank.messages import Deposit, Deposited, Open, Opened
from reservation import Component, Key
from reservation.inspection import sampling
from tests.apps.bank import RESERVED, drain
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS, deposit, open_, withdraw

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


def many(connection, first, last, type_="Close"):
    """Store so many commands in one statement."""
    values = {"category": "account:command", "type": type_, "first": first, "last": last}
    connection.execute(MANY, values)


def bank(into=None, per="account_id", former_key=None):
    """Return a bank of deposits; each argument is a way in which a version may differ."""
    component = Component("account", entity=Account, id="account_id")
    component.initiate(Open)(lambda command, context: Opened("1", "2", context.time, context.time))
    key = Key("deposit_id", into=into, per=per, former_key=former_key)
    component.handle(Deposit, key=key)(lambda command, entity, context: None)
    component.message(Opened, Deposited)
    return component


@pytest.fixture
def cli(database_url):
    """Give a function that runs the command, and returns its status and output."""

    def run(*arguments, url=database_url, app="bank:account", **environment):
        environment |= {"RESERVATION_DATABASE_URL": url, "COLUMNS": "400"}
        return invoke_cli("check", app, *arguments, env=environment)

    return run


@pytest.fixture
def checked(cli, monkeypatch):
    """Give a function that checks a component, and returns what is printed as JSON."""

    def run(component=account, *arguments):
        monkeypatch.setitem(sys.modules, "checked", types.SimpleNamespace(component=component))
        done = cli("--json", *arguments, app="checked:component")
        found = json.loads(done.stdout)
        needs_attention = any(one["severity"] == "finding" for one in found["findings"])
        assert found["inOrder"] is not needs_attention
        assert (done.returncode, done.stderr) == (int(needs_attention), "")
        return found

    return run


def findings(report, severity="finding"):
    """Return the kind, category, name and count of each finding."""
    return [
        (one["kind"], one["category"], one["name"], one["count"])
        for one in report["findings"]
        if one["severity"] == severity
    ]


def text(report, kind):
    """Return the text and the way out of the only finding of a kind."""
    (found,) = [one for one in report["findings"] if one["kind"] == kind]
    return f"{found['text']}; {found['action']}"


def commands_of(report):
    """Return what was found of each type of commands."""
    return {one["type"]: one for one in report["types"] if one["category"] == "account:command"}


def test_a_store_in_order_is_in_order(connection, store, cli, checked):
    """Each type is counted in each category, and nothing is said about any."""
    store.write([open_(), deposit(), deposit(), withdraw()], COMMANDS)
    assert checked()["findings"] == []
    drain(connection)
    done = cli()
    assert (done.returncode, done.stderr) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    assert ["account:command", "Deposit", "2", "2", "in order", ""] in rows
    assert [RESERVED, "Deposit", "1", "1", "in order", ""] in rows
    assert ["account", "Closed", "0", "0", "none stored", ""] in rows
    assert "In order. Up to 2,000 messages of each category were decoded" in done.stdout
    assert checked()["findings"] == []


def test_an_empty_store_is_in_order(checked):
    """A first deployment can be checked too."""
    report = checked()
    assert {one["messages"] for one in report["types"]} == {0}
    assert report["findings"] == []


def test_a_check_changes_nothing(connection, store, cli):
    """It runs where nothing can be written."""
    store.write([open_(), deposit()], COMMANDS)
    name = sql.Identifier(connection.info.dbname)
    read_only = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
    connection.execute(read_only.format(name))
    done = cli()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_type_that_nobody_declared_is_found(connection, store, cli, checked):
    """In each kind of category; what is ignored is not."""
    ways_out = {
        COMMANDS: "declare a handler,",
        f"{RESERVED}-123+k": "declare a handler with key=",
        "account-123": "declare a projector",
    }
    store.write(open_(), COMMANDS)
    for stream in ways_out:
        for _ in range(3):
            insert(connection, stream, "MoneyDeposited")
    report = checked()
    found = {one["category"]: one for one in report["findings"]}
    assert len(found) == len(report["findings"]) == 3
    for stream, way_out in ways_out.items():
        one = found[stream.partition("-")[0]]
        assert (one["kind"], one["name"], one["count"]) == ("unknown-type", "MoneyDeposited", 3)
        former = "a former name with account.message(…, former_names='Money"
        assert "not declared" in one["text"]
        assert one["action"].startswith(way_out)
        assert former in one["action"]
    assert "3 findings to be looked at first" in cli().stdout
    ignoring = bank()
    ignoring.ignore("MoneyDeposited")
    assert findings(checked(ignoring)) == []


def test_messages_that_cannot_be_decoded_are_counted(connection, store, checked):
    """The first of them is named with what is wrong with it, and without what it holds."""
    store.write(open_(), COMMANDS)
    first = insert(connection, COMMANDS, "Deposit", '{"amount": "secret"}')
    insert(connection, COMMANDS, "Deposit", '["secret"]')
    report = checked()
    assert findings(report) == [("unreadable", "account:command", "Deposit", 2)]
    said = text(report, "unreadable")
    assert said.startswith(f"2 of 2 cannot be read, the first at global position {first}: Invalid")
    assert "$.amount" in said
    assert "secret" not in json.dumps(report)


def test_a_command_without_a_usable_key_cannot_be_read_either(connection, checked):
    """Its key or its entity's id is empty, so it would be a dead letter too."""
    for names in ('"depositId": "", "accountId": "1"', '"depositId": "d", "accountId": ""'):
        data = f'{{{names}, "amount": 1, "time": "2026-01-01T00:00:00Z"}}'
        insert(connection, COMMANDS, "Deposit", data)
    report = checked()
    assert findings(report) == [("unreadable", "account:command", "Deposit", 2)]
    assert "its key, or its entity's id, cannot name a stream" in text(report, "unreadable")


def test_fields_that_the_data_or_the_class_lacks_are_notes(connection, checked):
    """A default stands for the one, and the other is passed over."""
    data = '{"accountId": "1", "customerId": "c", "time": "2026-01-01T00:00:00Z", "branch": "x"}'
    insert(connection, COMMANDS, "Open", data)
    data = '{"withdrawalId": "w", "accountId": "1", "amount": 1, "time": "2026-01-01T00:00:00Z", '
    insert(connection, "account-1", "WithdrawalRejected", data + '"sequence": 4}')
    report = checked()
    assert findings(report) == []
    assert findings(report, "note") == [
        ("fields", "account:command", "Open", 1),
        ("fields", "account", "WithdrawalRejected", 1),
    ]
    texts = [one["text"] for one in report["findings"]]
    assert texts == ["field branch: only in 1 of 1", "field processedTime: lacked by 1 of 1"]


@dataclass
class Move:
    robot_id: str
    metres: int


def in_metres(data):
    return {name: data[name] for name in data if name != "feet"} | {"metres": data["feet"] // 3}


def robot():
    """Return a component whose command has a former shape."""
    component = Component("robot", id="robot_id")
    component.handle(Move, once=None)(lambda command, entity, context: None)
    component.message(Move, version=2, upcast=in_metres)
    return component


def test_fields_are_compared_after_upcasters(connection, checked):
    """A former shape is no reason to say anything."""
    insert(connection, "robot:command-1", "Move", '{"robotId": "1", "feet": 6}')
    data = '{"robotId": "1", "metres": 6}'
    insert(connection, "robot:command-1", "Move", data, '{"schemaVersion": 2}')
    assert checked(robot())["findings"] == []


def test_a_field_that_an_upcaster_leaves_is_a_note(connection, checked):
    """The class does not have it, whatever the version of the message."""
    data = '{"robotId": "1", "feet": 6, "colour": "red"}'
    insert(connection, "robot:command-1", "Move", data)
    assert text(checked(robot()), "fields").startswith("field colour: only in 1 of 1; ")


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (None, r"KeyError in \S*in_metres "),
        ('{"schemaVersion": 9}', "written by schemaVersion 9, and this program knows 2"),
    ],
)
def test_a_message_that_cannot_be_upcast_is_found(connection, checked, metadata, problem):
    """The error names the upcaster, or the versions."""
    insert(connection, "robot:command-1", "Move", '{"robotId": "1"}', metadata)
    report = checked(robot())
    assert findings(report) == [("unreadable", "robot:command", "Move", 1)]
    assert re.search(problem, text(report, "unreadable"))


def test_reservations_in_another_form_are_found(connection, store, checked):
    """The first is named with what to declare."""
    store.write([open_(), deposit(), deposit("d2")], COMMANDS)
    drain(connection, bank(per=None))
    report = checked(bank())
    assert ("reservation-names", RESERVED, "Deposit", 2) in findings(report)
    said = text(report, "reservation-names")
    assert f"{RESERVED}-d1" in said
    assert "add former_key='deposit_id' to Key(…) in @account.handle(Deposit, …)" in said
    assert findings(checked(bank(former_key="deposit_id"))) == []


def test_positions_of_another_log_are_found(connection, store, cli, checked):
    """As `status` finds them; the way out names the command."""
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    connection.execute("TRUNCATE message_store.messages")
    assert [one[:2] for one in findings(checked())] == [
        ("positions", "account:command"),
        ("positions", RESERVED),
    ]
    assert "run `reservation positions reset bank:account`" in cli().stdout


def test_a_category_that_is_no_longer_declared_is_found_while_it_has_unhandled_messages(
    connection, store, checked
):
    """Nobody would handle them."""
    store.write([open_(), deposit()], COMMANDS)
    drain(connection, bank(into="accountDeposit"))
    report = checked(bank())
    assert findings(report) == []
    assert findings(report, "note") == [("positions", "accountDeposit", None, 0)]
    connection.execute(
        "UPDATE reservation.moves SET position = 0 WHERE category = 'accountDeposit'"
    )
    report = checked(bank())
    assert findings(report) == [("positions", "accountDeposit", None, 1)]
    assert "1 messages in it are not handled" in text(report, "positions")


def test_partitions_in_which_an_entity_would_lose_its_order_are_found(
    connection, store, database_url, checked
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
    report = checked(bank(per=None, former_key=("account_id", "deposit_id")))
    assert ("partitions", RESERVED, None, None) in findings(report)
    assert "whose first id is not 'account_id'" in text(report, "partitions")
    connection.execute("DELETE FROM reservation.leases WHERE partition = 2")
    report = checked()
    assert [one[0] for one in findings(report)] == ["partitions", "partitions"]
    assert "4 partitions, and positions of 3" in report["findings"][0]["text"]


def test_members_that_do_not_fit_are_found(connection, database_url, checked):
    """One with another key is a finding, until it leaves."""
    members = "SELECT process FROM reservation.members WHERE category = 'account:command'"
    with hosted(bank(per=None), database_url) as running:
        ((process,),) = until(lambda: connection.execute(members).fetchall(), running)
        report = checked(bank())
    assert ("members", None, process, None) in findings(report)
    said = [one["text"] for one in report["findings"] if one["kind"] == "members"]
    assert "the key of Deposit is accountTransaction-depositId there" in said[0]
    assert checked(bank())["findings"] == []


@dataclass
class Balance:
    n: int = 0


def test_snapshots_that_will_be_discarded_are_notes(connection, store, checked):
    """They are counted, and what follows from it is said."""

    def component(revision):
        options = {"snapshot_every": 1, "snapshot_revision": revision}
        made = Component("account", entity=Balance, id="account_id", **options)
        made.initiate(Open)(lambda command, context: Opened("1", "2", context.time, context.time))
        made.project(Opened)(lambda entity, event: None)
        return made

    store.write(open_(), COMMANDS)
    drain(connection, component(1))
    assert checked(component(1))["findings"] == []
    report = checked(component(2))
    assert findings(report) == []
    assert findings(report, "note") == [("snapshots", "account", None, 1)]
    assert "1 of 1 snapshots were made by other code" in text(report, "snapshots")


def test_a_command_category_that_nobody_reads_is_a_note(connection, store, checked):
    """A misspelled category of commands; the component's own is none before it runs."""
    insert(connection, "inventry:command-hall", "Book")
    store.write(open_(), COMMANDS)
    report = checked()
    assert findings(report) == []
    assert ("unread", "inventry:command", None, 1) in findings(report, "note")
    said = "inventry:command holds 1 message, and no consumer has a position in it"
    assert text(report, "unread").startswith(said)


# Rights


@pytest.fixture
def granted(connection, database_url):
    """Give a function that makes a role of a kind, by the command for it."""
    made = []

    def grant(kind):
        role = f"test_{os.getpid()}_{kind}"
        made.append(sql.Identifier(role))
        options = ["--category", "account:command"] if kind == "sender" else []
        done = invoke_cli(
            *("store", "grants", kind, role, *options),
            env={"RESERVATION_DATABASE_URL": database_url},
        )
        assert done.returncode == 0, done.stderr
        return role

    yield grant
    for role in made:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


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


def rights_of(connection, role):
    """Return the rights that a role needs, of all that it was granted."""
    rights = {row[0] for row in connection.execute(GRANTED, {"role": role})}
    # Message DB lets everybody read the messages' sequence by its other rights.
    rights.discard("SELECT ON SEQUENCE message_store.messages_global_position_seq")
    assert len(rights) > 5
    return sorted(rights)


def choose(rights):
    """Return one right of each sort: by what it allows, and in which schema on what."""
    return {re.sub(r"\(\w+\)|\.\w+|\(.*", "", right): right for right in rights}.values()


KINDS = ("sender", "consumer", "operator", "auditor")


def check_that_it_is_missed(connection, checked, kind, role, right):
    """Take a right away, and give it back."""
    everybody = "PUBLIC, " if "message_store." in right else ""
    connection.execute(f"REVOKE {right} FROM {everybody}{role}")
    report = checked()
    assert [one[:3] for one in findings(report)] == [("rights", None, role)], right
    category = " --category account:command" if kind == "sender" else ""
    assert f"`reservation store grants {kind} {role}{category}`" in text(report, "rights")
    connection.execute(f"GRANT {right} TO {everybody}{role}")


@pytest.mark.parametrize("kind", KINDS)
def test_each_right_that_a_role_lacks_is_found(connection, checked, granted, kind):
    """Whichever of those it is that the command for it grants, and the way out is that command."""
    role = granted(kind)
    assert checked()["findings"] == []
    for right in choose(rights_of(connection, role)):
        check_that_it_is_missed(connection, checked, kind, role, right)


def test_a_role_that_reads_a_few_tables_is_no_auditor(connection, checked):
    """It lacks nothing of what it was made for."""
    role = f"test_{os.getpid()}_monitoring"
    connection.execute(
        f"CREATE ROLE {role};"
        f"GRANT USAGE ON SCHEMA reservation TO {role};"
        f"GRANT SELECT ON reservation.positions, reservation.dead_letters TO {role}"
    )
    try:
        assert findings(checked()) == []
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(("kind", "status"), [("auditor", 0), ("consumer", 0), ("sender", 2)])
def test_an_auditor_may_check_and_a_sender_may_not(
    connection, database_url, cli, granted, kind, status
):
    """What is lacked for the check itself is no finding: it could not run."""
    role = granted(kind)
    connection.execute(f"ALTER ROLE {role} LOGIN PASSWORD 'secret'")
    done = cli(url=conninfo.make_conninfo(database_url, user=role, password="secret"))
    assert (done.returncode, bool(done.stderr)) == (status, status == 2), done.stderr


# What could not check


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--database-url", "postgresql://127.0.0.1:1/none"], "Cannot reach the database"),
        (["--master", "local[2]"], "--master has no effect without --full"),
        (["--full", "--sample", "5"], "--sample has no effect with --full"),
        (["--sample", "0"], "0 is not in the range"),
    ],
)
def test_what_could_not_check_says_so(cli, arguments, said):
    """With another status than a finding has."""
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_store_without_the_schema_cannot_be_checked(empty_database_url, cli):
    """The line names the command that installs it."""
    done = cli(url=empty_database_url)
    assert done.returncode == 2
    assert "reservation store install" in done.stderr


# What is printed

HOSTILE = "Pay\x1b[31m\x1b]0;owned\x07\u202e\r\n[bold]" + "x" * 2_000


def test_hostile_names_do_not_reach_the_terminal(connection, cli):
    """Of types, fields and streams; JSON has them as they are, escaped."""
    insert(connection, COMMANDS, HOSTILE)
    data = {"accountId": "1", "customerId": "c", "time": "2026-01-01T00:00:00Z", HOSTILE: 1}
    insert(connection, COMMANDS, "Open", json.dumps(data))
    connection.execute(
        "INSERT INTO reservation.members (consumer, category, process, worker) "
        "VALUES ('account', 'account:command', %s, 'w')",
        [HOSTILE],
    )
    for done in (cli(), cli(FORCE_COLOR="1")):  # to a file, and as if to a terminal
        assert done.returncode == 1
        assert not any(
            sign in done.stdout for sign in ("\x1b[31m", "\x1b]", "\x07", "\u202e", "\r")
        )
        assert "Pay\\x1b[31m" in done.stdout.replace("│\n", "")
        assert "[bold]" in done.stdout.replace("\n", "")
    found = json.loads(cli("--json").stdout)
    assert HOSTILE in [one["type"] for one in found["types"]]


def test_more_types_than_anybody_declares_are_counted_in_sum(connection, checked):
    """A store that others write to may hold any number."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type, data) "
        "SELECT 'account:command-1', n, 'Type' || n, '{}' FROM generate_series(0, 1099) AS n"
    )
    unknown = [one for one in checked()["types"] if one["declared"] == "unknown"]
    assert (len(unknown), unknown[-1]["type"]) == (51, None)
    assert sum(one["messages"] for one in unknown) == 1_100


# Large categories


def test_a_large_category_is_estimated_and_says_so(connection, monkeypatch, cli, checked):
    """The count is about right, the sample has its size, and both ends are in it."""
    monkeypatch.setattr(sampling, "MOST_COUNTED", 1_000)
    insert(connection, COMMANDS, "First")
    many(connection, 1, 9_000)
    connection.execute("SELECT setval('message_store.messages_global_position_seq', 500000)")
    many(connection, 9_001, 12_000, "Open")
    insert(connection, COMMANDS, "Last")
    report = checked(account, "--sample", "300")
    counted = commands_of(report)
    assert not counted["Close"]["exact"]
    assert sum(one["messages"] for one in counted.values()) == pytest.approx(12_002, rel=0.1)
    assert sum(one["lookedAt"] for one in counted.values()) == 300
    assert {one[2] for one in findings(report) if one[0] == "unknown-type"} == {"First", "Last"}
    assert "~" in cli("--sample", "300").stdout


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_sample_of_any_size_is_of_the_category(connection, checked, size):
    """It has no more than that, give or take one place, and all of a small category."""
    many(connection, 1, 100)
    insert(connection, "other-1", "Other")
    found = commands_of(checked(account, "--sample", str(size)))["Close"]
    assert (found["messages"], found["exact"]) == (100, True)
    assert min(size, 100) <= found["lookedAt"] <= max(size, 2)


@pytest.fixture
def executed(monkeypatch):
    """Give the statements that are executed, and what is called with each."""
    execute, watched = Cursor.execute, types.SimpleNamespace(statements=[], hook=lambda: None)

    def watch(self, query, *arguments, **options):
        watched.statements.append(query)
        watched.hook()
        return execute(self, query, *arguments, **options)

    monkeypatch.setattr(Cursor, "execute", watch)
    return watched


def test_the_work_does_not_grow_with_the_category(connection, monkeypatch, executed, checked):
    """Neither the number of statements nor, beyond the limits, the rows that they read."""
    monkeypatch.setattr(sampling, "MOST_COUNTED", 500)

    def statements():
        executed.statements.clear()
        checked(account, "--sample", "100")
        return len(executed.statements)

    def read():
        return connection.execute(
            "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables "
            "WHERE relid = 'message_store.messages'::regclass"
        ).fetchone()

    def rows():
        with connection.transaction():
            before = read()
            sampling.use_indexes(connection)
            sampling.sample(connection, "account:command", 100)
            return [after - then for after, then in zip(read(), before, strict=True)]

    many(connection, 1, 2_000)
    few = statements(), *rows()
    many(connection, 2_001, 15_000)
    large = statements(), *rows()
    assert few[:2] == large[:2] == (few[0], 0), "the log was scanned"
    assert 0 < large[2] <= 1.1 * few[2]


def test_all_of_it_is_one_snapshot(database_url, store, executed, checked):
    """What is written meanwhile is in none of its parts."""
    store.write(open_(), COMMANDS)
    with connect(database_url, autocommit=True) as other:

        def write_once():
            begun = [n for n, query in enumerate(executed.statements) if "REPEATABLE" in str(query)]
            if begun and len(executed.statements) == begun[0] + 4:  # the snapshot is taken
                many(other, 1, 10)

        executed.hook = write_once
        assert commands_of(checked())["Close"]["messages"] == 0
    assert commands_of(checked())["Close"]["messages"] == 10


def test_spark_is_not_imported(database_url, cli, monkeypatch):
    """Only `--full` needs it."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert cli("--json").returncode == 0
