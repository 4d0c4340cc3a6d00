"""Switching notices, while a writer of the log does not end."""

from tests.store.builders import store_command


def test_switching_gives_up_where_a_writer_does_not_end(connection, store):
    """It waits for ten seconds, and the error says what to do."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO message_store.messages (stream_name, position, type) "
            "VALUES ('thing-1', 0, 'T')"
        )
        assert "pg_stat_activity" in store_command(connection, "notices", "off").stderr
    assert store_command(connection, "notices", "off").stdout == "notices: switched off\n"
