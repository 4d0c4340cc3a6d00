"""Findings of a reconciliation that an operator accepts or reopens."""

import json
import os

import pytest
from psycopg import conninfo, sql

from tests.support.commands import invoke_cli

FINDING, OTHER = "conflict-1-0123abcd", "missing-2-0123abcd"


def findings(database_url, *words):
    """Run a command; return the exit status and the error."""
    done = invoke_cli("findings", *words, env={"RESERVATION_DATABASE_URL": database_url})
    return done.returncode, done.stderr


def accepted(database_url):
    """Return the findings that are accepted, with who accepted them and why."""
    env = {"RESERVATION_DATABASE_URL": database_url}
    listed = json.loads(invoke_cli("findings", "list", "--json", env=env).stdout)["decisions"]
    return [(one["finding"], one["decidedBy"], one["reason"]) for one in listed]


def grant(database_url, kind, role):
    """Give a role the rights of a kind, and no others."""
    env = {"RESERVATION_DATABASE_URL": database_url}
    assert invoke_cli("store", "grants", kind, role, env=env).returncode == 0


@pytest.fixture
def role(connection):
    """Give the name of a role of this test's own."""
    name = f"test_operator_{os.getpid()}"
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 's'").format(sql.Identifier(name)))
    yield name
    connection.execute(
        sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=sql.Identifier(name))
    )


def test_the_table_says_what_was_decided_and_why(database_url):
    """One line for each decision."""
    findings(database_url, "accept", FINDING, "--reason", "settled by hand")
    env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"}
    _, line = invoke_cli("findings", "list", env=env).stdout.splitlines()
    assert line.split()[:2] == [FINDING, "accepted"]
    assert line.rstrip().endswith("settled by hand")


def test_only_an_operator_accepts(database_url, role):
    """The server refuses everybody else, and notes who it was."""
    own = conninfo.make_conninfo(database_url, user=role, password="s")
    grant(database_url, "operator", role)
    assert findings(own, "accept", FINDING, "--reason", "settled") == (0, "")
    assert accepted(own) == [(FINDING, role, "settled")]
    for kind in ("consumer", "auditor"):
        grant(database_url, kind, role)
        status, error = findings(own, "reopen", FINDING)
        assert status == 2
        assert f"`reservation store grants operator {role}`" in error
        assert accepted(own) == [(FINDING, role, "settled")]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["accept", OTHER, FINDING, "--reason", "settled"], "accepted already, by"),
        (["accept", OTHER, "conflict-1", "--reason", "settled"], "is not the id of a finding"),
        (["accept", "pending-1-0123abcd", "--reason", "s"], "is not the id of a finding"),
        (["accept", OTHER, "--reason", " "], "A reason is needed"),
        (["reopen", FINDING, OTHER], "is not accepted"),
    ],
)
def test_a_decision_that_is_none_is_refused(database_url, words, problem):
    """All of several are decided, or none."""
    assert findings(database_url, "accept", FINDING, "--reason", "settled") == (0, "")
    status, error = findings(database_url, *words)
    assert status == 2
    assert problem in error
    assert [finding for finding, *_ in accepted(database_url)] == [FINDING]
