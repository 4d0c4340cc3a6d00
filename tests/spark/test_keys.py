"""Keys are what the consumers take them for, by the declared type of each field."""

import json
import uuid
from dataclasses import dataclass

import pytest

from consumers.decisions.blocking import FailurePolicy
from reservation import Component
from spark_jobs.common.declaration import Declaration
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import claim, new_batch
from tests.processes import EXAMPLES

pytestmark = pytest.mark.spark


@dataclass
class Named:
    thing_id: str
    key: str


@dataclass
class Counted:
    thing_id: str
    key: int


def component():
    """Return one whose keys are texts and whole numbers."""
    made = Component("thing", id="thing_id")
    for command, into in ((Named, "named"), (Counted, "counted")):
        made.reserve(command, into=into, key="key")
        made.handle(command)(lambda command, entity, context: None)
    return made


def send(connection, type_, *keys):
    """Write commands with these keys, each key for an entity of its own, as any client may."""
    texts = [json.dumps(key) for key in keys]
    for text, key in zip(texts, keys, strict=True):
        entity = f"{type_}{texts.index(text)}"
        connection.execute(
            "SELECT message_store.write_message(%s, %s, %s, %s)",
            [
                str(uuid.uuid4()),
                f"thing:command-{entity}",
                type_,
                json.dumps({"thingId": entity, "key": key}),
            ],
        )


def consume(connection):
    """Let the consumers read everything, and skip what they cannot handle."""
    for category in ("thing:command", "named", "counted"):
        positions = claim(connection, "thing", category)
        new_batch(connection, component(), category).run(positions, 100, policy=FailurePolicy())


@pytest.fixture
def reconcile(spark, spark_database_url):
    """Give a function that reconciles the component and returns its counts by category."""

    def run():
        run = Run(component(), "", EXAMPLES, spark_database_url)
        with exported_snapshot(spark_database_url) as snapshot:
            report = in_session(run, snapshot, spark)
        return {
            category.reservation_category: category for category in report.categories
        }, report.findings

    return run


def test_a_value_of_another_type_is_on_no_key(spark_connection, reconcile):
    """A value of another type has no key: it is a dead letter or missing."""
    send(spark_connection, "Named", "5", 5, True, ["5"], {"5": 5}, None, "5", "a+b")
    send(spark_connection, "Counted", 5, "5", 5.0, 5.5, True, 5, 10**30)
    consume(spark_connection)
    counts, findings = reconcile()
    named, counted = counts["named"], counts["counted"]
    assert (named.keys, named.reserved, named.duplicates, named.conflicts) == (2, 2, 1, 0)
    assert (named.keyless, named.dead, named.missing) == (5, 5, 0)
    assert (counted.keys, counted.reserved, counted.duplicates, counted.conflicts) == (2, 2, 1, 0)
    assert (counted.keyless, counted.dead, counted.missing) == (4, 4, 0)
    assert {finding.finding for finding in findings} == {"unhandled"}
    spark_connection.execute("TRUNCATE reservation.dead_letters")
    counts, findings = reconcile()
    assert (counts["named"].missing, counts["counted"].missing) == (5, 4)


def test_only_what_is_stored_as_it_is_decoded_is_taken_from_the_data():
    """Of other types the component's own code makes the key, as in the consumers."""

    @dataclass
    class Odd:
        thing_id: str
        key: str | int

    @dataclass
    class Watched:
        thing_id: str
        key: str

        def __post_init__(self):
            self.key = self.key.lower()

    made = component()
    for command in (Odd, Watched):
        made.reserve(command, into="odd", key="key")
    keys = Declaration.of(made).keys
    assert keys["Named"].kinds == ("string",)
    assert keys["Counted"].kinds == ("number",)
    assert Declaration.of(made).by_function == ["Odd", "Watched"]
