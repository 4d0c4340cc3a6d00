"""What surrounds the code: workflows, hooks and metadata name the same versions and programs."""

import re
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.servers import DEFAULT_IMAGE

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def yaml(path):
    """Return what a file of YAML says."""
    return YAML(typ="safe").load(path)


def matrix(job):
    """Return the versions that a job of the checks runs on."""
    checks = yaml(ROOT / ".github" / "workflows" / "checks.yml")
    ((_, versions),) = checks["jobs"][job]["strategy"]["matrix"].items()
    return versions


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
    assert named == matrix("tests")
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_every_supported_version_of_postgresql_is_tested():
    """Every PostgreSQL version from the README's oldest on is tested without a gap."""
    (oldest,) = re.findall(r"needs PostgreSQL (\d+) or later", (ROOT / "README.md").read_text())
    versions = [int(version) for version in matrix("servers")]
    assert versions == list(range(int(oldest), versions[-1] + 1))
    assert DEFAULT_IMAGE.removeprefix("postgres:") in matrix("servers")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_targets_of_a_workflow_exist_and_its_jobs_end(path):
    """Workflow targets exist, jobs have a time limit, and none may write to the repository."""
    workflow = yaml(path)
    targets = re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60, name
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
