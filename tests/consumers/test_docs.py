"""The README and the pages of docs/: what they show runs, parses and leads somewhere."""

import inspect
import json
import re
import subprocess
import sys
import tomllib
import types

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

import consumers
import consumers.testing
import reservation
import reservation.admin
import reservation.strategies
import reservation.testing
from cli.main import main
from reservation import errors
from reservation.inspection.tally import CategoryRole
from tests.apps.bank import drain
from tests.support.commands import invoke_cli, leaves
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.pages import ROOT, anchors, blocks, commands, prose
from tests.support.tracing import provided

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

# Programs of others that the pages show, besides `reservation`, `make` and `pip`.
OTHERS = {"createdb", "export", "jq", "kubectl", "pg_dump", "psql", "python", "spark-submit"}
OTHERS |= {".", "cd", "echo", "mkdir", "python3", "rm", "systemctl"}
OTHERS |= {"curl", "docker", "openssl", "opentelemetry-instrument", "pipx", "pre-commit", "umask"}
OTHERS |= {"soda", "uvicorn"}
OTHERS |= {"workers/bin/pip", "workers/bin/venv-pack", "$SPARK_HOME/sbin/start-connect-server.sh"}


# The page whose examples kill processes again and again runs in `make soak`.
KILLING = "docs/how-to/crash-test.md"
# That of other tools runs with Spark, `tests/spark/test_pipelines_page.py`, and in `make soak`.
PIPELINES = "docs/how-to/pipelines.md"
# Django has one set of settings in a process, so its page has one of its own.
DJANGO = "docs/how-to/use-django.md"


@pytest.fixture
def environment(database_url, monkeypatch, tmp_path):
    """Let the examples find the database, and the modules that they are shown as."""
    monkeypatch.setenv("RESERVATION_DATABASE_URL", database_url)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with provided(None):
        yield
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMES
        if name not in (KILLING, PIPELINES, DJANGO) and blocks(ROOT / name, "python")
    ],
)
def test_the_python_of_a_page_runs_as_it_stands(name, tmp_path, monkeypatch):
    """The Python blocks of a page run in order; those headed by a file's name form a file."""
    run_python_of(ROOT / name, tmp_path, monkeypatch)


@pytest.mark.usefixtures("environment")
def test_the_python_of_the_page_of_django_runs_as_it_stands(tmp_path):
    """The same for the page that sets Django up, in a process."""
    settings, *others = (block.text for block in blocks(ROOT / DJANGO, "python"))
    assert settings.startswith("# settings.py\n")
    (tmp_path / "settings.py").write_text(settings)
    program = [sys.executable, "-W", "error", "-c", "\n".join(others)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def run_python_of(page, tmp_path, monkeypatch):
    """Run the Python blocks of a page."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page, "python"):
        file_name = re.match(r"# (\w+\.py)\n", block.text)
        if file_name:
            (tmp_path / file_name[1]).write_text(block.text)
        lines = "\n" * block.line + block.text  # so that a traceback names the page's own line
        exec(compile(lines, str(page), "exec"), vars(module))


def test_the_command_lines_of_the_pages_can_be_given(monkeypatch, tmp_path):
    """Shown commands, options, values, make targets and pip extras exist."""
    monkeypatch.setenv("RESERVATION_DATABASE_URL", "postgresql://localhost/bank")
    called = []
    for _, command in leaves(main):
        monkeypatch.setattr(command, "callback", lambda **_: called.append(1))
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):  # the files are the reader's
                monkeypatch.setattr(parameter.type, "exists", False)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    monkeypatch.chdir(tmp_path)
    shown = ((page, *found) for page in PAGES for found in commands(page))
    for page, line, started in shown:
        for program, *arguments in started:
            place = (page, line)
            match program:
                case "reservation":
                    before = len(called)
                    arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
                    done = CliRunner().invoke(main, arguments)
                    assert (done.exit_code, len(called)) == (0, before + 1), (place, done.output)
                case "make":
                    assert arguments[0] in targets, place
                case "pip":
                    (named,) = re.findall(r"\[(.*)\]", arguments[-1])
                    assert set(named.split(",")) <= set(extras), place
                case _:
                    assert program in OTHERS, place


def test_the_version_of_the_schema_is_shown_as_it_is(database_url):
    """Where a page shows what installing prints, the version is that of today."""
    line = re.compile(r"^reservation (\d+): (?:installed|removed)", re.MULTILINE)
    shown = {int(number) for page in PAGES for number in line.findall(page.read_text())}
    done = invoke_cli("store", "install", "--json", "--database-url", database_url)
    assert shown == {json.loads(done.stdout)["reservation"]["version"]}


def test_every_link_of_a_page_leads_somewhere():
    """Every link leads to a file of the checkout, and to a heading where it names one."""
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
            if link.startswith("https://"):
                continue
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.is_file(), (page, link)
            assert not heading or heading in anchors(target), (page, link)


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
    """The page lists every public strategy and `key=`, and no other."""
    table = (
        (ROOT / "docs/how-to/choose-a-strategy.md")
        .read_text()
        .partition("| strategy |")[2]
        .partition("\n\n")[0]
    )
    named = set(re.findall(r"^\| \[?`(\w+)", table, re.MULTILINE))
    exported = [getattr(reservation.strategies, name) for name in reservation.strategies.__all__]
    strategies = {
        cls.__name__ for cls in exported if inspect.isclass(cls) and hasattr(cls, "declare")
    }
    assert named == strategies | {"key"}


def test_the_page_of_the_api_has_every_public_name():
    """The API page has every exported name but the errors, which have their own page."""
    text = (ROOT / "docs/reference/api.md").read_text()
    named = set(re.findall(r"(?:^::: |`)((?:reservation|consumers)[.\w]+)", text, re.MULTILINE))
    public = {
        f"{module.__name__}.{name}"
        for module in (
            reservation,
            reservation.admin,
            reservation.strategies,
            reservation.testing,
            consumers,
            consumers.testing,
        )
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
    assert exceptions_of(reservation) == {"Reject", "RetryLater"}
    assert all(f"`{name}`" in text for name in ("ReservationError", "Reject", "RetryLater"))


def test_the_files_that_a_page_names_exist():
    """The files of the checkout that a page names exist."""
    named = r"`((?:reservation|consumers|cli|spark_jobs|tests|benchmarks|docs|examples)/[\w./]*)`"
    for page in PAGES:
        for path in set(re.findall(named, page.read_text())):
            assert (ROOT / path).exists(), (page, path)


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


def test_a_page_uses_the_usual_words():
    """Pages use the usual words, in one spelling each."""
    private = r"can not|on the spot|ways? to be idempotent|(?:is|are) there again|dealt? with"
    found = {page: re.findall(private, prose(page).replace("\n", " ")) for page in PAGES}
    assert {page: words for page, words in found.items() if words} == {}


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
    store.write(deposit(), COMMANDS, after="1h")
    drain(connection)
    connection.execute("UPDATE message_store.messages SET time = time - interval '2 days'")

    def run(*arguments: str) -> dict[str, object]:
        done = CliRunner().invoke(main, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return run


def test_what_is_printed_as_json_fits_the_schema(printed_json):
    """The JSON of every command fits its schema, with no further key."""
    for schema, command in {
        "status": "status",
        "positions": "positions list",
        "dead-letters": "dead-letters list",
        "scheduled": "scheduled list",
        "prune": "prune bank:account --reservations-older-than 36h",
        "check": "check bank:account",
        "story": "story d1 --data",
        "findings": "findings accept conflict-4-0123abcd --reason settled",
        "changes": "positions reset bank:account --yes",
    }.items():
        validator = _schema(schema)
        validator.check_schema(validator.schema)
        printed = printed_json(*command.split())
        assert any(printed.values()), command
        assert [error.message for error in validator.iter_errors(printed)] == [], command


def test_the_schema_of_a_check_knows_every_role():
    """The schema names each role that a category can have."""
    (types,) = [
        of["items"]["properties"]
        for of in _schema("check").schema["properties"].values()
        if "role" in of.get("items", {}).get("properties", {})
    ]
    assert types["role"]["enum"] == [*CategoryRole]


def test_the_error_of_a_bad_message_reads_as_shown(connection, store):
    """The page on failures shows the actual error for an undeclared type."""
    store.write(deposit(), "elsewhere-1")
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, '{}')",
        [COMMANDS, "Rename"],
    )
    drain(connection)
    ((error,),) = connection.execute("SELECT error FROM reservation.dead_letters").fetchall()
    shown = [block.text for block in blocks(ROOT / "docs/explanation/failures.md", "text")]
    assert f"Error: {error}\n" in shown


def test_a_page_names_no_machine():
    """No page has a path of one machine."""
    machine = r"(?<![\w.~}>-])/(?:work|home|root|tmp)/"
    assert [page for page in PAGES if re.search(machine, page.read_text())] == []
