"""The commands `pause` and `resume`, and what `status` says of pauses and of other reasons."""

import json
import re

import psycopg
import pytest

import consumers
from bank import account
from tests.apps.bank import address
from tests.apps.nightly import hotels
from tests.store.builders import grant, granted, new_role
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.controls import deposit, open_

__all__ = ["granted", "new_role"]  # fixtures

COMMANDS = "account:command"
WHY = ("--reason", "provider migration")


@pytest.fixture
def cli(database_url):
    """Give a function that runs a command, and returns it once it has ended."""

    def run(*arguments, status=0, url=database_url):
        env = {"RESERVATION_DATABASE_URL": url, "COLUMNS": "100"}
        done = invoke_cli(*arguments, env=env)
        assert done.returncode == status, done.stderr
        return done

    return run


@pytest.fixture
def known(connection):
    """Let the store know the bank's consumers."""
    consumers.drain(account, address(connection))


def printed(done):
    return json.loads(done.stdout)


def refused(done):
    """Return the one line that says why."""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("Error: ")


@pytest.mark.usefixtures("known")
def test_a_pause_is_printed_and_resumed(connection, cli):
    """With who, why and since when; JSON is the same object as in `status`."""
    assert cli("pause", "account", *WHY).stdout == "Paused account.\n"
    narrow = ("account", "--category", COMMANDS, "--type", "Deposit", "--entity", "account-1")
    made = printed(cli("pause", *narrow, *WHY, "--json"))["paused"]
    assert made | {"pausedAt": ""} == {
        "component": "account",
        "category": COMMANDS,
        "type": "Deposit",
        "entity": "account-1",
        "reason": "provider migration",
        "pausedBy": connection.info.user,
        "pausedAt": "",
    }
    assert made in printed(cli("status", "--json"))["pauses"]
    assert printed(cli("resume", *narrow, "--json")) == {"resumed": [made]}
    said = cli("resume", "account").stdout
    who = re.escape(connection.info.user)
    assert re.fullmatch(
        rf'Resumed account, paused by {who}: "provider migration", .* ago\.\n', said
    )
    assert printed(cli("status", "--json"))["pauses"] == []


@pytest.mark.usefixtures("known")
def test_all_pauses_of_a_component_end_at_once(cli):
    """Those of others stay."""
    cli("pause", "account", *WHY)
    cli("pause", "account", "--entity", "account-1", *WHY)
    cli("pause", "account", "--category", COMMANDS, *WHY)
    assert len(printed(cli("resume", "account", "--all", "--json"))["resumed"]) == 3
    done = cli("resume", "account", "--all", "--type", "Deposit", status=2)
    assert "not both" in done.stderr


@pytest.mark.usefixtures("known")
def test_what_is_not_there_is_refused_with_what_there_is(database_url, cli):
    """Nothing is paused under a misspelled name."""
    assert refused(cli("pause", "accounts", *WHY, status=2)) == (
        "No consumer is named accounts; there is account"
    )
    assert refused(cli("pause", "account", "--category", "deposit", *WHY, status=2)) == (
        "account reads no category deposit; there is account:command, accountTransaction"
    )
    with hosted(account, database_url):
        until(lambda: cli_types(database_url))
        assert refused(cli("pause", "account", "--type", "Deposi", *WHY, status=2)) == (
            "account handles no type Deposi; there is Close, Deposit, Open, Withdraw"
        )
        cli("pause", "account", "--type", "Deposit", *WHY)
    assert refused(cli("pause", "account", "--reason", " ", status=2)) == (
        "Give a reason for the pause; it is shown to whoever looks"
    )


def cli_types(database_url):
    """Return whether a member has stored what it declares."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        query = "SELECT count(*) FROM reservation.members WHERE declaration IS NOT NULL"
        return connection.execute(query).fetchone()[0]


@pytest.mark.usefixtures("known")
def test_what_was_done_already_is_said(connection, cli):
    """The exit status is that of a command that could not run."""
    assert refused(cli("resume", "account", status=2)) == (
        "account is not paused; nothing was changed"
    )
    cli("pause", "account", "--category", COMMANDS, *WHY)
    assert refused(cli("pause", "account", "--category", COMMANDS, *WHY, status=2)) == (
        f"account of {COMMANDS} is paused by {connection.info.user} already; nothing was changed"
    )
    assert refused(cli("resume", "account", status=2)) == (
        f"account is not paused by itself; paused is account of {COMMANDS}; nothing was changed"
    )
    assert "accounts" in refused(cli("resume", "accounts", status=2))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("kind", ["consumer", "operator", "auditor"])
def test_who_may_change_letters_may_pause(connection, database_url, cli, new_role, kind):
    """An auditor sees it."""
    role = new_role()
    grant(connection, kind, role)
    url = psycopg.conninfo.make_conninfo(database_url, options=f"-c role={role}")
    if kind == "auditor":
        assert "pauses" in refused(cli("pause", "account", *WHY, url=url, status=2))
        assert printed(cli("status", "--json", url=url))["pauses"] == []
    else:
        cli("pause", "account", *WHY, url=url)
        cli("resume", "account", url=url)


def test_the_help_has_examples(cli):
    """Of each level."""
    for name, count in (("pause", 4), ("resume", 4)):
        _, _, examples = cli(name, "--help").stdout.partition("Examples:\n")
        assert examples.partition("\n\n")[0].count("    reservation ") == count


# Why something is not handled

STATES = {
    ("dead", "handler"): 1,
    ("waiting", "handler"): 2,
    ("waiting", "process_died"): 1,
    ("waiting", "running"): 4,
    ("waiting", "limited"): 5,
    ("waiting", "breaker_open"): 6,
    ("waiting", "paused"): 7,
    ("parked", "parked"): 8,
    ("handled", "handler"): 9,
}
KINDS = {
    "dead": 1,
    "retry": 3,
    "running": 4,
    "limited": 5,
    "breaker_open": 6,
    "paused": 7,
    "parked": 8,
}


@pytest.fixture
def set_aside(known, connection):
    """Put letters of every reason into the store."""
    rows = [state for state, count in STATES.items() for _ in range(count)]
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id,"
        " stream_name, type, state, reason, process, next_attempt_at)"
        " SELECT 'account', %s, n, gen_random_uuid(), 'account:command-7', 'Deposit', state,"
        "  reason, 'a:1', CASE state WHEN 'waiting' THEN now() + interval '1 h' END"
        " FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS s (state, reason, n)",
        [COMMANDS, [state for state, _ in rows], [reason for _, reason in rows]],
    )


@pytest.mark.usefixtures("set_aside")
def test_letters_are_counted_by_what_they_wait_for(cli):
    """All faults are one reason; a letter that is handled waits for nothing."""
    one, other = printed(cli("status", "--json"))["partitions"]
    assert one["reasons"] == KINDS
    assert (one["dead"], one["parked"], one["waiting"]) == (1, 8, 25)
    assert set(other["reasons"].values()) == {0}


@pytest.mark.usefixtures("set_aside")
def test_status_says_why_at_a_glance(connection, cli):
    """In a hundred columns, also with what people wrote."""
    cli("pause", "account", "--category", COMMANDS, "--reason", "provider\x1b[31m migration")
    cli("pause", "account", "--type", "Deposit", *WHY)
    shown = cli("status").stdout
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    who = re.escape(connection.info.user)
    said = " ".join(shown.partition("Not handled")[2].split())
    assert re.search(
        rf"{COMMANDS} by account 1 dead; 3 retry; 4 running; 5 limited; 6 breaker open; 7 paused;"
        rf' 8 parked; paused by {who} since [-\d]+ [:\d]+: "provider\\x1b\[31m migration";'
        rf' Deposit paused by {who} since [-\d]+ [:\d]+: "provider migration"; no consumer; next'
        rf" attempt [-\d]+ [:\d]+",
        said,
    ), said


def test_what_is_not_read_says_that_there_is_no_consumer(connection, store, cli):
    """A consumer that has nothing to do says nothing."""
    consumers.drain(account, address(connection))
    assert "Not handled" not in cli("status").stdout
    store.write([open_(), deposit()], f"{COMMANDS}-123")
    said = " ".join(cli("status").stdout.split())
    assert f"Not handled {COMMANDS} by account no consumer" in said


def test_status_counts_series(connection, cli):
    """Those that fail, and those that nobody declares any more."""
    consumers.drain(hotels("0 0 1 1 *"), address(connection))
    counts = {"series": 1, "overdue": 0, "failing": 0, "stopped": 0}
    recurring = printed(cli("status", "--json"))["recurring"]
    assert recurring | {"nextAt": None} == counts | {"nextAt": None}
    assert re.search(r"Recurring: 1 series; the next tick is at \d{4}-", cli("status").stdout)
    connection.execute("UPDATE reservation.series SET attempts = 1, error = 'why'")
    assert printed(cli("status", "--json"))["recurring"]["failing"] == 1
    assert "; 1 failing" in cli("status").stdout
    connection.execute("UPDATE reservation.series SET stopped_at = now()")
    recurring = printed(cli("status", "--json"))["recurring"]
    assert recurring == {"series": 0, "nextAt": None, "overdue": 0, "failing": 0, "stopped": 1}
