"""Facts: the same of a store and of its archive, and keys that the consumers would take."""

import random

import pyarrow as pa
import pytest

from reservation.declaration.table import declarations
from reservation.errors import ReservationError
from reservation.messages.message import followed_id
from spark_jobs.facts.hashing import hashed
from spark_jobs.facts.query import FACT
from spark_jobs.reconcile import Source
from spark_jobs.run import Run
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.apps.bank import drain
from tests.spark.builders import ROOT, insert
from tests.spark.judging import APP
from tests.spark.planting import Count, Send, component

SEED = 7


@pytest.fixture
def facts_of(spark, database_url):
    """Give a function that returns the facts of a store, with an archive if one is named."""

    def read(archive=None, names=tuple(FACT)):
        run = Run(component, APP, ROOT, database_url, archive=archive)
        with exported_snapshot(database_url) as snapshot:
            source = Source.of(run, snapshot, spark)
            rows = source.rows(source.categories, SEED, None)
            return sorted(rows.facts.all(names).collect(), key=lambda row: row["position"])

    return read


def test_an_archive_gives_the_same_facts(judging, facts_of):
    """Its messages become the same numbers by Python as those of the store by SQL."""
    planting = judging.planted(5)
    planting.messages(150)
    judging.consumers_go_on()
    stored = facts_of()
    judging.archive()
    planting.messages(20, behind=True)
    later = facts_of()
    assert len(later) > len(stored)
    assert facts_of(judging.archived) == later


def test_the_page_has_the_columns_of_facts():
    """With their types in Spark."""
    page = (ROOT / "docs" / "explanation" / "reconciliation.md").read_text()
    block = page.split("```text\n")[1].split("```")[0]
    assert dict(line.split()[:2] for line in block.splitlines()) == FACT


def test_texts_are_hashed_as_the_server_hashes_them(connection):
    """Of each length, with characters of several bytes, by any seed, and null of null."""
    chance = random.Random(1)
    texts = ["", "a", "é", "x" * 5000, *("ab€"[n % 3] * n for n in range(1, 80))]
    texts += ["".join(map(chr, chance.choices(range(32, 900), k=n))) for n in range(60)]
    for seed in (0, 1, 2**62 + 12345):
        rows = connection.execute(
            "SELECT hashtextextended(t, %s) FROM unnest(%s::text[]) WITH ORDINALITY AS u(t, n) "
            "ORDER BY n",
            [seed, [*texts, None]],
        ).fetchall()
        assert hashed(pa.array([*texts, None]), seed).to_pylist() == [found for (found,) in rows]


ODD = [
    *("a", "a+b", "a-b", "", " ", "é", "a\nb", "\x01", "\x7f", "\x80", "\x9f", "\xa0"),
    *("k" * 2_593, "k" * 2_594, "é" * 1_296, "é" * 1_297, "\N{PILE OF POO}", "'\"\\"),
]
NUMBERS = [0, -1, 10**18, 10**30, 10**2_592, 10**2_593]


def test_what_cannot_name_a_stream_is_no_key(connection, facts_of):
    """It is without a key here exactly where the consumers refuse it, and else names their copy."""
    sent = [Send("1", key) for key in ODD] + [Send(key, "k") for key in ODD]
    sent += [Count("1", number) for number in NUMBERS]
    expected = []
    for number, command in enumerate(sent):
        type_ = type(command).__name__
        data = {"thingId": command.thing_id, "key": command.key}
        insert(connection, f"thing:command-{number}", type_, data)
        try:
            stream = declarations(component).own[type_].reservation.stream_name(command)
        except ReservationError:
            expected.append(None)
        else:
            expected.append(f"sent\n{stream}")
    assert None in expected
    found = facts_of(names=("position", "key"))
    assert [row["key"] for row in found] == hashed(pa.array(expected), SEED).to_pylist()
    drain(connection, component)
    refused = connection.execute("SELECT DISTINCT global_position FROM reservation.dead_letters")
    assert {at for (at,) in refused} == {row["position"] for row in found if row["key"] is None}
    copied = connection.execute(
        "SELECT stream_name FROM message_store.messages "
        "WHERE message_store.category(stream_name) = 'sent'"
    )
    assert {f"sent\n{stream}" for (stream,) in copied} == {*expected} - {None}


def test_effects_of_one_cause_are_recognized_in_linear_time(connection, reconcile):
    """2,400 events of one handling are one effect, also without the first; a foreign one is not."""
    cause = insert(connection, "sent-1+a", "Send", {"thingId": "1", "key": "a"})
    ((id_,),) = connection.execute("SELECT id FROM message_store.messages").fetchall()
    follows = {"causationMessageGlobalPosition": cause}
    for ordinal in range(2_400):
        derived = followed_id(str(id_), "thing-1", ordinal)
        insert(connection, "thing-1", "Done", {"n": ordinal}, follows, id_=str(derived))
    connection.execute(
        "DELETE FROM message_store.messages WHERE stream_name = 'thing-1' AND position < 5"
    )
    assert reconcile(app=APP, app_dir=ROOT).counts[3]["effect_twice"] == 0
    insert(connection, "thing-1", "Done", {"n": 0}, follows)
    found = reconcile(app=APP, app_dir=ROOT)
    assert found.counts[3]["effect_twice"] == 1
    assert found.found.count("effect-twice") == 1
