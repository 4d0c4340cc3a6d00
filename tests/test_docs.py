"""The README and the pages of docs/: what they show runs, parses and leads somewhere."""

import inspect
import json
import re
import sys
import tomllib
import types
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

import consumers
import consumers.testing
import reservation
import reservation.testing
from bank import account
from cli.main import main
from reservation import errors
from reservation.store.schema.scripts import SCHEMA_VERSION
from tests.bank import RESERVED, batch
from tests.controls import COMMANDS, deposit, open_
from tests.pages import ROOT, anchors, blocks, commands, prose
from tests.processes import Started, run_cli
from tests.tracing import provided

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

# Programs of others that the pages show, besides `reservation`, `make` and `pip`.
OTHERS = {"createdb", "export", "jq", "kubectl", "pg_dump", "psql", "python", "spark-submit"}
OTHERS |= {".", "cd", "echo", "mkdir", "python3", "rm", "systemctl"}
OTHERS |= {"curl", "docker", "openssl", "opentelemetry-instrument", "pipx", "pre-commit", "umask"}
OTHERS |= {"uvicorn"}
OTHERS |= {"workers/bin/pip", "workers/bin/venv-pack", "$SPARK_HOME/sbin/start-connect-server.sh"}


@pytest.fixture
def _environment(database_url, monkeypatch, tmp_path):
    """Let the examples find the database, and the modules that they are shown as."""
    monkeypatch.setenv("RESERVATION_DATABASE_URL", database_url)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    with provided(None):
        yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("name", NAMES)
def test_the_python_of_a_page_runs_as_it_stands(name, tmp_path, monkeypatch):
    """The Python blocks of a page run in order; those headed by a file's name form a file."""
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
def test_the_component_of_the_readme_reconciles_as_it_says(database_url, tmp_path):
    """The README's component runs and reconciles, and the report has the counts of the text."""
    readme = ROOT / "README.md"
    for block in blocks(readme, "python"):
        (tmp_path / block.text.partition("\n")[0].removeprefix("# ")).write_text(block.text)
    exec((tmp_path / "send.py").read_text(), {"__name__": "send"})
    app = ["--app-dir", str(tmp_path)]
    with Started(database_url, *app, app="deposits:account") as started:
        started.wait_for("batch_committed", category=RESERVED, handled=2)
        assert started.stop() == 0
    done = run_cli("reconcile", "deposits:account", *app, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (counted,) = report["categories"]
    counts = re.search(
        r"counts (\d+) commands, (\d+) distinct keys, (\d+) duplicate and (\d+) events",
        readme.read_text(),
    )
    found = [counted["commands"], counted["keys"], counted["duplicates"]]
    assert [*found, report["events"]["events"]] == [int(number) for number in counts.groups()]
    assert [counted[name] for name in ("missing", "orphans", "conflicts")] == [0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_the_command_lines_of_a_page_can_be_given(name, monkeypatch, tmp_path):
    """Shown commands, options, values, make targets and pip extras exist."""
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
        for subcommand in command.commands.values():
            yield from _leaves(subcommand)
    else:
        yield command


def test_the_version_of_the_schema_is_shown_as_it_is():
    """Where a page shows what installing prints, the version is that of today."""
    line = re.compile(r"^reservation (\d+): (?:installed|removed)", re.MULTILINE)
    shown = {number for page in PAGES for number in line.findall(page.read_text())}
    assert shown == {str(SCHEMA_VERSION)}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_of_a_page_leads_somewhere(name):
    """Every link leads to a file of the checkout, and to a heading where it names one."""
    page = ROOT / name
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), link
        assert not heading or heading in anchors(target), link


def test_the_log_events_are_those_of_the_code():
    """Every described log event is logged at its level, and every log event is described."""
    programs = [
        path for part in ("consumers", "reservation") for path in (ROOT / part).rglob("*.py")
    ]
    programs += [ROOT / "cli" / "consumers" / "start.py"]
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


def test_the_strategies_to_choose_from_are_those_of_the_code():
    """The page lists every exported strategy and `reserve`, and no other."""
    table = (
        (ROOT / "docs/how-to/choose-a-strategy.md")
        .read_text()
        .partition("| strategy |")[2]
        .partition("\n\n")[0]
    )
    named = set(re.findall(r"^\| \[?`(\w+)", table, re.MULTILINE))
    exported = [getattr(reservation, name) for name in reservation.__all__]
    strategies = {
        cls.__name__ for cls in exported if inspect.isclass(cls) and hasattr(cls, "declare")
    }
    assert named == strategies | {"reserve"}


def test_the_page_of_the_api_has_every_public_name():
    """The API page has every exported name but the errors, which have their own page."""
    text = (ROOT / "docs/reference/api.md").read_text()
    named = set(
        re.findall(r"(?:^::: |`)((?:reservation|consumers)(?:\.testing)?\.\w+)", text, re.MULTILINE)
    )
    public = {
        f"{module.__name__}.{name}"
        for module in (reservation, consumers, reservation.testing, consumers.testing)
        for name in module.__all__
    }
    assert {name for name in public if not name.endswith("Error")} <= named


def exceptions_of(module):
    """Return the names of the exceptions that a module exports."""
    exported = {name: getattr(module, name) for name in module.__all__}
    return {
        name
        for name, value in exported.items()
        if inspect.isclass(value) and issubclass(value, BaseException)
    }


def test_the_errors_are_those_of_the_code():
    """The page of errors lists the whole tree of the code, and every other public exception."""
    text = (ROOT / "docs/reference/errors.md").read_text()
    listed = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))
    tree = {name for name in vars(errors) if name.endswith("Error")} - {"ReservationError"}
    others = {
        f"{module.__name__}.{name}"
        for module in (consumers, reservation.testing, consumers.testing)
        for name in exceptions_of(module)
    }
    assert listed == tree | others
    mentioned = {"ReservationError", "Reject", "RetryLater"}
    assert exceptions_of(reservation) == tree | mentioned
    assert all(f"`{name}`" in text for name in mentioned)


@pytest.mark.parametrize("name", NAMES)
def test_the_files_that_a_page_names_exist(name):
    """The files of the checkout that a page names exist."""
    named = r"`((?:reservation|consumers|cli|spark_jobs|tests|benchmarks|docs|examples)/[\w./]*)`"
    for path in set(re.findall(named, (ROOT / name).read_text())):
        assert (ROOT / path).exists(), path


def test_every_page_is_in_the_navigation():
    """The navigation names every page and no other."""
    text = re.sub(r"!!\S+", "", (ROOT / "mkdocs.yml").read_text())
    named = _leaves_of(YAML(typ="safe").load(text)["nav"])
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(map(str, pages))


def _leaves_of(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [leaf for part in parts for leaf in _leaves_of(part)]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_uses_the_usual_words(name):
    """Pages use the usual words, in one spelling each."""
    private = r"can not|on the spot|ways? to be idempotent|(?:is|are) there again|dealt? with"
    assert re.findall(private, prose(ROOT / name).replace("\n", " ")) == []


def metrics_of_the_code() -> set[str]:
    """Return the names of the metrics that the consumers serve and the reconciliation writes."""
    served = "".join(path.read_text() for path in (ROOT / "consumers").rglob("*.py"))
    families = re.findall(r"(\w+)MetricFamily\(\s*\"(\w+)\"", served)
    names = {name + ("_total" if kind == "Counter" else "") for kind, name in families}
    (written,) = (ROOT / "spark_jobs").rglob("prometheus.py")
    code = written.read_text()
    gauges = set(re.findall(r"gauges\.set\(\s*\"(\w+)\"", code))
    tables = {
        "_CATEGORIES": "",
        "_EFFECTS": "effects_",
        "_SUBSCRIPTIONS": "subscriptions_",
        "_EVENTS": "",
    }
    for table, prefix in tables.items():
        lines = re.search(rf"^{table} = {{\n(.*?)^}}", code, re.MULTILINE | re.DOTALL)
        gauges |= {prefix + key for key in re.findall(r"^    \"(\w+)\":", lines[1], re.MULTILINE)}
    return names | {f"reservation_reconcile_{gauge}" for gauge in gauges}


def test_the_metrics_are_those_of_the_code():
    """Every described metric exists, and every metric is described."""
    text = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| (`reservation_.*?) \|", text, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert described == metrics_of_the_code()


def test_the_environment_variables_are_those_of_the_code():
    """Every environment variable that our code reads is described."""
    code = "".join(
        path.read_text()
        for package in ("reservation", "consumers", "cli", "spark_jobs")
        for path in (ROOT / package).rglob("*.py")
    )
    read = set(re.findall(r"environ(?:\.get\(|\[|\.setdefault\()\s*\"([A-Z_]+)\"", code))
    read |= set(re.findall(r"envvar=\"([A-Z_]+)\"", code))
    text = (ROOT / "docs/reference/configuration.md").read_text()
    table = text.partition("| variable |")[2].partition("\n\n")[0]
    private = {"PYTHONSAFEPATH"}  # what we set for our own processes
    assert read - private <= set(re.findall(r"`([A-Z_]+)`", table))


def _schema(name: str) -> Draft202012Validator:
    return Draft202012Validator(
        json.loads((ROOT / f"docs/reference/schemas/{name}.schema.json").read_text())
    )


@pytest.fixture(name="printed_json")
def _printed_json(database_url, connection, store, monkeypatch):
    """Give what a command prints as JSON, on a store with a duplicate and a conflict."""
    monkeypatch.setenv("RESERVATION_DATABASE_URL", database_url)
    store.write([open_(), deposit(), deposit(), deposit(amount="99")], COMMANDS)
    store.schedule(deposit(), COMMANDS, after="1h")
    batch(connection, "account:command", account).run(10)
    batch(connection, RESERVED, account).run(10)
    connection.execute("DELETE FROM reservation.members")
    connection.execute("UPDATE message_store.messages SET time = time - interval '2 days'")

    def run(*arguments: str) -> dict[str, object]:
        done = CliRunner().invoke(main, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ("status", ["status"]),
        ("positions", ["positions", "list"]),
        ("changes", ["positions", "reset", "bank:account", "--yes"]),
        ("dead-letters", ["dead-letters", "list"]),
        ("scheduled", ["scheduled", "list"]),
        ("findings", ["findings", "accept", "conflict-4-0123abcd", "--reason", "settled"]),
        ("prune", ["prune", "bank:account", "--reservations-older-than", "36h"]),
        ("check", ["check", "bank:account"]),
        ("story", ["story", "d1", "--data"]),
    ],
    ids=[
        "status",
        "positions",
        "changes",
        "dead-letters",
        "scheduled",
        "findings",
        "prune",
        "check",
        "story",
    ],
)
def test_what_is_printed_as_json_fits_the_schema(printed_json, schema, arguments):
    """The JSON of every command fits its schema, with no further key."""
    validator = _schema(schema)
    validator.check_schema(validator.schema)
    printed = printed_json(*arguments)
    assert any(printed.values())
    assert [error.message for error in validator.iter_errors(printed)] == []


def test_the_error_of_a_bad_message_reads_as_shown(connection):
    """The page on failures shows the actual error for an undeclared type."""
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
    """No page has a path of one machine."""
    assert not re.search(r"(?<![\w.~}>-])/(?:work|home|root|tmp)/", (ROOT / name).read_text())
