"""Looks for letters where there are very many: each reads what it returns, and no others."""

from consumers.failures.letters import DeadLetters

CATEGORY = "account:command"
MANY = 20_000
FILL = """
INSERT INTO reservation.dead_letters (
  consumer, category, global_position, message_id, stream_name, type, entity, state, reason,
  process, next_attempt_at
)
SELECT 'account', 'account:command', i, gen_random_uuid(), 'account:command-' || i, 'Deposit',
       {entity}, {state}, 'handler', 'a:1',
       CASE {state} WHEN 'waiting' THEN now() - interval '1 hour' END
FROM generate_series(1, %s) AS i
"""


READ = """
SELECT seq_tup_read + coalesce(idx_tup_fetch, 0)
FROM pg_stat_xact_user_tables WHERE relid = 'reservation.dead_letters'::regclass
"""


def fill(connection, entity, state, *, analyzed=True):
    connection.execute(FILL.format(entity=entity, state=state), [MANY])
    if analyzed:
        connection.execute("ANALYZE reservation.dead_letters")


def read(connection, call):
    """Return how many rows of the table a call reads."""
    with connection.transaction():
        call()
        ((rows,),) = connection.execute(READ).fetchall()
    return rows


def test_a_long_line_of_one_entity_does_not_slow_down_looks_for_others(connection):
    """With statistics by which every letter is of one entity, too."""
    fill(connection, "'account-1'", "CASE i WHEN 1 THEN 'dead' ELSE 'parked' END")
    letters = DeadLetters("account", CATEGORY)
    others = [f"account-{n}" for n in range(2, 1000)]
    assert letters.heads(connection, ["account-1", *others]) == {"account-1": 1}
    # By the primary key it would read every letter for each.
    assert read(connection, lambda: letters.heads(connection, others)) < 10_000
    assert letters.due(connection, [0], 1, 1000).letters == []


def test_a_look_for_due_letters_reads_as_many_as_it_takes(connection):
    """Not all that wait, however small the sets are."""
    fill(connection, "'account-' || i", "'waiting'")
    letters = DeadLetters("account", CATEGORY)
    connection.execute("SET plan_cache_mode = force_custom_plan")
    found = letters.due(connection, [0], 1, 10)
    assert (len(found.letters), found.more) == (10, True)
    assert letters.due(connection, [], 1, 10).letters == []
    assert read(connection, lambda: letters.due(connection, [0], 1, 10)) < MANY / 10


def test_letters_that_came_too_fast_for_statistics_are_found_as_soon(connection):
    """As in an outage, or behind a rate: nobody has analyzed the table yet."""
    connection.execute("ALTER TABLE reservation.dead_letters SET (autovacuum_enabled = off)")
    fill(connection, "'account-' || i", "'waiting'", analyzed=False)
    letters = DeadLetters("account", CATEGORY)
    entities = [f"account-{n}" for n in range(1, 1001)]
    assert read(connection, lambda: letters.heads(connection, entities)) < 10_000
    assert read(connection, lambda: letters.due(connection, [0], 1, 1000)) < 2 * MANY
