"""What ``reservation start`` refuses before it runs anything, in one line each."""

import socket
import sys

import pytest
from psycopg import conninfo

from tests.apps.orders import APP, ROOT
from tests.support.commands import invoke_cli, refuse_start


def refused(database_url, *arguments):
    """Return the line with which the bank's consumers are refused."""
    (line,) = refuse_start("bank:account", *arguments, "--database-url", database_url).splitlines()
    return line


@pytest.mark.parametrize("only", [["--only", "commands"], []])
def test_a_member_of_a_group_of_another_size(connection, database_url, only):
    """Nothing of what it reads is changed."""
    # The consumer of the other category may join, so it is the consumer of commands that refuses.
    changed = ("bank:account", "3", "--category", "account:command")
    made = invoke_cli("partitions", *changed, "--database-url", database_url)
    assert made.returncode == 0
    rows = (
        "SELECT partition, epoch, holder FROM reservation.positions "
        "WHERE category = 'account:command' ORDER BY partition"
    )
    before = connection.execute(rows).fetchall()
    assert refused(database_url, *only, "--partitions", "2") == (
        "Error: The consumer account of account:command has 3 partitions, not 2; stop it "
        "everywhere and change that with `reservation partitions`"
    )
    assert connection.execute(rows).fetchall() == before
    assert connection.execute("SELECT count(*) FROM reservation.members").fetchone() == (0,)


def test_the_consumer_of_reserved_commands_where_nothing_is_reserved(tmp_path, database_url):
    """A component without keys has no reservation category."""
    (tmp_path / "pinging.py").write_text(
        "from dataclasses import dataclass\nfrom reservation import Component\n"
        "@dataclass\nclass Ping:\n    id: str\n"
        "ping = Component('ping', id='id')\n"
        "ping.handle(Ping, once=None)(lambda command, entity, context: None)\n"
    )
    only = ("--only", "reserved", "--app-dir", str(tmp_path), "--database-url", database_url)
    assert "There is no reservation category in 'ping'" in refuse_start("pinging:ping", *only)


@pytest.mark.parametrize(
    ("app", "options", "said"),
    [
        (APP, ["--only", "reserved"], "There is no reservation category in 'order'"),
        (
            APP,
            ["--only", "bill"],
            "nor a category that the components read: order:command, payment",
        ),
        (
            "tests.consumers.test_order:by_key",
            ["--partitions", "2"],
            "accountTransaction cannot have ",
        ),
    ],
)
def test_what_the_component_does_not_allow(database_url, app, options, said):
    """The line says what the component has, or what one process must handle by itself."""
    place = ("--app-dir", str(ROOT), "--database-url", database_url)
    assert said in refuse_start(app, *place, *options)


def test_a_folder_with_a_package_named_like_ours(tmp_path, database_url):
    """None of its code is run, and the line comes after the traceback of `--debug`."""
    (tmp_path / "consumers").mkdir()
    (tmp_path / "consumers" / "__init__.py").write_text("raise SystemExit('wrong one')")
    place = ("--app-dir", str(tmp_path), "--database-url", database_url)
    text = refuse_start("bank:account", "--debug", *place)
    assert "AppPathError" in text
    last = text.splitlines()[-1]
    assert last.startswith("Error: The app folder ")
    assert "a package of its own named 'consumers'" in last
    assert "wrong one" not in text


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("--grace", "-1"), *(("--batch-bytes", wrong) for wrong in ("0", "16MB", "-1", ""))],
)
def test_an_invalid_option(database_url, option, wrong):
    """The error is one line and names the option."""
    text = refuse_start("bank:account", option, wrong, "--database-url", database_url)
    assert text.count("Error") == 1
    assert option in text


def test_the_help_names_unit_and_default():
    """Of the options with units."""
    text = " ".join(invoke_cli("start", "--help").stdout.split())
    assert "--batch-bytes BYTES" in text
    assert "[default: (16777216, which is 16 MiB)" in text


def test_a_missing_right(connection, database_url):
    """The line names the right and the grant."""
    connection.execute("REVOKE ALL ON reservation.leases FROM message_store")
    line = refused(conninfo.make_conninfo(database_url, options="-c role=message_store"))
    assert "lacks INSERT on reservation.leases, SELECT on" in line
    assert "`reservation store grants consumer message_store`" in line


def test_a_port_that_is_taken(database_url):
    """No consumer is started before it is found out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(database_url, "--metrics-port", port)
    assert f"Error: Cannot answer at 127.0.0.1, port {port}: Address already in use" in line


def test_metrics_without_the_extra(database_url, monkeypatch):
    """The error names how to install it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    line = refused(database_url, "--metrics-port", "0")
    assert "pip install 'reservation[metrics]'" in line
