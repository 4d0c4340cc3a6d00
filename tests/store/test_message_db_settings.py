"""What a session's settings change in the schema message_store: conditions, notices, the path."""

import pytest
from psycopg import errors

from tests.support.message_db import write

READS = ["get_stream_messages('account:command-123'", "get_category_messages('account:command'"]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("value", ["on", "true", "1", ""])
def test_a_condition_narrows_a_read_where_it_is_activated(connection, read, value):
    """A condition narrows a read if Message DB's setting for it is any value but off."""
    write(connection)
    write(connection)
    connection.execute("SELECT set_config('message_store.sql_condition', %s, false)", [value])
    rows = connection.execute(
        f"SELECT position FROM message_store.{read}, condition => 'messages.position = 1 OR false')"
    ).fetchall()
    assert rows == [(1,)]


@pytest.mark.parametrize("read", READS)
def test_a_condition_is_refused_where_it_is_switched_off_again(connection, read):
    """A condition is refused if it is off; the rest of the read works."""
    connection.execute("SET message_store.sql_condition = 'off'")
    with pytest.raises(errors.RaiseException, match="is not activated"):
        connection.execute(f"SELECT * FROM message_store.{read}, condition => 'true')")
    assert connection.execute(f"SELECT * FROM message_store.{read})").fetchall() == []


@pytest.mark.parametrize("read", READS)
def test_a_condition_finds_message_db_s_functions_and_those_in_public(connection, read):
    """A condition finds functions of message_store and public; the search_path is unchanged."""
    write(connection)
    connection.execute(
        "CREATE FUNCTION public.is_first(bigint) RETURNS boolean LANGUAGE sql RETURN $1 = 0"
    )
    connection.execute("SET message_store.sql_condition = 'on'")
    connection.execute("SET search_path = ''")
    condition = "is_first(position) AND cardinal_id(stream_name) = ''123''"
    rows = connection.execute(
        f"SELECT position FROM message_store.{read}, condition => '{condition}')"
    ).fetchall()
    assert rows == [(0,)]
    assert connection.execute("SHOW search_path").fetchone() == ('""',)


CALLS = {
    "acquire_lock": ("message_store.acquire_lock('a-1')", "debug_write"),
    "write_message": (
        "message_store.write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}')",
        "debug_write",
    ),
    "get_stream_messages": ("message_store.get_stream_messages('a-1')", "debug_get"),
    "get_category_messages": ("message_store.get_category_messages('a')", "debug_get"),
    "get_last_stream_message": ("message_store.get_last_stream_message('a-1')", "debug_get"),
}


@pytest.mark.parametrize("function", CALLS)
def test_debug_settings_log_calls(connection, function):
    """Debug settings print a notice for each call, and only if they are `on`."""
    call, setting = CALLS[function]
    other = {"debug_get": "debug_write", "debug_write": "debug_get"}[setting]
    notices = []
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    for name, value, noticed in [
        (setting, "off", False),
        (setting, "true", False),
        (other, "on", False),
        (setting, "on", True),
        ("debug", "on", True),
        ("debug", "ON", False),
    ]:
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT set_config(%s, %s, true)", [f"message_store.{name}", value])
            connection.execute(f"SELECT * FROM {call}")
        assert any(notice.startswith(f"{function}(") for notice in notices) == noticed, (
            name,
            value,
        )
        assert bool(notices) == noticed
        notices.clear()


def test_a_notice_names_every_argument(connection):
    """A notice names every argument, and prints NULL as such."""
    notices = []
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    connection.execute("SET message_store.debug = 'on'")
    connection.execute("SELECT message_store.get_category_messages('a', 7, correlation => 'c')")
    (notice,) = notices
    assert notice == (
        "get_category_messages(category => a, position => 7, batch_size => 1000, "
        "correlation => c, consumer_group_member => <NULL>, consumer_group_size => <NULL>, "
        "condition => <NULL>)"
    )


@pytest.mark.parametrize("search_path", ["''", "hostile, pg_catalog", "pg_temp, hostile"])
def test_functions_do_the_same_whatever_the_search_path_is(connection, search_path):
    """Functions work the same whatever the caller's search_path holds."""
    connection.execute(
        "CREATE SCHEMA hostile; "
        "CREATE FUNCTION hostile.current_setting(text, boolean) RETURNS text "
        "LANGUAGE sql RETURN 'on'; "
        "CREATE FUNCTION hostile.category(varchar) RETURNS varchar LANGUAGE sql RETURN 'x'; "
        "CREATE FUNCTION hostile.hash_64(varchar) RETURNS bigint LANGUAGE sql RETURN 1; "
        "CREATE TABLE hostile.messages (LIKE message_store.messages); "
        "CREATE TEMPORARY TABLE messages (LIKE message_store.messages)"
    )
    notices = []
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    connection.execute(f"SET search_path = {search_path}")
    assert write(connection, "a-1") == 0
    assert write(connection, "a-1", expected_version=0) == 1
    for call in (
        "get_stream_messages('a-1')",
        "get_category_messages('a', consumer_group_member => 0, consumer_group_size => 1)",
    ):
        rows = connection.execute(f"SELECT position FROM message_store.{call}").fetchall()
        assert rows == [(0,), (1,)]
    row = connection.execute(
        "SELECT position, message_store.stream_version('a-1'), message_store.acquire_lock('a-1') "
        "= message_store.hash_64('a') FROM message_store.get_last_stream_message('a-1')"
    ).fetchone()
    assert row == (1, 1, True)
    assert notices == []


def test_a_refused_write_is_logged_too(connection):
    """A refused write prints its notice too."""
    notices = []
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    connection.execute("SET message_store.debug_write = 'on'")
    with pytest.raises(errors.RaiseException):
        write(connection, "a-1", message_id="x", expected_version=7)
    (notice,) = notices
    assert notice == (
        "write_message(id => x, stream_name => a-1, type => T, data => {}, metadata => <NULL>, "
        "expected_version => 7) found version -1"
    )
