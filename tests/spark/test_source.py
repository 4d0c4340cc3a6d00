"""The Spark data source ``message_store``."""

import pytest
from psycopg.types.json import Jsonb

from spark_jobs.snapshot import exported_snapshot
from tests.controls import COMMANDS, LATER, deposit, open_, withdraw
from tests.processes import EXAMPLES

pytestmark = pytest.mark.spark


def read(spark, snapshot, category, *, app="bank:account", app_dir=EXAMPLES, partitions=2):
    """Read a category under a snapshot."""
    reader = (
        spark.read.format("message_store")
        .option("category", category)
        .option("snapshot", snapshot.id)
        .option("partitions", partitions)
    )
    if app:
        reader = reader.option("app", app).option("appDir", str(app_dir))
    return reader.load()


@pytest.mark.parametrize("partitions", [1, 2, 7, 100])
def test_every_message_of_a_category_is_read_once(
    spark, spark_store, spark_database_url, partitions
):
    """However many ranges it is divided into, and nothing of other categories."""
    for n in range(23):
        spark_store.write(deposit(f"d{n}"), COMMANDS)
        spark_store.write(deposit(f"d{n}"), "account-123")
    with exported_snapshot(spark_database_url) as snapshot:
        frame = read(spark, snapshot, "account:command", partitions=partitions)
        rows = frame.collect()
        assert frame.rdd.getNumPartitions() <= partitions
    stored = list(spark_store.read_category("account:command"))
    assert sorted(row.global_position for row in rows) == [m.global_position for m in stored]
    assert {row.id for row in rows} == {m.id for m in stored}


def test_an_empty_category_has_no_rows(spark, spark_store, spark_database_url):
    """A store of no messages is a store too."""
    with exported_snapshot(spark_database_url) as snapshot:
        assert read(spark, snapshot, "account:command").collect() == []


def test_all_partitions_and_categories_see_one_snapshot(spark, spark_store, spark_database_url):
    """What is written while the job runs belongs to the next one."""
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
    """The stream that the audit expects is the one that the consumer writes."""
    from bank import account

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
        rows = read(spark, snapshot, "account:command").orderBy("global_position").collect()
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
    """A command whose key can not be computed has none."""
    (tmp_path / "function_app.py").write_text(
        f"import sys; sys.path.append({str(EXAMPLES)!r})" + APP
    )
    spark_store.write([deposit("d1"), deposit("none")], COMMANDS)
    spark_connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', '[]')",
        [COMMANDS],
    )
    with exported_snapshot(spark_database_url) as snapshot:
        frame = read(
            spark, snapshot, "account:command", app="function_app:account", app_dir=tmp_path
        )
        rows = frame.orderBy("global_position").collect()
    assert [row.key_stream for row in rows] == ["accountTransaction-123+D1+x", None, None]


def test_content_is_equal_where_the_consumers_call_it_equal(
    spark, spark_store, spark_connection, spark_database_url
):
    """Less the volatile fields, whatever the order of keys and the zeros behind a number."""
    spark_store.write([deposit(), deposit(time=LATER), deposit(amount="10.500")], COMMANDS)
    spark_store.write([deposit(amount="10.51")], COMMANDS)
    with exported_snapshot(spark_database_url) as snapshot:
        rows = read(spark, snapshot, "account:command").orderBy("global_position").collect()
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


def test_content_tells_apart_what_is_nested_otherwise(
    spark, spark_store, spark_connection, spark_database_url
):
    """jsonb's own hash does not; two of these are equal, as jsonb has it."""
    for data in NESTED:
        spark_connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', %s)",
            [COMMANDS, Jsonb(data)],
        )
    (distinct,) = spark_connection.execute(
        "SELECT count(DISTINCT data) FROM message_store.messages"
    ).fetchone()
    with exported_snapshot(spark_database_url) as snapshot:
        rows = read(spark, snapshot, "account:command").collect()
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
    """As the consumers see it."""
    (tmp_path / "default_app.py").write_text(DEFAULTS)
    for data in ({"payId": "p", "who": "w"}, {"payId": "p", "who": "w", "part": 2}):
        spark_connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, "
            "'payment:command-w', 'Pay', %s)",
            [Jsonb(data)],
        )
    with exported_snapshot(spark_database_url) as snapshot:
        frame = read(
            spark, snapshot, "payment:command", app="default_app:payment", app_dir=tmp_path
        )
        rows = frame.orderBy("global_position").collect()
    assert [row.key_stream for row in rows] == [
        "paymentTransaction-p+1",
        "paymentTransaction-p+2",
    ]


def test_the_plan_holds_no_secret(spark, spark_store, spark_database_url):
    """The address is in the workers' environment, not in an option."""
    with exported_snapshot(spark_database_url) as snapshot:
        frame = read(spark, snapshot, "account:command")
        plan = frame._jdf.queryExecution().toString()
    assert spark_database_url not in plan
    assert "postgres" not in plan
