"""The README and the pages of docs/: what they show runs, parses and leads somewhere."""

import inspect
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

import reservation
from bank import account
from cli.main import main
from reservation import errors
from tests.bank import RESERVED, batch
from tests.controls import COMMANDS
from tests.processes import Started, run_cli

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

# Programs of others that the pages show, besides `reservation`, `make` and `pip`.
OTHERS = {"createdb", "export", "jq", "kubectl", "pg_dump", "psql", "python", "spark-submit"}
OTHERS |= {"docker", "pipx", "pre-commit"}
OTHERS |= {"workers/bin/pip", "workers/bin/venv-pack", "$SPARK_HOME/sbin/start-connect-server.sh"}


class Block(NamedTuple):
    """A fenced block of a page, the line it starts at, and its text."""

    language: str
    line: int
    text: str


def blocks(page: Path, language: str) -> list[Block]:
    """Return a page's blocks in a language, in order."""
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    every = (Block(m[1], page.read_text().count("\n", 0, m.start()) + 1, m[2]) for m in found)
    return [block for block in every if block.language == language]


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Give each shown command line, and the programs with their arguments that it starts."""
    for block in blocks(page, "console"):
        for line in re.findall(r"^\$ (.*)$", block.text, re.MULTILINE):
            words = shlex.split(line, comments=True)
            started: list[list[str]] = [[]]
            for word in words:
                if word in ("|", "&&", ";"):
                    started.append([])
                elif started[-1] or not re.match(r"[A-Z_]+=", word):
                    started[-1].append(word)
            yield line, started


def anchors(page: Path) -> set[str]:
    """Return the names by which a link may lead to a heading of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def _environment(database_url, monkeypatch, tmp_path):
    """Let the examples find the database, and the modules that they are shown as."""
    monkeypatch.setenv("RESERVATION_DATABASE_URL", database_url)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("name", NAMES)
def test_the_python_of_a_page_runs_as_it_stands(name, tmp_path, monkeypatch):
    """The blocks of a page run in order; one that is headed by a file's name is also that file."""
    page = ROOT / name
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page, "python"):
        file_name = re.match(r"# (\w+\.py)\n", block.text)
        if file_name:
            (tmp_path / file_name[1]).write_text(block.text)
        lines = "\n" * block.line + block.text  # so that a traceback names the page's own line
        exec(compile(lines, str(page), "exec"), vars(module))


@pytest.mark.spark
@pytest.mark.usefixtures("_environment")
def test_the_component_of_the_readme_reconciles_as_shown(database_url, tmp_path):
    """It is started and reconciled by its app path, and the table is the one that is printed."""
    readme = ROOT / "README.md"
    for block in blocks(readme, "python"):
        (tmp_path / block.text.partition("\n")[0].removeprefix("# ")).write_text(block.text)
    exec((tmp_path / "send.py").read_text(), {"__name__": "send"})
    app = ["--app-dir", str(tmp_path)]
    with Started(database_url, *app, app="deposits:account") as started:
        started.wait_for("batch_committed", category=RESERVED, handled=2)
        assert started.stop() == 0
    done = run_cli("reconcile", "deposits:account", *app, env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    (shown,) = [block.text for block in blocks(readme, "text")]
    assert done.stdout == shown


@pytest.mark.parametrize("name", NAMES)
def test_the_command_lines_of_a_page_can_be_given(name, monkeypatch, tmp_path):
    """Commands, options and their values, the targets of make and the extras of pip all exist."""
    monkeypatch.setenv("RESERVATION_DATABASE_URL", "postgresql://localhost/bank")
    called = []
    for command in _leaves(main):
        monkeypatch.setattr(command, "callback", lambda **_: called.append(1))
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):  # the files are the reader's
                monkeypatch.setattr(parameter.type, "exists", False)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    monkeypatch.chdir(tmp_path)
    for line, started in commands(ROOT / name):
        for program, *arguments in started:
            match program:
                case "reservation":
                    before = len(called)
                    arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
                    done = CliRunner().invoke(main, arguments)
                    assert (done.exit_code, len(called)) == (0, before + 1), (line, done.output)
                case "make":
                    assert arguments[0] in targets, line
                case "pip":
                    (named,) = re.findall(r"\[(.*)\]", arguments[-1])
                    assert set(named.split(",")) <= set(extras), line
                case _:
                    assert program in OTHERS, line


def _leaves(command: click.Command) -> Iterator[click.Command]:
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from _leaves(one)
    else:
        yield command


@pytest.mark.parametrize("name", NAMES)
def test_every_link_of_a_page_leads_somewhere(name):
    """To a file of the checkout, and to a heading where it names one."""
    page = ROOT / name
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), link
        assert not heading or heading in anchors(target), link


def test_the_log_events_are_those_of_the_code():
    """Each that is described is logged, at its level, and each that is logged is described."""
    programs = [*(ROOT / "consumers").rglob("*.py"), ROOT / "cli" / "start.py"]
    code = "".join(path.read_text() for path in programs)
    logged = set(re.findall(r"\.(debug|info|warning|error)\(\s*\"(\w+)\"", code))
    table = (ROOT / "docs/reference/logs.md").read_text().partition("| event | level |")[2]
    described = re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE)
    assert {(level, event) for event, level in described} == logged
    names = {event for _, event in logged}
    for page in PAGES:
        mentioned = set(re.findall(r"`([a-z]+_[a-z]+)` (?:is )?logged", page.read_text()))
        mentioned |= set(re.findall(r"logged as `(\w+)`", page.read_text()))
        mentioned |= set(re.findall(r'"event": "(\w+)"', page.read_text()))
        assert mentioned <= names, page.name


@pytest.mark.parametrize("name", ["README.md", "docs/how-to/choose-a-strategy.md"])
def test_the_strategies_to_choose_from_are_those_of_the_code(name):
    """What can be given as ``once`` and is exported, and `reserve`; each on the page, no other."""
    table = (ROOT / name).read_text().partition("| strategy |")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| \[?`(\w+)", table, re.MULTILINE))
    exported = {one for one in reservation.__all__ if inspect.isclass(getattr(reservation, one))}
    ways = {one for one in exported if hasattr(getattr(reservation, one), "begin")}
    assert named == ways | {"StateBased", "reserve"}


def test_the_errors_are_those_of_the_code():
    """The page of the errors lists the whole tree."""
    table = (ROOT / "docs/reference/errors.md").read_text()
    listed = set(re.findall(r"^\| `(\w+Error)` \|", table, re.MULTILINE))
    tree = {name for name in vars(errors) if name.endswith("Error")} - {"ReservationError"}
    assert listed == tree


def test_the_error_of_a_bad_message_reads_as_shown(connection):
    """The page on failures shows the line of a type that nobody declared."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, '{}')",
        [COMMANDS, "Rename"],
    )
    connection.execute("UPDATE message_store.messages SET global_position = 2")
    with pytest.raises(errors.UnknownTypeError) as caught:
        batch(connection, "account:command", account).run(1)
    shown = [block.text for block in blocks(ROOT / "docs/explanation/failures.md", "text")]
    assert f"Error: {caught.value}\n" in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_page_names_no_machine(name):
    """Pages hold for every reader, so no path of one machine stands in them."""
    assert not re.search(r"(?<![\w.~}>-])/(?:work|home|root|tmp)/", (ROOT / name).read_text())
