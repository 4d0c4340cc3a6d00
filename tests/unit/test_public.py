"""What is public, and what surrounds the code: workflows, hooks and metadata that say the same."""

import ast
import fnmatch
import importlib.metadata
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import reservation
from reservation import errors
from tests.support.pages import ROOT, blocks
from tests.support.servers import DEFAULT_IMAGE

NAMES = {
    "reservation": """
        NO_STREAM AsyncMessageStore Breaker Cancellation Component Context FailedAttempt Key
        MessageStore Metadata Notices Outcome Question Rate ReadContext ReadModel Recorded Reject
        Retry RetryLater StoredMessage Tick Upcast Write __version__ stream_name
    """,
    "reservation.strategies": """
        ClockRevisions DatabaseRevisions MessageIdInEvents PositionInEvents Processed Revisions
        StateBased
    """,
    "reservation.admin": "attach detach install",
}
NAMES = {module: names.split() for module, names in NAMES.items()}
PUBLIC = {*NAMES, "reservation.errors", "reservation.testing", "reservation.http"}
PUBLIC |= {"consumers", "consumers.testing", "spark_jobs.source"}
OURS = ("reservation", "consumers", "cli", "spark_jobs")
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Give the modules of ours that a text of Python imports from, each with the name it takes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        yield from ((module, name) for module, name in found if module.split(".")[0] in OURS)


def refuse_private(source: str) -> None:
    """Refuse imports of what is private."""
    for module, name in imported(source):
        public = importlib.import_module(module) if module in PUBLIC else None
        assert public is not None, f"{module} is private"
        exported = getattr(public, "__all__", vars(public))
        assert not name or name in exported, f"{module} does not export {name}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_imports_only_what_is_public(path):
    """Examples import public names only."""
    refuse_private(path.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_imports_only_what_is_public(page):
    """The Python of each page imports public names only."""
    for block in blocks(page, "python"):
        refuse_private(block.text)


def test_private_imports_are_found():
    """The check finds imports of private modules and names."""
    for source in (
        "import reservation.context",
        "from reservation import ReservationError",
        "from reservation.store.client import MessageStore",
        "from reservation import Component, errors",
        "from consumers.supervisor.supervisor import run",
        "def f():\n    from spark_jobs.session import session",
    ):
        with pytest.raises(AssertionError, match=r"is private|does not export"):
            refuse_private(source)
    refuse_private("import json\nfrom reservation import Component\nimport consumers")


def test_the_public_names_are_these():
    """Nothing becomes public, or is public no more, by accident."""
    for module, names in NAMES.items():
        public = importlib.import_module(module)
        assert public.__all__ == names
        assert all(hasattr(public, name) for name in names)


def shown(page: Path) -> Iterator[str]:
    """Give the public names that a page shows the use of, with their modules."""
    for block in blocks(page, "python"):
        for module, name in imported(block.text):
            yield f"{module}.{name}"
    yield from re.findall(r"`(reservation(?:\.\w+)+)", page.read_text())


def test_each_public_name_has_a_page_that_shows_its_use():
    """A name that no page but the list of all uses is not one that a user needs."""
    pages = [page for page in PAGES if page.name != "api.md"]
    used = {name for page in pages for name in shown(page)}
    public = {f"{module}.{name}" for module, names in NAMES.items() for name in names}
    assert public - used == {"reservation.__version__"}


def test_the_errors_are_drawn_in_one_tree():
    """The tree in the module's docstring equals the classes."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([ │├└─]*)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            path = [*path[:depth], found[2]]
            drawn[found[2]] = path[depth - 1] if depth else "Exception"
    classes = [error for error in vars(errors).values() if isinstance(error, type)]
    known = {
        class_.__name__: class_.__base__.__name__
        for class_ in classes
        if issubclass(class_, Exception)
    }
    assert drawn == known


def test_the_version_is_that_of_the_distribution():
    """The version of the module is that of the distribution."""
    assert reservation.__version__ == importlib.metadata.version("reservation")


def sources(module: str) -> Iterator[Path]:
    """Give the files in which the public names of a module are defined."""
    public = importlib.import_module(module)
    for name in getattr(public, "__all__", vars(public)):
        value = getattr(public, name)
        owners = inspect.getmro(value) if inspect.isclass(value) else [inspect.unwrap(value)]
        for owner in owners if callable(value) else [value] * inspect.ismodule(value):
            if getattr(owner, "__module__", owner.__name__).split(".")[0] in OURS:
                yield Path(inspect.getsourcefile(owner) or "")


def test_only_public_names_have_sections_for_arguments():
    """A private function says what it does in a sentence; its names and types say the rest."""
    public = {path for module in PUBLIC for path in sources(module)}
    folder = Path(reservation.__file__).parents[1]
    modules = {path for part in OURS for path in (folder / part).rglob("*.py")}
    found = {path for path in modules if re.search(r"^ +(Args|Raises):$", path.read_text(), re.M)}
    assert found
    examples = folder / "cli" / "examples"  # which the wheel has there
    private = {path for path in found - public if not path.is_relative_to(examples)}
    assert {str(path.relative_to(folder)) for path in private} == set()


PLUGIN = "cli.pytest_plugin."  # which pytest imports by this name


def private_names(source: str, private: set[str]) -> Iterator[str]:
    """Give the texts of a module that name something private, as a patch of it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and re.fullmatch(r"\w+(\.\w+)+", str(node.value)):
            name = f"{node.value}."
            if any(name.startswith(f"{module}.") for module in private) and name != PLUGIN:
                yield node.value


def test_tests_patch_nothing_private():
    """The linter refuses imports of what is private; this its names, with the same exceptions."""
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    private = set(lint["flake8-tidy-imports"]["banned-api"])
    excepted = [
        re.compile(fnmatch.translate(one))
        for pattern, rules in lint["per-file-ignores"].items()
        if "TID251" in rules and not pattern.startswith("!")
        for one in expanded(pattern)
    ]
    found = {
        (str(path), name)
        for path in (path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))
        if not any(one.match(str(path)) for one in excepted)
        for name in private_names((ROOT / path).read_text(), private)
    }
    assert found == set()


def expanded(pattern: str) -> list[str]:
    """Return the patterns that one with alternatives in braces stands for."""
    head, brace, rest = pattern.partition("{")
    inside, _, tail = rest.partition("}")
    return [head + one + tail for one in inside.split(",")] if brace else [pattern]


def test_a_text_with_a_private_name_is_found():
    source = 'patch("consumers.loop.schedule.PAUSE", 0); patch("sys.stdin", 0)'
    assert [*private_names(source, {"consumers.loop"})] == ["consumers.loop.schedule.PAUSE"]


# What surrounds the code

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def yaml(path):
    """Return what a file of YAML says."""
    return YAML(typ="safe").load(path)


def versions_of(program):
    """Return the versions of a program that the checks run the tests on, in order."""
    checks = yaml(ROOT / ".github" / "workflows" / "checks.yml")
    pairs = checks["jobs"]["tests"]["strategy"]["matrix"]["include"]
    return sorted({pair[program] for pair in pairs})


def linters(text):
    """Return the programs of the environment that lines call, with their schema."""
    text = text.replace(
        "$(CHECK_SCHEMA)", "$(BIN)/check-jsonschema --builtin-schema vendor.github-"
    )
    text = text.replace("$(BIN)", ".venv/bin").replace(" --quiet", "")
    return set(
        re.findall(r"\.venv/bin/((?:check-jsonschema --builtin-schema|ruff)? ?[\w.-]+)", text)
    )


def test_the_classifiers_name_the_versions_of_python_that_are_tested():
    """The classifiers name the Python versions that the workflow tests."""
    prefix = "Programming Language :: Python :: "
    named = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if prefix in line]
    assert named == versions_of("python")
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_every_supported_version_of_postgresql_is_tested():
    """Every PostgreSQL version from the README's oldest on is tested without a gap."""
    (oldest,) = re.findall(r"PostgreSQL, version (\d+) or later", (ROOT / "README.md").read_text())
    versions = [int(version) for version in versions_of("postgresql")]
    assert versions == list(range(int(oldest), versions[-1] + 1))
    assert DEFAULT_IMAGE.removeprefix("postgres:") in versions_of("postgresql")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_targets_of_a_workflow_exist_and_its_jobs_end(path):
    """Workflow targets exist, jobs have a time limit, and none may write to the repository."""
    workflow = yaml(path)
    targets = re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= (240 if path.stem == "soak" else 60), name
        for step in job["steps"]:
            for target in re.findall(r"\bmake (\w+)", step.get("run", "")):
                assert target in targets, name


def test_the_hooks_run_what_the_linters_are():
    """The hooks run each linter of `make lint` and no other."""
    lines = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    called = linters(lines)
    (local,) = yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert linters("\n".join(hook["entry"] for hook in local["hooks"])) == called
    assert {"ruff format", "mypy", "codespell", "lint-imports"} < called


def test_the_addresses_of_the_project_are_of_one_repository():
    """All addresses of the project name one repository."""
    repository = PROJECT["urls"]["Repository"]
    assert all(address.startswith(repository) for address in PROJECT["urls"].values())
