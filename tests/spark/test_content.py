"""The digest of contents: equal where the consumers call two contents equal, and nowhere else."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from reservation import Component
from spark_jobs.analysis.commands import CommandsJob
from spark_jobs.analysis.verdicts.prefilter import Prefilter, PrefilterInput
from spark_jobs.archive.content import digest
from spark_jobs.common.declaration import Declaration
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.fingerprinting import ServerFingerprints
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import exported_snapshot
from spark_jobs.source.columns import CategoryQuery

pytestmark = pytest.mark.spark

DISTANCES = range(1, 129)


@dataclass
class Send:
    thing_id: str
    key: str
    at: str
    of: Any = None


def component():
    """Return one that reserves a command with a volatile field."""
    made = Component("thing", id="thing_id")
    made.reserve(Send, into="sent", key="key", volatile="at")
    made.handle(Send)(lambda command, entity, context: None)
    return made


made = component()


def write(connection, contents):
    """Write commands with these texts as their data."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO message_store.messages (stream_name, position, type, data) "
            "VALUES ('thing:command-1', %s, 'Send', %s::jsonb)",
            list(enumerate(contents)),
        )


def digests(connection):
    """Return the digests that the server and Spark compute for the commands, in order."""
    columns = ["global_position", "content", "data"]
    query = CategoryQuery("thing:command", columns, Declaration.of(component()))
    text = sql.SQL(query.text(0, 2**62, connection))
    rows = sorted(connection.execute(text))
    assert [digest(data, ["at"]) for _, _, data in rows] == [made for _, made, _ in rows]
    return [made for _, made, _ in rows]


numbers = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.sampled_from(["1", "1.0", "1.00", "10", "10.0", "1e1", "0", "-0", "-0.0", "0.0", "0.10"]),
    st.sampled_from(["1.5", "1.50", "15e-1", "1.05", "1.050", "1e-3", "0.0010", "100", "1e2"]),
)
texts = st.text(st.sampled_from('a.0"\\1,}]{ :é\n'), max_size=6).map(
    lambda text: json.dumps(text, ensure_ascii=False)
)
values = st.recursive(
    numbers | texts | st.sampled_from(["null", "true", "[]", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda of: f"[{','.join(of)}]")
        | st.lists(st.tuples(texts, inner), max_size=3).map(
            lambda of: "{" + ",".join(f"{name}:{value}" for name, value in of) + "}"
        )
    ),
    max_leaves=6,
)


@given(contents=st.lists(values, min_size=2, max_size=40))
def test_digests_are_equal_where_contents_are(spark_connection, contents):
    """Digests are equal where the consumers call contents equal."""
    spark_connection.execute("TRUNCATE message_store.messages")
    write(spark_connection, contents)
    found = digests(spark_connection)
    equal = spark_connection.execute(
        "SELECT a.position, b.position FROM message_store.messages a, message_store.messages b "
        "WHERE reservation.content(a.data, '{at}') = reservation.content(b.data, '{at}')"
    ).fetchall()
    everything = range(len(contents))
    assert set(equal) == {(a, b) for a in everything for b in everything if found[a] == found[b]}


def test_fields_that_may_differ_are_no_content(spark_connection):
    """Volatile fields, the order of keys and the form of numbers do not change a digest."""
    first = '{"key": "k", "at": "now", "n": 1.0, "of": [{"a": 100, "b": "1.0"}]}'
    same = '{"of": [{"b": "1.0", "a": 1e2}], "n": 1, "key": "k", "at": "later"}'
    others = (
        first.replace('"1.0"', '"1"'),
        first.replace("1.0,", "1.01,"),
        first.replace("100", "10"),
        first.replace('"n": 1.0, ', ""),
        "[1.0]",
        "1",
        "null",
    )
    write(spark_connection, [first, same, *others])
    spark_connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type) "
        "VALUES ('thing:command-1', 100, 'Send')"
    )
    found = digests(spark_connection)
    assert found[0] == found[1]
    assert len(set(found[1:])) == len(others) + 2


def shapes(distance, *, swaps):
    """Return pairs of contents, in which two values at a distance changed together."""
    before = [str(n) for n in range(distance + 3)]
    if swaps:
        after = [*before]
        after[1], after[1 + distance] = before[1 + distance], before[1]
    else:
        before[1] = before[1 + distance] = "equal"
        after = [*before]
        after[1] = after[1 + distance] = "other"
    for name, shape in (
        ("array", list),
        ("object", lambda of: {f"f{n}": value for n, value in enumerate(of)}),
        ("arrays", lambda of: [[value] for value in of]),
        ("objects", lambda of: [{"value": value} for value in of]),
        ("nested", lambda of: {"of": [{"in": of}]}),
    ):
        yield f"{name}-{distance}-{swaps}", shape(before), shape(after)


def test_values_at_any_distance_are_distinguished(spark, spark_connection, spark_database_url):
    """Swapping values or changing equal ones together changes the content."""
    contents, keys = [], 0
    for distance in DISTANCES:
        for swaps in (True, False):
            for key, before, after in shapes(distance, swaps=swaps):
                keys += 1
                for of in (before, after):
                    data = {"thingId": "1", "key": key, "at": str(random.random()), "of": of}
                    contents.append(json.dumps(data))
    write(spark_connection, contents)
    found = digests(spark_connection)
    assert len(set(found)) == len(contents)
    job = CommandsJob(component(), "tests.spark.test_content:made", Path(__file__).parents[2])
    with exported_snapshot(spark_database_url) as snapshot:
        read = Categories(spark, snapshot, Declaration.of(component()))
        seen = ServerFingerprints(read, component(), Progress(), 1).seen
        of_all = PrefilterInput(seen, read.at, read.at)
        for prefilter in (None, Prefilter([job], of_all, Progress())):
            (result,) = job.results(FullRun(read, Progress(), prefilter).take(job))
            assert (result.keys, result.conflicts, result.duplicates) == (keys, keys, 0)
