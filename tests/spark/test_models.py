"""Verifying a read model on Spark: the same report as without it."""

import json

import pytest
from psycopg import sql

import consumers
from tests.apps.bank import address
from tests.apps.typed_rows import APP, ROOT, SEEN, Seen, model
from tests.read_models.test_switching import fits


@pytest.fixture
def built(connection, store):
    """Build tables of 100 rows each."""
    for n in range(100):
        store.write(Seen(n), f"{SEEN}-{n}")
    consumers.drain(model, address(connection))
    return connection


@pytest.fixture
def verified(command):
    """Give a function that verifies in both ways, and returns what both have found."""

    def run(status):
        words = ("models", "verify", APP, "--app-dir", str(ROOT), "--json")
        alone, on_spark = command(*words), command(*words, "--spark")
        assert (alone.returncode, on_spark.returncode) == (status, status), on_spark.stderr
        result = json.loads(on_spark.stdout)
        fits("verify", result)
        assert result == json.loads(alone.stdout)
        return {table["table"]: table for table in result["tables"]}

    return run


def schemas(connection):
    rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%verify%'")
    return rows.fetchall()


def test_rows_of_the_events_are_proved(built, verified):
    """Nothing is left of the rebuild."""
    tables = verified(0)
    assert {name: table["rows"] for name, table in tables.items()} == {
        "composite": 100,
        "many % types": 100,
        "nothing": 0,
        "parts": 100,
    }
    assert schemas(built) == []


# Of each table: what is changed, and how many rows are missing, unexpected and differing then.
CHANGES = {
    "many % types": (
        [
            "DELETE FROM {} WHERE id IN (3, 4, 9)",
            "INSERT INTO {} (id) VALUES (-1), (1000), (9)",
            "UPDATE {} SET digits = digits + 1e-30 WHERE id = 10",
            "UPDATE {} SET at = at + interval '1 microsecond' WHERE id = 11",
            "UPDATE {} SET day = NULL WHERE id = 12",
            "UPDATE {} SET more = NULL WHERE id = 13",
            "UPDATE {} SET more = 'null' WHERE id = 14",
            "UPDATE {} SET kind = 'two', tags = '{{b,a}}' WHERE id = 15",
            "UPDATE {} SET share = share + 1e-12 WHERE id = 16",
            "UPDATE {} SET \"key\" = 'K', digest = NULL WHERE id = 17",
            "UPDATE {} SET digits = digits::numeric(20, 9) WHERE id = 18",  # the same
            "UPDATE {} SET more = '{{\"n\": 19.000}}' WHERE id = 19",  # the same
        ],
        (2, 2, 9),
    ),
    "composite": (
        [
            "UPDATE {} SET amount = 7.5 WHERE amount = 7",
            "UPDATE {} SET amount = 8.000 WHERE amount = 8",  # the same
            "UPDATE {} SET kind = 'one' WHERE amount = 9",
            "UPDATE {} SET name = 'é.10' WHERE amount = 10",
            "UPDATE {} SET value = NULL WHERE amount = 11",
        ],
        (3, 3, 1),
    ),
    "parts": (
        [
            "DELETE FROM {} WHERE id IN (1, 99)",
            "INSERT INTO {} VALUES (200, 'v')",
            "UPDATE {} SET value = 'V' WHERE id IN (49, 50)",
        ],
        (2, 1, 2),
    ),
    "nothing": (["INSERT INTO {} VALUES (1), (2)"], (0, 2, 0)),
}


def test_the_same_differences_are_found(built, verified):
    """Rows that are missing, unexpected or differing, of any type; equal numbers are the same."""
    for name, (statements, _) in CHANGES.items():
        for statement in statements:
            table = sql.Identifier("typed_1", name)
            built.execute(sql.SQL(statement).format(table))
    tables = verified(1)
    counts = ("missing", "unexpected", "differing")
    for name, (_, expected) in CHANGES.items():
        assert tuple(tables[name][kind] for kind in counts) == expected, name
    fields = {row["key"]["id"]: row["fields"] for row in tables["many % types"]["samples"]}
    assert (fields[13], fields[14], fields[15]) == (["more"], ["more"], ["kind", "tags"])
