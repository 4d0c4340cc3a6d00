"""Commands of one key are compared by what they say and mean today, as the consumers do it."""

import json
import random
from functools import partial
from operator import attrgetter

import pytest
from pyarrow.parquet import read_table

from reservation.serialization import codec
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.result import Difference
from spark_jobs.facts.content import digest
from spark_jobs.facts.keys import stored
from spark_jobs.source.columns import CategoryQuery
from spark_jobs.verdicts import meaning
from tests.apps import shops
from tests.apps.bank import drain
from tests.apps.changing import raw
from tests.apps.shops import PAIRS, SENT, new, old
from tests.spark.builders import ROOT
from tests.spark.keyed import sending

EUR, USD = '"EUR"', '"USD"'
DIFFERENCE = ("what", "field", "command", "first")


@pytest.fixture
def judged(reconcile, connection):
    """Give what lets the consumers and then Spark judge the commands; they must agree."""

    def judge(component, app, *options):
        counts = drain(connection, component, batch_size=100).counts
        found = reconcile(*options, app=app, app_dir=ROOT)
        assert found.counts[0]["conflict_mismatches"] == 0
        assert found.counts[0]["missing"] == 0
        assert found.counts[0]["duplicates"] == counts["duplicate"]
        assert found.counts[0]["conflicts"] == counts["conflict"]
        return found.counts[0]

    return judge


UNREADABLE = [
    (new(price="secret"), new()),
    (new(price="secret"), new(price="secret")),
    (new(price="secret"), new(price="secret", currency="EUR")),
    (("Buy", new()[1], 3), new()),
    (("Buy", new()[1], "2"), new()),
]


@pytest.mark.parametrize("how", ["into", "function"])
def test_the_consumers_and_spark_take_the_same_for_conflicts(connection, judged, how):
    """Also of commands with former names, shapes and defaults, and of what cannot be decoded."""
    pairs = [(first, again) for first, again, _ in PAIRS.values()] + UNREADABLE
    for n, messages in enumerate(pairs):
        for type_, data, version in messages:
            data = data | {"buyId": f"k{n}", "shopId": f"{n}"}
            raw(connection, SENT, type_, data, version)
    counts = judged(attrgetter(how)(shops.shops), f"tests.apps.shops:shops.{how}")
    assert counts["conflicts"] >= 5
    assert counts["duplicates"] >= 5


def as_message(type_, data, version):
    """Return a message with what its decoding depends on."""
    return stored(type_, None if version is None else json.dumps(version), json.dumps(data))


@pytest.mark.parametrize(
    ("command", "first", "differences"),
    [
        (new(), new(sent="now", note="x"), []),
        (old(), new(), []),
        (new(price=6, currency="USD"), new(), [("price", "6", "1.5"), ("currency", USD, EUR)]),
        (old(cents=151), new(), [("price", "1.51", "1.5")]),
        (new(buyId="x" * 2_000), new(), [("buyId", f'"{"x" * 999}…', '"a"')]),
    ],
)
def test_the_fields_are_named_in_which_two_messages_differ(command, first, differences):
    """As the class reads them today, with their values only where these are asked for."""
    pair = as_message(*command), as_message(*first)
    for values in (True, False):
        found = meaning.differences(shops.shops.into, *pair, values=values)
        shown = [one if values else (one[0], None, None) for one in differences]
        assert found == [Difference("field", *one) for one in shown]


def test_what_is_no_field_is_told_too():
    """Another type, and what cannot be decoded, which is never shown."""
    buy, secret = as_message(*new()), as_message(*new(price="secret"))
    refund = as_message("Refund", {"shopId": "1"}, None)
    found = partial(meaning.differences, shops.shops.into, values=True)
    assert found(buy, refund) == [Difference("type", None, "Buy", "Refund")]
    unreadable = [Difference("unreadable", None, None, None)]
    assert found(buy, secret) == found(secret, buy) == found(secret, secret) == unreadable


def test_fields_are_named_whose_values_cannot_be_written(monkeypatch):
    """As of a message that is larger than one that may be sent."""
    monkeypatch.setattr(meaning.codec, "encode", partial(codec.encode, max_bytes=20))
    pair = as_message(*new(price=6)), as_message(*new())
    found = meaning.differences(shops.shops.into, *pair, values=True)
    assert found == [Difference("field", "price", None, None)]


def test_each_output_names_the_fields_that_differ(connection, command, judged, tmp_path):
    """And none has their values unless these are asked for, also with a state."""
    for message in (new(price=5), new(price=61234), new(buyId="b")):
        raw(connection, SENT, *message)
    judged(shops.shops.into, "tests.apps.shops:shops.into")
    connection.execute(
        """UPDATE message_store.messages SET data = data || '{"price": "secret"}'
        WHERE stream_name = 'shopTransaction-b'"""
    )
    html, junit, findings, state = (tmp_path / name for name in ("h.html", "j.xml", "f", "state"))
    paths = ("--html", html, "--junit", junit, "--findings", findings, "--state", state)
    of = ("reconcile", "tests.apps.shops:shops.into", "--app-dir", ROOT, "--fail-on", "missing")
    for values in ((), ("--values",)):
        told = ("61234", "5") if values else (None, None)
        differ = [
            [dict(zip(DIFFERENCE, ("field", "price", *told), strict=True))],
            [dict(zip(DIFFERENCE, ("unreadable", None, None, None), strict=True))],
        ]
        done = command(*map(str, (*of, *values, *paths, "--json")))
        samples = json.loads(done.stdout)["samples"]
        assert [of["differences"] for of in samples if of["finding"] == "conflict"] == differ
        shown = command(*map(str, (*of, *values))).stdout
        (run,) = sorted(findings.iterdir())[-1:]
        rows = read_table(run).sort_by("global_position").to_pylist()
        assert [row["differences"] for row in rows if row["finding"] == "conflict"] == differ
        for text in (shown, html.read_text(), junit.read_text()):
            assert "price" in text
            assert "one cannot be decoded" in " ".join(text.split())
            assert ("61234" in text) is bool(values)
            assert "secret" not in text


def pairs_of_values(distance, *, swaps):
    """Return pairs of contents, in which two values at a distance changed together."""
    before = [str(n) for n in range(distance + 3)]
    if swaps:
        after = [*before]
        after[1], after[1 + distance] = before[1 + distance], before[1]
    else:
        before[1] = before[1 + distance] = "equal"
        after = [*before]
        after[1] = after[1 + distance] = "other"
    for shape in (
        list,
        lambda of: {f"f{n}": value for n, value in enumerate(of)},
        lambda of: [[value] for value in of],
        lambda of: [{"value": value} for value in of],
        lambda of: {"of": [{"in": of}]},
    ):
        yield json.dumps(shape(before)), json.dumps(shape(after))


def drawn(chance, depth=2):
    """Draw the text of a JSON value of few kinds, so that equal ones are written differently."""
    if depth and chance.random() < 0.5:
        inner = [drawn(chance, depth - 1) for _ in range(chance.randrange(3))]
        if chance.random() < 0.5:
            return f"[{','.join(inner)}]"
        names = chance.sample(["a", "b", "1.0"], len(inner))
        return "{" + ",".join(f'"{name}":{of}' for name, of in zip(names, inner, strict=True)) + "}"
    numbers = ["1", "1.0", "1.00", "10", "1e1", "0", "-0.0", "0.10", "0.1", "15e-1", "1.5", "1e-3"]
    return chance.choice([*numbers, '"1.0"', '"1"', '"[{"', '"é"', '"\\u00e9"', "null", "true"])


def send(connection, contents):
    """Write the commands of each key with these contents, at different times."""
    rows = [
        (f'{{"thingId": "{n}", "key": "k{n}", "at": "{m}", "of": {text}}}', f"{n}")
        for n, texts in enumerate(contents)
        for m, text in enumerate(texts)
    ]
    with connection.cursor() as cursor:
        cursor.executemany(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, "
            "'thing:command-' || %s, 'Send', %s)",
            [(entity, data) for data, entity in rows],
        )


def test_contents_are_equal_where_the_consumers_call_them_equal(connection, judged):
    """The order of keys, the form of numbers and ignored fields are no content."""
    chance = random.Random(1)
    send(connection, [[drawn(chance, 1) for _ in range(4)] for _ in range(150)])
    counts = judged(sending, "tests.spark.keyed:sending")
    assert counts["conflicts"] > 100
    assert counts["duplicates"] > 15


def test_the_digest_of_archived_data_is_that_of_the_server(connection):
    """Messages whose archived digests do not hold any more get the server's again."""
    chance = random.Random(2)
    send(connection, [[drawn(chance)] for _ in range(300)])
    query = CategoryQuery("thing:command", ["content", "data"], Declaration.of(sending))
    rows = connection.execute(query.text(0, 2**62, connection)).fetchall()
    assert len(rows) == 300
    assert [digest(data, ["at"]) for _, data in rows] == [content for content, _ in rows]


def test_values_at_any_distance_are_distinguished(connection, judged):
    """Swapping values or changing equal ones together changes the content."""
    pairs = [
        pair
        for distance in [*range(1, 34), 63, 64, 65, 127, 128]
        for swaps in (True, False)
        for pair in pairs_of_values(distance, swaps=swaps)
    ]
    send(connection, pairs)
    counts = judged(sending, "tests.spark.keyed:sending")
    assert (counts["keys"], counts["conflicts"], counts["duplicates"]) == (len(pairs),) * 2 + (0,)


def pay(**fields):
    """Return a command of `tests.apps.shops.now`."""
    return {"shopId": "1", "payId": "a"} | fields


def correct(command, data):
    """Retry the letter that could not be decoded with other data."""
    listed = json.loads(command("dead-letters", "list", "--json").stdout)["deadLetters"]
    (at,) = [one["globalPosition"] for one in listed if one["reason"] == "undecodable"]
    words = ("retry", str(at), "--data", "-", "--reason", "a slip")
    done = command("dead-letters", *words, input=json.dumps(data))
    assert done.returncode == 0, done.stderr


def test_what_means_the_same_as_a_correction_is_a_reissue(connection, command, reconcile, tmp_path):
    """In whatever shape it comes, and though it was a conflict before the correction."""

    def counts(*options):
        drain(connection, shops.now)
        place = ("--state", tmp_path / "state", *options)
        return reconcile(*place, app="tests.apps.shops:now", app_dir=ROOT).commands

    bad, good, same, other = pay(currency=5), pay(currency="EUR"), pay(), pay(currency="USD")
    for data in (bad, same):
        raw(connection, "till:command-1", "Pay", data)
    conflict = {"commands": 2, "keys": 1, "reserved": 1, "conflicts": 1}
    assert counts() == conflict
    correct(command, good)
    for data in (bad, good, same, other):
        raw(connection, "till:command-1", "Pay", data)
    reissued = {"commands": 6, "duplicates": 4, "corrected": 1}
    assert counts() == conflict | reissued
    # Of the two contents of the corrected command, what can be read is what the other differs from.
    found = reconcile(app="tests.apps.shops:now", app_dir=ROOT).report["samples"]
    told = [one["differences"] for one in found if one["finding"] == "conflict"]
    assert told == [[dict(zip(DIFFERENCE, ("field", "currency", None, None), strict=True))]]


def test_commands_without_a_key_are_counted_alike(connection, command, reconcile):
    """Also where one was corrected and sent again: among the commands, and by their senders."""
    without = {"shopId": "1", "currency": "EUR"}
    raw(connection, "till:command-1", "Pay", without)
    drain(connection, shops.now)
    correct(command, pay())
    drain(connection, shops.now)
    raw(connection, "till:command-1", "Pay", without)
    drain(connection, shops.now)
    found = reconcile("--details", app="tests.apps.shops:now", app_dir=ROOT)
    expected = {"commands": 2, "keyless": 2, "reserved": 1, "dead": 1, "corrected": 1}
    assert found.commands == expected
    (sender,) = found.report["reissues"]["senders"]
    assert {name: sender[name] for name in ("commands", "keys", "duplicates")} == {
        "commands": 2,
        "keys": 0,
        "duplicates": 0,
    }


def test_a_state_judges_anew_what_another_declaration_judged(connection, reconcile, tmp_path):
    """It counts as a run over everything, and needs all of its messages to be there."""

    def counts(name, *options):
        found = reconcile(*options, app=f"tests.apps.shops:{name}", app_dir=ROOT)
        return found.status, found.error, found.commands if found.report else None

    state = ("--state", tmp_path / "state")
    raw(connection, "tillTransaction-a", "Pay", pay())
    for data in (pay(), pay(currency="EUR"), pay(currency="EUR", sent="now")):
        raw(connection, "till:command-1", "Pay", data)
    counted = {"commands": 3, "keys": 1, "reserved": 1}
    assert counts("former", *state) == (1, "", counted | {"conflicts": 2})
    assert counts("ignoring", *state) == (0, "", counted | {"duplicates": 2})
    connection.execute("DELETE FROM message_store.messages WHERE global_position = 2")
    status, error, _ = counts("now", *state)
    assert status == 2
    assert "the store lacks 1 of the messages that it has read; re" in error
