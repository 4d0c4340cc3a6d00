"""``reservation console``: bad input in one line each, and its end."""

import os
import re
import signal
import socket
import subprocess

import pytest
from psycopg import connect, conninfo

from tests.console.conftest import FOLDER
from tests.support.commands import hide, invoke_cli
from tests.support.started import PATIENCE, command_line

TOKEN = "t" * 32
APPS = ("trade:orders", "trade:payments")


def refused(*arguments, **options):
    """Return the only line that the command prints, and its exit status."""
    done = invoke_cli("console", *arguments, **options)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line, done.returncode


@pytest.fixture
def roles(admin, connection, database_url):
    """Give addresses of a role of each kind that matters."""
    made = {}
    for kind in ("auditor", "operator", "consumer"):
        name = f"console_{kind}_{os.getpid()}"
        done = invoke_cli("store", "grants", kind, name, "--database-url", database_url)
        assert done.returncode == 0, done.stderr
        admin.execute(f"ALTER ROLE {name} LOGIN PASSWORD 'secret'")
        made[kind] = conninfo.make_conninfo(database_url, user=name, password="secret")
    yield made
    for kind in made:
        connection.execute(f"DROP OWNED BY console_{kind}_{os.getpid()}")
        admin.execute(f"DROP ROLE console_{kind}_{os.getpid()}")


def token_file(folder, content=TOKEN, mode=0o600):
    path = folder / "token"
    path.write_text(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (TOKEN, 0o640, "Other users can read the token file"),
        (TOKEN, 0o604, "Other users can read the token file"),
        ("short", 0o600, "at least 32 characters"),
        ("", 0o600, "at least 32 characters"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "one line"),
        ("é" * 32, 0o600, "one line"),
    ],
)
def test_a_token_file_that_is_not_safe_is_refused(database_url, tmp_path, content, mode, problem):
    """The line names the file and the way out, and never the token."""
    path = token_file(tmp_path, content, mode)
    line, status = refused("--database-url", database_url, "--token-file", path)
    assert status == 2
    assert problem in line
    assert path in line
    assert TOKEN not in line


def test_a_token_file_that_is_missing_or_a_pipe_is_refused(database_url, tmp_path):
    """A pipe is not waited for."""
    line, _ = refused("--database-url", database_url, "--token-file", str(tmp_path / "none"))
    assert "cannot be read: No such file" in line
    os.mkfifo(tmp_path / "pipe")
    line, _ = refused("--database-url", database_url, "--token-file", str(tmp_path / "pipe"))
    assert "is not a file" in line


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--host", "0.0.0.0"], "Others could open the console at 0.0.0.0"),
        (["--host", "console.example"], "give --token-file or --proxy-header"),
        (["--proxy-header", "X-User"], "name its address with --proxy-address"),
        (["--proxy-header", "X User", "--proxy-address", "::1"], "is not the name of a header"),
        (["--proxy-header", "X-User", "--proxy-address", "here"], "'here' is not an address"),
        (["--proxy-header", "X-User", "--token-file", "x"], "not both"),
        (["--allowed-host", "https://console.example"], "is not the name of a host"),
        (["--allowed-host", "console.example:443"], "without scheme and port"),
        (["nothing:here"], "There is no module 'nothing'"),
    ],
)
def test_options_that_do_not_fit_are_refused(database_url, arguments, problem):
    """Before anything is served."""
    line, status = refused(*arguments, "--database-url", database_url)
    assert status == 2
    assert problem in line


def test_a_port_in_use_is_named(database_url):
    """With the options that name another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = invoke_cli("console", "--database-url", database_url, "--port", port)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"Error: Cannot listen on 127.0.0.1, port {port}: Address already in use; name another "
        f"with --host and --port"
    )


def test_a_database_that_is_away_or_has_no_store_is_named(empty_database_url):
    """As the other commands do."""
    line, status = refused("--database-url", "postgresql://127.0.0.1:1/none")
    assert (status, "Cannot reach the database" in line) == (2, True)
    line, status = refused("--database-url", empty_database_url)
    assert (status, "reservation store install" in line) == (2, True)


def test_a_missing_extra_is_named(monkeypatch, database_url):
    """With the command that installs it."""
    hide(monkeypatch, "uvicorn")
    line, status = refused("--database-url", database_url)
    assert (status, "reservation[console]" in line) == (2, True)


def test_a_role_that_lacks_rights_is_named(roles, connection):
    """With the command that grants them."""
    auditor, operator = roles["auditor"], roles["operator"]
    line, status = refused("--database-url", operator)
    assert status == 2
    assert "lacks rights of an auditor, such as SELECT on " in line
    assert f"reservation store grants auditor console_operator_{os.getpid()}" in line
    line, _ = refused("--database-url", auditor, "--operator-database-url", auditor)
    assert "lacks rights of an operator, such as DELETE on reservation.pauses" in line


def test_two_stores_are_refused(database_url, make_database, template):
    """What is shown is what is acted on."""
    other = make_database(template)
    for statement in (
        "SELECT 'a copy, which has the identity of what it was made of'",
        "UPDATE reservation.store_identity SET id = gen_random_uuid()",
    ):
        with connect(other, autocommit=True) as connection:
            connection.execute(statement)
        urls = "--database-url", database_url, "--operator-database-url", other
        done = invoke_cli("console", *urls)
        assert "name different stores" in done.stderr
        assert done.returncode == 2


class Serving:
    """A ``reservation console`` as a process."""

    def __init__(self, database_url: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command_line("console", *APPS, "--port", "0", *arguments),
            env={**os.environ, "RESERVATION_DATABASE_URL": database_url},
            cwd=FOLDER,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("The console is at "):
                break
        assert "The console is at" in "".join(self.lines), self.lines
        self.sign_in_url = self.lines[-1].removeprefix("The console is at ").strip()
        self.url = re.sub(r"(:\d+)/.*", r"\1", self.sign_in_url)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop and return the exit status."""
        self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            if self.process.stderr:
                self.process.stderr.close()


def test_it_serves_with_the_rights_of_an_auditor_until_it_is_stopped(roles, tmp_path):
    """No more is needed, and nothing but the address is printed."""
    serving = Serving(roles["auditor"], "--operator-database-url", roles["operator"])
    try:
        assert len(serving.lines) == 1
        import httpx

        with httpx.Client(base_url=serving.url, follow_redirects=True) as client:
            assert client.get("/").url.path == "/sign-in"
            assert client.get(serving.sign_in_url).url.path == "/"
            for path in ("/", "/consumers"):
                answer = client.get(path)
                assert answer.status_code == 200
                assert "read-only" not in answer.text
                assert "server" not in answer.headers
    finally:
        assert serving.stop() == 0


def test_a_role_with_more_rights_is_warned_of(filled_url):
    """Reading as the owner works, and is no good habit; Ctrl-C is no failure."""
    serving = Serving(filled_url)
    try:
        assert "which may do more than an auditor" in serving.lines[0]
    finally:
        assert serving.stop(signal.SIGINT) == 0
