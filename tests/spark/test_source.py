"""The Spark data source ``message_store``."""

from datetime import UTC

import pytest
from psycopg.types.json import Jsonb
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from bank import account
from reservation import Metadata
from reservation.app_path import load_component
from spark_jobs.analysis.keys import with_function_keys
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.errors import OptionError
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.snapshot.snapshot import exported_snapshot
from spark_jobs.source.ranges import divided
from spark_jobs.source.source import MessageStoreSource
from tests.controls import COMMANDS, LATER, deposit, open_, withdraw
from tests.processes import EXAMPLES

pytestmark = pytest.mark.spark


def read(spark, snapshot, category, columns="", *, component=account, **options):
    """Read a category under a snapshot."""
    reader = (
        spark.read.format("message_store")
        .option("category", category)
        .option("columns", columns)
        .options(**options)
    )
    if snapshot:
        reader = reader.option("snapshot", snapshot.id)
    return reader.option("declaration", Declaration.of(component).to_json()).load()


def keys(spark, snapshot, app="bank:account", app_dir=EXAMPLES):
    """Return the commands of a component with their keys, extracted by the server or by Spark."""
    component = load_component(app, app_dir)
    declaration = Declaration.of(component)
    wanted = ["global_position", "type", "stream_name", "key_stream", "key_category"]
    read_categories = Categories(spark, snapshot, declaration)
    commands = read_categories([component.command_category], [*wanted, "version", "function_data"])
    frame = with_function_keys(commands, declaration, app, app_dir)
    return frame.orderBy("global_position").collect()


@pytest.mark.parametrize("partitions", [1, 2, 7, 100])
def test_every_message_of_a_category_is_read_once(
    spark, spark_store, spark_database_url, partitions
):
    """Every message of a category is read once, in any number of ranges."""
    for n in range(23):
        spark_store.write(deposit(f"d{n}"), COMMANDS)
        spark_store.write(deposit(f"d{n}"), "account-123")
    with exported_snapshot(spark_database_url) as snapshot:
        rows = read(spark, snapshot, "account:command", partitions=partitions).collect()
    stored = list(spark_store.read_category("account:command"))
    assert sorted(row.global_position for row in rows) == [m.global_position for m in stored]
    assert {row.id for row in rows} == {m.id for m in stored}


def test_an_empty_category_has_no_rows(spark, spark_store, spark_database_url):
    """An empty category has no rows."""
    with exported_snapshot(spark_database_url) as snapshot:
        assert read(spark, snapshot, "account:command").collect() == []


def test_all_partitions_and_categories_see_one_snapshot(spark, spark_store, spark_database_url):
    """All partitions and categories are read under one snapshot."""
    spark_store.write([deposit(f"d{n}") for n in range(10)], COMMANDS)
    with exported_snapshot(spark_database_url) as snapshot:
        commands = read(spark, snapshot, "account:command", partitions=4)
        assert commands.count() == 10
        spark_store.write([deposit(f"x{n}") for n in range(10)], COMMANDS)
        spark_store.write(deposit("x"), "accountTransaction-123+x")
        assert commands.count() == 10
        assert read(spark, snapshot, "accountTransaction").count() == 0
    with exported_snapshot(spark_database_url) as snapshot:
        assert read(spark, snapshot, "account:command").count() == 20


def test_keys_are_computed_in_the_database_as_the_component_does(
    spark, spark_store, spark_connection, spark_database_url
):
    """The server computes the same reservation stream as the consumer."""
    sent = [deposit("d1"), deposit("a+b"), withdraw("w-1"), deposit("ä'\"")]
    spark_store.write(sent, COMMANDS)
    odd = [{}, {"depositId": ""}, {"depositId": None}, {"depositId": True}, {"depositId": 1.5}]
    for data in (*odd, [1], "text", None):
        body = data if not isinstance(data, dict) else {"accountId": "1", **data}
        spark_connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', %s)",
            [COMMANDS, Jsonb(body)],
        )
    spark_store.write([open_("7")], "account:command-7")
    with exported_snapshot(spark_database_url) as snapshot:
        rows = keys(spark, snapshot)
    assert [row.key_stream for row in rows[:4]] == [
        account.reservations[type(command).__name__].stream_name(command) for command in sent
    ]
    assert [row.key_stream for row in rows[4:-1]] == [None] * 8
    assert {row.key_category for row in rows[:-1]} == {"accountTransaction"}
    assert (rows[-1].key_stream, rows[-1].key_category) == ("account-7", "account")


APP = """
from bank.messages import Deposit
from reservation import Component

def key(deposit):
    if deposit.deposit_id == "none":
        return None
    return deposit.deposit_id.upper(), "x"

account = Component("account", id="account_id")
account.reserve(Deposit, into="accountTransaction", key=key, entity="account_id")
account.handle(Deposit)(lambda command, entity, context: None)
"""


def test_keys_of_a_function_are_computed_with_the_components_own_code(
    spark, spark_store, spark_connection, spark_database_url, tmp_path
):
    """A command whose key cannot be computed has none."""
    (tmp_path / "function_app.py").write_text(
        f"import sys; sys.path.append({str(EXAMPLES)!r})" + APP
    )
    spark_store.write([deposit("d1"), deposit("none")], COMMANDS)
    spark_connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', '[]')",
        [COMMANDS],
    )
    with exported_snapshot(spark_database_url) as snapshot:
        rows = keys(spark, snapshot, "function_app:account", tmp_path)
    assert [row.key_stream for row in rows] == ["accountTransaction-123+D1+x", None, None]


def test_content_is_equal_where_the_consumers_call_it_equal(
    spark, spark_store, spark_connection, spark_database_url
):
    """Content is equal less volatile fields, the order of keys and trailing zeros."""
    spark_store.write([deposit(), deposit(time=LATER), deposit(amount="10.500")], COMMANDS)
    spark_store.write([deposit(amount="10.51")], COMMANDS)
    with exported_snapshot(spark_database_url) as snapshot:
        frame = read(spark, snapshot, "account:command", "global_position,content")
        rows = frame.orderBy("global_position").collect()
    contents = [row.content for row in rows]
    assert contents[0] == contents[1] == contents[2] != contents[3]


NESTED = [
    {"l": [["x", "y"]]},
    {"l": [["x"], "y"]},
    {"l": {"a": {"b": 1}}},
    {"l": {"a": {}, "b": 1}},
    {"l": {"a": {}, "b": 1.50}},
    {"l": {"a": {}, "b": 1.5}},
    {"l": "{["},
    {"l": "[{"},
]


def test_content_distinguishes_different_nesting(
    spark, spark_store, spark_connection, spark_database_url
):
    """Content distinguishes different nesting, which jsonb's own hash does not."""
    for data in NESTED:
        spark_connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', %s)",
            [COMMANDS, Jsonb(data)],
        )
    (distinct,) = spark_connection.execute(
        "SELECT count(DISTINCT data) FROM message_store.messages"
    ).fetchone()
    with exported_snapshot(spark_database_url) as snapshot:
        rows = read(spark, snapshot, "account:command", "content").collect()
    assert len({row.content for row in rows}) == distinct == len(NESTED) - 1


DEFAULTS = """
from dataclasses import dataclass
from reservation import Component

@dataclass
class Pay:
    pay_id: str
    who: str
    part: int = 1

payment = Component("payment", id="who")
payment.reserve(Pay, into="paymentTransaction", key=("pay_id", "part"))
payment.handle(Pay)(lambda command, entity, context: None)
"""


def test_a_key_field_that_the_data_leaves_out_has_its_default(
    spark, spark_store, spark_connection, spark_database_url, tmp_path
):
    """A key field that is missing in the data has its default, as in the consumers."""
    (tmp_path / "default_app.py").write_text(DEFAULTS)
    for data in ({"payId": "p", "who": "w"}, {"payId": "p", "who": "w", "part": 2}):
        spark_connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, "
            "'payment:command-w', 'Pay', %s)",
            [Jsonb(data)],
        )
    with exported_snapshot(spark_database_url) as snapshot:
        rows = keys(spark, snapshot, "default_app:payment", tmp_path)
    assert [row.key_stream for row in rows] == [
        "paymentTransaction-p+1",
        "paymentTransaction-p+2",
    ]


def test_the_plan_holds_no_secret(spark, spark_store, spark_database_url):
    """The address is in the workers' environment, not in an option of the plan."""
    with exported_snapshot(spark_database_url) as snapshot:
        frame = read(spark, snapshot, "account:command")
        plan = frame._jdf.queryExecution().toString()
    assert spark_database_url not in plan
    assert "postgres" not in plan


def test_the_columns_are_what_is_stored(spark, spark_store, spark_connection, spark_database_url):
    """The columns are what clients read, whatever the data."""
    spark_store.write(deposit("d1"), COMMANDS, metadata=Metadata(correlation_stream_name="x:y-1"))
    for data in ("null", "[1]", '"text"', "9" * 400, '{"a": "<b>\\u202e"}'):
        spark_connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s::jsonb)",
            [COMMANDS, "\x1b[31m<b>", data],
        )
    spark_connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type) VALUES (%s, 9, 'None')",
        [COMMANDS],
    )
    frame = read(spark, None, "account:command").orderBy("global_position")
    rows = [row.asDict() for row in frame.collect()]
    stored = list(spark_store.read_category("account:command"))
    assert len(rows) == len(stored) == 7
    for row, message in zip(rows, stored, strict=True):
        assert row.pop("category") == "account:command"
        assert row.pop("metadata") == message.metadata_json
        assert row.pop("time").astimezone(UTC) == message.time.replace(tzinfo=UTC)
        assert row == {name: getattr(message, name) for name in row}


def test_only_the_columns_that_are_asked_for_are_read(spark, spark_store, spark_database_url):
    """Only the requested columns are read, in their order; an unknown one is named."""
    spark_store.write(
        [deposit("d1"), deposit("d2")],
        COMMANDS,
        metadata=Metadata(correlation_stream_name="transfer:x-1", reply_stream_name="other-1"),
    )
    frame = read(spark, None, "account:command", "sender, type")
    assert frame.columns == ["sender", "type"]
    assert {tuple(row) for row in frame.collect()} == {("transfer:x", "Deposit")}
    with pytest.raises(AnalysisException, match="no column 'payload'; there are category"):
        read(spark, None, "account:command", "payload").collect()
    with pytest.raises(AnalysisException, match="needs the option category"):
        read(spark, None, "").collect()


def test_a_dataframe_gives_the_same_answers_however_often_it_is_used(
    spark, spark_store, spark_database_url
):
    """A DataFrame gives the same result after other uses with other filters."""
    spark_store.write([deposit(f"d{n}") for n in range(6)], COMMANDS)
    pushes = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(pushes)
    spark.conf.set(pushes, "true")
    try:
        frame = read(spark, None, "account:command", "global_position,position,id")
        first = frame.where(F.col("position") < 2)
        assert first.count() == 2
        assert frame.count() == 6
        assert frame.where(F.col("position") >= 2).count() == 4
        assert (first.count(), frame.count()) == (2, 6)
        both = first.alias("a").join(frame.alias("b"), F.col("a.id") != F.col("b.id"))
        assert both.count() == 2 * 5
        assert first.unionByName(frame).count() == 8
    finally:
        spark.conf.set(pushes, before)


def test_a_read_is_limited_by_the_positions_that_it_is_given(spark, spark_store):
    """A read covers the given range of positions of each category."""
    spark_store.write([deposit(f"d{n}") for n in range(6)], COMMANDS)
    spark_store.write([deposit(f"e{n}") for n in range(3)], "account-123")
    categories = {"category": "", "categories": '["account:command", "account"]'}

    def positions(**options):
        reader = spark.read.format("message_store").options(**categories).options(**options)
        return sorted(row.global_position for row in reader.load().collect())

    assert positions() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    limits = {"after": '{"account:command": 2}', "until": '{"account:command": 4, "account": 8}'}
    assert positions(**limits) == [3, 4, 7, 8]
    assert positions(until='{"account:command": 0, "account": 100}') == [7, 8, 9]


WRONG = [
    ({"filtres": "x"}, "has no option 'filtres'; there are category"),
    ({"path": "x"}, "has no option 'path'"),
    ({"category": "account", "categories": '["account"]'}, "category and categories exclude"),
    ({"category": "account-123"}, "'account-123' is the name of a stream; name its category"),
    ({"categories": '["a", "b", "a"]'}, "categories names 'a' twice"),
    ({"categories": '["a-1"]'}, "'a-1' is the name of a stream"),
    ({"categories": "account"}, "needs the option category"),
    ({"categories": '["a", 1]'}, "needs the option category"),
    ({"category": ""}, "needs the option category"),
    ({"category": "a", "columns": "id,id"}, "columns names 'id' twice"),
    ({"category": "a", "columns": "payload"}, "no column 'payload'"),
    ({"category": "a", "rows": "-1"}, "rows is a number of at least 1, not '-1'"),
    ({"category": "a", "rows": "0"}, "rows is a number of at least 1"),
    ({"category": "a", "partitions": "many"}, "partitions is a number of at least 1"),
    ({"category": "a", "after": "7"}, "after is a JSON object"),
    ({"category": "a", "after": '{"a": -1}'}, "after is a JSON object"),
    ({"category": "a", "until": '{"a": true}'}, "until is a JSON object"),
    ({"category": "a", "until": '{"b": 1}'}, "until names 'b', which is not read"),
    ({"category": "a", "after": '{"a": 5}', "until": '{"a": 4}'}, "after and until contradict"),
    ({"category": "a", "filters": "true"}, "has no option 'filters'"),
    ({"category": "a", "declaration": "{"}, "declaration is not one"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_a_wrong_option_is_refused_with_one_line(options, said):
    """A wrong option is refused in one line that names it and says what to give."""
    with pytest.raises(OptionError, match=said) as refused:
        MessageStoreSource(options)
    assert "\n" not in str(refused.value)


def test_options_are_read_when_the_read_is_loaded(spark):
    """Options are checked at load, for batch reads and for streams."""
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match="has no option 'filtres'"):
            reader.format("message_store").options(category="a", filtres="x").load()
    with pytest.raises(AnalysisException, match="rows is for a stream"):
        spark.read.format("message_store").options(category="a", rows="5").load().count()


def test_ranges_hold_about_equal_numbers_of_messages(spark_connection, spark_database_url):
    """Ranges hold about equal numbers of messages, however they lie in the log."""
    spark_connection.execute(
        """
        INSERT INTO message_store.messages (global_position, stream_name, position, type)
        SELECT CASE WHEN n <= 60000 THEN n ELSE 1000000 + 50 * n END, 'uneven-1', n, 'Any'
        FROM generate_series(1, 120000) AS n
        """
    )
    found = divided(spark_connection, ["uneven"], 1, 2**62, 4)
    assert len(found) == 4
    counts = [
        spark_connection.execute(
            "SELECT count(*) FROM message_store.messages WHERE global_position BETWEEN %s AND %s",
            bounds,
        ).fetchone()[0]
        for bounds in found
    ]
    assert sum(counts) == 120_000
    assert max(counts) - min(counts) <= 2
    # Few messages are one range, and none are none.
    assert len(divided(spark_connection, ["uneven"], 1, 1000, 4)) == 1
    assert divided(spark_connection, ["nothing"], 1, 2**62, 4) == []
