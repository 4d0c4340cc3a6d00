"""Statements that clients of Message DB send use its index, whatever is known of the log."""

import pytest

MESSAGES = "FROM message_store.messages WHERE message_store.category(stream_name) = $1"
STATEMENTS = {
    "the last position": f"SELECT max(global_position) {MESSAGES}",
    "the first position": f"SELECT min(global_position) {MESSAGES}",
    "the first messages": f"SELECT * {MESSAGES} ORDER BY global_position LIMIT 10",
    "the next messages": (
        f"SELECT * {MESSAGES} AND global_position >= 5 ORDER BY global_position LIMIT 10"
    ),
    "the last message": f"SELECT data {MESSAGES} ORDER BY global_position DESC LIMIT 1",
    "whether there are any": f"SELECT EXISTS (SELECT {MESSAGES} AND global_position > 5)",
}
FILL = (
    "INSERT INTO message_store.messages (stream_name, position, type) "
    "SELECT %s || '-' || gen_random_uuid(), 0, 'T' FROM generate_series(1, %s)"
)
# A category that is rare, one that was frequent long ago, one that there is not, the most frequent.
CATEGORIES = ["rare", "old", "none", "new"]


def fill(connection, statistics):
    """Fill a log, and analyze it never, while it holds the first messages only, or in the end."""
    connection.execute("ALTER TABLE message_store.messages SET (autovacuum_enabled = off)")
    connection.execute(FILL, ["old", 3000])
    connection.execute(FILL, ["rare", 1])
    if statistics == "stale":
        connection.execute("ANALYZE message_store.messages")
    connection.execute(FILL, ["new", 7000])
    if statistics == "fresh":
        connection.execute("ANALYZE message_store.messages")


def indexes(connection, statement, category, mode):
    """Return the indexes in the plan of a prepared statement, after its first executions."""
    connection.execute("SELECT set_config('plan_cache_mode', %s, false)", [mode])
    connection.execute(f"PREPARE statement(varchar) AS {statement}")
    rows = connection.execute(f"EXPLAIN EXECUTE statement('{category}')").fetchall()
    connection.execute("DEALLOCATE statement")
    return [text.partition(" using ")[2].split()[0] for (text,) in rows if " using " in text]


@pytest.mark.parametrize("statistics", ["absent", "stale", "fresh"])
def test_statements_about_a_category_use_its_index(connection, statistics):
    """What clients ask of a category is read from its index, with plans of each kind."""
    fill(connection, statistics)
    others = {
        (name, category, mode): found
        for name, statement in STATEMENTS.items()
        for category in CATEGORIES
        for mode in ("force_generic_plan", "force_custom_plan")
        if (found := indexes(connection, statement, category, mode)) != ["messages_category"]
    }
    assert others == {}
