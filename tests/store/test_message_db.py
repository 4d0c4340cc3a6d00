"""The schema message_store, as clients of Message DB 1.3.0 see it in SQL."""

import json
import uuid

import pytest
from psycopg import errors

from reservation import Metadata
from tests.support.controls import COMMANDS, deposit
from tests.support.message_db import write

MESSAGE = "SETOF message_store.message"
V = "character varying"
NONE = f"DEFAULT NULL::{V}"
FUNCTIONS = {
    "acquire_lock": ([f"stream_name {V}"], "bigint"),
    "cardinal_id": ([f"stream_name {V}"], V),
    "category": ([f"stream_name {V}"], V),
    "get_category_messages": (
        [
            f"category {V}",
            '"position" bigint DEFAULT 1',
            "batch_size bigint DEFAULT 1000",
            f"correlation {V} {NONE}",
            "consumer_group_member bigint DEFAULT NULL::bigint",
            "consumer_group_size bigint DEFAULT NULL::bigint",
            f"condition {V} {NONE}",
        ],
        MESSAGE,
    ),
    "get_last_stream_message": ([f"stream_name {V}", f"type {V} {NONE}"], MESSAGE),
    "get_stream_messages": (
        [
            f"stream_name {V}",
            '"position" bigint DEFAULT 0',
            "batch_size bigint DEFAULT 1000",
            f"condition {V} {NONE}",
        ],
        MESSAGE,
    ),
    "hash_64": ([f"value {V}"], "bigint"),
    "id": ([f"stream_name {V}"], V),
    "is_category": ([f"stream_name {V}"], "boolean"),
    "message_store_version": ([], V),
    "stream_version": ([f"stream_name {V}"], "bigint"),
    "write_message": (
        [
            f"id {V}",
            f"stream_name {V}",
            f"type {V}",
            "data jsonb",
            "metadata jsonb DEFAULT NULL::jsonb",
            "expected_version bigint DEFAULT NULL::bigint",
        ],
        "bigint",
    ),
}
COUNTS = ["message_count bigint", "percent numeric"]
CATEGORY, STREAM, TYPE = f"category {V}", "stream_name text", "type text"
COLUMNS = {
    "category_type_summary": [CATEGORY, TYPE, *COUNTS],
    "message": [
        "id character varying",
        "stream_name character varying",
        "type character varying",
        "position bigint",
        "global_position bigint",
        "data character varying",
        "metadata character varying",
        "time timestamp without time zone",
    ],
    "messages": [
        "global_position bigint",
        "position bigint",
        "time timestamp without time zone",
        STREAM,
        TYPE,
        "data jsonb",
        "metadata jsonb",
        "id uuid",
    ],
    "stream_summary": [STREAM, *COUNTS],
    "stream_type_summary": [STREAM, TYPE, *COUNTS],
    "type_category_summary": [TYPE, CATEGORY, *COUNTS],
    "type_stream_summary": [TYPE, STREAM, *COUNTS],
    "type_summary": [TYPE, *COUNTS],
}
INDEXES = {
    "messages_category": "(message_store.category((stream_name)::character varying), "
    "global_position, message_store.category(((metadata ->> 'correlationStreamName'::text))"
    "::character varying))",
    "messages_id": "(id)",
    "messages_pkey": "(global_position)",
    "messages_stream": '(stream_name, "position")',
}


def test_functions_have_the_published_arguments_and_results(connection):
    """Functions have the published arguments, defaults and results."""
    connection.execute("SET search_path = ''")  # names are shown with their schema
    rows = connection.execute(
        "SELECT proname, string_to_array(pg_get_function_arguments(oid), ', '), "
        "pg_get_function_result(oid) "
        "FROM pg_proc WHERE pronamespace = 'message_store'::regnamespace"
    ).fetchall()
    assert {name: (arguments, result) for name, arguments, result in rows} == FUNCTIONS


def test_tables_views_and_the_type_have_the_published_columns(connection):
    """The table, the views and the type have the published columns."""
    connection.execute("SET search_path = ''")
    rows = connection.execute(
        "SELECT relname, array_agg(attname || ' ' || format_type(atttypid, atttypmod) "
        "ORDER BY attnum) FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid "
        "WHERE relnamespace = 'message_store'::regnamespace AND relkind IN ('r', 'v', 'c') "
        "AND attnum > 0 GROUP BY relname"
    ).fetchall()
    assert dict(rows) == COLUMNS


def test_indexes_have_the_published_names_and_columns(connection):
    """Indexes have the published names, by which clients recognize a lost race."""
    connection.execute("SET search_path = ''")
    rows = connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'message_store'"
    ).fetchall()
    assert {name: text.partition("USING btree ")[2] for name, text in rows} == INDEXES
    assert [name for name, text in rows if "UNIQUE" not in text] == ["messages_category"]


def test_an_insertion_without_id_and_time_gets_both(connection):
    """A row inserted without id and time gets a random id and the time at UTC."""
    connection.execute("SET TimeZone = 'Asia/Kolkata'")
    row = connection.execute(
        "INSERT INTO message_store.messages (position, stream_name, type) VALUES (0, 'a-1', 'T') "
        "RETURNING global_position, id, time = now() AT TIME ZONE 'utc'"
    ).fetchone()
    assert row[0] == 1
    assert row[1].version == 4
    assert row[2]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("get_stream_messages('account')", "Must be a stream name: account"),
        ("get_category_messages('account-1')", "Must be a category: account-1"),
        (
            "get_category_messages('account', correlation => 'x-1')",
            "Correlation must be a category (Correlation: x-1)",
        ),
        (
            "get_category_messages('account', consumer_group_member => 1)",
            (
                "Consumer group member and size must be specified "
                "(Consumer Group Member: 1, Consumer Group Size: <NULL>)"
            ),
        ),
        (
            "get_category_messages('a', consumer_group_member => 0, consumer_group_size => 0)",
            (
                "Consumer group size must not be less than 1 "
                "(Consumer Group Member: 0, Consumer Group Size: 0)"
            ),
        ),
        (
            "get_category_messages('a', consumer_group_member => -1, consumer_group_size => 1)",
            (
                "Consumer group member must not be less than 0 "
                "(Consumer Group Member: -1, Consumer Group Size: 1)"
            ),
        ),
        (
            "get_category_messages('a', consumer_group_member => 1, consumer_group_size => 1)",
            (
                "Consumer group member must be less than the group size "
                "(Consumer Group Member: 1, Consumer Group Size: 1)"
            ),
        ),
        (
            "get_stream_messages('a-1', condition => 'true')",
            "Retrieval with SQL condition is not activated",
        ),
        (
            "get_category_messages('a', condition => 'true')",
            "Retrieval with SQL condition is not activated",
        ),
    ],
)
def test_errors_have_the_published_texts(connection, call, text):
    """Errors have SQLSTATE P0001 and the texts that clients match."""
    with pytest.raises(errors.RaiseException) as caught:
        connection.execute(f"SELECT * FROM message_store.{call}")
    assert caught.value.diag.message_primary == text


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("get_stream_messages('account:command-123', NULL, NULL)", ["d0", "d1", "d2"]),
        ("get_stream_messages('account:command-123', 1)", ["d1", "d2"]),
        ("get_stream_messages('account:command-123', 0, 1)", ["d0"]),
        ("get_stream_messages('account:command-123', 0, -1)", ["d0", "d1", "d2"]),
        ("get_category_messages('account:command', NULL, NULL)", ["d0", "d1", "d2"]),
        ("get_category_messages('account:command', batch_size => 2)", ["d0", "d1"]),
        ("get_category_messages('account:command', batch_size => -1)", ["d0", "d1", "d2"]),
        ("get_category_messages('account:command', correlation => 'odd')", ["d1"]),
        ("get_category_messages('account')", []),
        ("get_last_stream_message('account:command-123')", ["d2"]),
        ("get_last_stream_message('account:command-123', 'Other')", []),
    ],
)
def test_defaults_and_nulls_are_those_of_the_contract(connection, store, call, found):
    """NULL means the default, -1 means no limit, and positions are inclusive."""
    for n in range(3):
        correlation = Metadata(correlation_stream_name="odd-1") if n == 1 else None
        store.write(deposit(f"d{n}"), COMMANDS, metadata=correlation)
    rows = connection.execute(f"SELECT data FROM message_store.{call}").fetchall()
    assert [json.loads(data)["depositId"] for (data,) in rows] == found


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("id('a-1+2-3')", "1+2-3"),
        ("id('a-')", ""),
        ("id('a')", None),
        ("id(NULL)", None),
        ("cardinal_id('a-1+2')", "1"),
        ("cardinal_id('a')", None),
        ("cardinal_id(NULL)", None),
        ("category('a:b+c-1')", "a:b+c"),
        ("category('')", ""),
        ("category(NULL)", None),
        ("is_category('a')", True),
        ("is_category('a-')", False),
        ("is_category('')", True),
        ("is_category(NULL)", True),
        ("hash_64(NULL)", None),
        ("acquire_lock(NULL)", None),
        ("stream_version(NULL)", None),
    ],
)
def test_every_name_has_an_answer(connection, call, result):
    """Names that are empty, cut short or NULL get the answers of Message DB."""
    assert connection.execute(f"SELECT message_store.{call}").fetchone() == (result,)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        ("get_stream_messages(NULL)", errors.RaiseException, "Must be a stream name: <NULL>"),
        ("get_stream_messages('a-1', 0, -2)", errors.InvalidRowCountInLimitClause, "LIMIT"),
        ("get_category_messages('a', 0, -2)", errors.InvalidRowCountInLimitClause, "LIMIT"),
        (
            "get_category_messages('a', consumer_group_member => 0, consumer_group_size => 32768)",
            errors.NumericValueOutOfRange,
            "smallint out of range",
        ),
        ("write_message('x', 'a-1', 'T', '{}')", errors.InvalidTextRepresentation, "uuid"),
        ("write_message(NULL, 'a-1', 'T', '{}')", errors.NotNullViolation, '"id"'),
        (
            "write_message(gen_random_uuid()::varchar, NULL, 'T', '{}')",
            errors.NotNullViolation,
            '"stream_name"',
        ),
        (
            "write_message(gen_random_uuid()::varchar, 'a-1', NULL, '{}')",
            errors.NotNullViolation,
            '"type"',
        ),
        (
            "write_message('x', 'a-1', 'T', '{}', NULL, -2)",
            errors.RaiseException,
            "Wrong expected version: -2 (Stream: a-1, Stream Version: -1)",
        ),
    ],
)
def test_values_that_make_no_sense_are_refused_as_message_db_does(connection, call, error, text):
    """Invalid values are refused with Message DB's SQLSTATE, and checked in the same order."""
    with pytest.raises(error) as caught:
        connection.execute(f"SELECT * FROM message_store.{call}")
    assert text in caught.value.diag.message_primary


@pytest.mark.parametrize(
    "call",
    [
        "get_category_messages(NULL)",
        "get_last_stream_message(NULL)",
        "get_stream_messages('a-1', 9223372036854775807)",
        "get_category_messages('a', 9223372036854775807)",
        "get_stream_messages('a-1', batch_size => 0)",
        "get_category_messages('a', batch_size => 0)",
        "get_category_messages('a', correlation => '')",
    ],
)
def test_reads_of_nothing_give_nothing(connection, call):
    """A read without a name, room or further messages returns nothing and is no error."""
    write(connection, "a-1")
    assert connection.execute(f"SELECT * FROM message_store.{call}").fetchall() == []


def test_positions_before_the_first_read_from_the_start(connection):
    """A negative position reads from the start."""
    write(connection, "a-1")
    for call in ("get_stream_messages('a-1', -5)", "get_category_messages('a', -5)"):
        rows = connection.execute(f"SELECT position FROM message_store.{call}").fetchall()
        assert rows == [(0,)]


def test_a_message_may_lie_in_a_category_and_have_no_data(connection):
    """A message in a category without an id, or without data, can be read back."""
    connection.execute("SELECT message_store.write_message(%s, 'a', '', NULL)", [str(uuid.uuid4())])
    row = connection.execute(
        "SELECT stream_name, type, data, metadata FROM message_store.get_category_messages('a')"
    ).fetchone()
    assert row == ("a", "", None, None)


def test_a_malformed_id_takes_no_global_position(connection):
    """A malformed id uses up no global position, also in a cached plan."""
    for _ in range(8):
        write(connection)
    with pytest.raises(errors.InvalidTextRepresentation):
        write(connection, message_id="x")
    write(connection)
    row = connection.execute("SELECT max(global_position) FROM message_store.messages").fetchone()
    assert row == (9,)


def test_a_second_write_of_an_id_violates_the_index_messages_id(connection):
    """A second message of an id violates the index `messages_id`."""
    message_id = str(uuid.uuid4())
    write(connection, message_id=message_id)
    with pytest.raises(errors.UniqueViolation) as caught:
        write(connection, "other-1", message_id=message_id)
    assert caught.value.diag.constraint_name == "messages_id"


def test_one_statement_sees_what_it_has_written(connection):
    """Several writes in one statement get consecutive positions and see each other."""
    rows = connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}', NULL, "
        "n - 1), message_store.stream_version('a-1') FROM generate_series(0, 2) AS n"
    ).fetchall()
    assert rows == [(0, 0), (1, 1), (2, 2)]


def test_the_lock_is_the_hash_of_the_category_and_lasts_for_the_transaction(connection):
    """The lock is the hash of the category and is held until the transaction ends."""
    held = (
        "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks "
        "WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid()"
    )
    with connection.transaction():
        write(connection, "account-1")
        (key,) = connection.execute("SELECT message_store.acquire_lock('account-2')").fetchone()
        assert connection.execute(held).fetchall() == [(key,)]
    assert connection.execute(held).fetchall() == []
    assert connection.execute("SELECT message_store.hash_64('account')").fetchone() == (key,)


def test_names_hash_and_version_are_those_of_the_contract(connection, store):
    """The functions for names, hash and version give the published results."""
    assert connection.execute(
        "SELECT message_store.hash_64('account'), message_store.message_store_version(), "
        "message_store.stream_version('a-1')"
    ).fetchone() == (
        int.from_bytes(bytes.fromhex("e268443e43d93dab"), signed=True),
        "1.3.0",
        None,
    )


@pytest.mark.parametrize(
    "view",
    [
        "category_type_summary",
        "stream_summary",
        "stream_type_summary",
        "type_category_summary",
        "type_stream_summary",
        "type_summary",
    ],
)
def test_the_views_count_what_is_stored(connection, store, view):
    """The views show counts and percentages, and the clients' role can read them."""
    store.write([deposit("d1"), deposit("d2")], COMMANDS)
    connection.execute("SET ROLE message_store")
    row = connection.execute(f"SELECT * FROM message_store.{view}").fetchone()
    assert [float(value) for value in row[-2:]] == [2, 100]


def test_the_role_of_the_clients_may_read_and_write(connection):
    """The clients' role can read and write with the rights of the schema alone."""
    connection.execute("SET ROLE message_store")
    written = connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}')"
    ).fetchone()
    assert written == (0,)
    assert connection.execute("SELECT count(*) FROM message_store.messages").fetchone() == (1,)
