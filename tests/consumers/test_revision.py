"""Revisions: messages that are not newer are discarded, and senders draw them from the database."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from reservation import Component
from reservation.errors import DeclarationError, StoreError
from reservation.strategies import DatabaseRevisions, Revisions
from tests.apps.bank import address
from tests.apps.once import (
    COMMANDS,
    SENT,
    Pay,
    effects,
    letters,
    pay,
    prepare,
    redeliver,
    run,
    till,
)
from tests.support.commands import invoke_cli
from tests.support.consuming import until

ONCE = Revisions()


@pytest.fixture(autouse=True)
def _prepared(connection):
    prepare(connection)
    yield
    connection.execute("DROP TABLE effects")


def last(connection):
    rows = connection.execute(
        "SELECT entity_stream, source, revision FROM reservation.revisions ORDER BY 1, 2"
    )
    return rows.fetchall()


@pytest.mark.parametrize("limit", [1, 100])
def test_what_is_not_newer_has_no_effect(connection, store, limit):
    """Not the same revision under a new id, nor an older one; gaps are allowed."""
    store.write([pay("a", 0), pay("c", 7), pay("b", 2)], SENT)
    assert run(connection, till(ONCE), limit) == Counter(handled=2, duplicate=1)
    redeliver(connection)
    store.write([pay("c", 7), pay("d", 6), pay("e", 2**63 - 2), pay("f", 2**63 - 1)], SENT)
    assert run(connection, till(ONCE), limit) == Counter(handled=2, duplicate=5)
    assert effects(connection) == Counter("acef")
    assert last(connection) == [("till-123", "s", 2**63 - 1)]


def test_each_source_and_each_entity_has_revisions_of_its_own(connection, store):
    """Revisions of different sources and entities are independent."""
    store.write([pay("a", 9, "x"), pay("b", 1, "y"), pay("c", 2, "x"), pay("d", 2, "y")], SENT)
    store.write(pay("e", 1, "x", till="7"), "till:command-7")
    assert run(connection, till(ONCE), limit=2) == Counter(handled=4, duplicate=1)
    assert last(connection) == [("till-123", "x", 9), ("till-123", "y", 2), ("till-7", "x", 1)]


OTHERS = [
    ("shop", COMMANDS, "till-123", "s"),
    ("till", "tillTransaction", "till-123", "s"),
    ("till", COMMANDS, "till-7", "s"),
    ("till", COMMANDS, "till-123", "x"),
]


def test_raising_a_revision_changes_no_other(connection, store):
    """Raising one revision changes no other consumer, category, entity or source."""
    store.write([pay("a", 5), pay("b", 6)], SENT)
    for other in OTHERS:
        connection.execute("INSERT INTO reservation.revisions VALUES (%s, %s, %s, %s, 5)", other)
    assert run(connection, till(ONCE), limit=1) == Counter(handled=2)
    rows = connection.execute(
        "SELECT consumer, category, entity_stream, source, revision FROM reservation.revisions"
    ).fetchall()
    raised = ("till", COMMANDS, "till-123", "s", 6)
    assert set(rows) == {raised, *((*other, 5) for other in OTHERS)}


def test_without_a_source_all_are_counted_together(connection, store):
    """Without a declared source all revisions are counted together."""
    store.write([pay("a", 9, "x"), pay("b", 1, "y")], SENT)
    assert run(connection, till(Revisions(source=None))) == Counter(handled=1, duplicate=1)
    assert last(connection) == [("till-123", "", 9)]


def test_consumers_and_categories_do_not_see_each_other(connection, store):
    """Revisions of different consumers and categories are independent."""
    store.write(pay("a", 5), SENT)
    store.write(pay("b", 5), "shop:command-123")
    run(connection, till(ONCE))
    assert run(connection, till(ONCE, name="shop")) == Counter(handled=1)
    component = Component("till", id="till_id")
    component.handle(Pay, key="pay_id", once=ONCE)(lambda *_: None)
    store.write(pay("c", 1), "till:command-123")
    assert run(connection, component) == Counter(reserved=1, handled=1)


def test_a_message_without_its_revision_or_source_is_a_dead_letter(connection, store):
    """Its error names it; those before and after it are handled."""
    problems = {
        "1": (pay("a", -1, till="1"), "revision holds no revision; a revision is a whole"),
        "2": (pay("a", 2**63, till="2"), "revision holds no revision; a revision is a whole"),
        "3": (pay("a", 1, "", till="3"), "field source is empt"),
    }
    for till_id, (sent, _) in problems.items():
        store.write([pay("b", 1, till=till_id), sent], f"till:command-{till_id}")
    store.write(pay("c", 1, till="7"), "till:command-7")
    assert run(connection, till(ONCE)) == Counter(handled=4, dead=3)
    errors = dict(zip(problems, [error for *_, error in letters(connection)], strict=True))
    missing = [one for one, (_, problem) in problems.items() if problem not in errors[one]]
    assert missing == []
    assert [error for error in errors.values() if "Cannot handle Pay at" not in error] == []
    assert effects(connection) == Counter("bbbc")


@pytest.mark.parametrize("known", [False, True])
def test_a_revision_that_another_process_handled_meanwhile_is_a_duplicate(connection, store, known):
    """What the handler did is rolled back, and the message is not handled again."""
    component = Component("till", id="till_id")

    @component.handle(Pay, once=ONCE)
    def take_effect(command, entity, context):
        context.connection.execute("INSERT INTO effects VALUES ('till', 'Pay', 'a')")
        connection.execute(  # as the other process does
            "INSERT INTO reservation.revisions VALUES ('till', %s, 'till-123', 's', 2) "
            "ON CONFLICT (consumer, category, entity_stream, source) DO UPDATE SET revision = 2",
            [COMMANDS],
        )

    if known:
        store.write(pay("0", 1), SENT)
        run(connection, till(ONCE))
    store.write(pay("a", 2), SENT)
    assert run(connection, component) == Counter(duplicate=1)
    assert effects(connection) == (Counter("0") if known else Counter())


@pytest.mark.parametrize("once", [Revisions("version"), Revisions(source="sender")])
def test_a_missing_field_is_refused_when_it_is_declared(once):
    """A field that the command does not have is refused in the declaration."""
    with pytest.raises(DeclarationError, match=r"Pay has no field '(version|sender)'"):
        till(once)


# Drawn from the database


def test_revisions_of_an_entity_or_of_all(connection):
    """The scope decides whether numbers are drawn per entity or for all."""
    with connection.transaction():
        by_entity, all_ = DatabaseRevisions(connection), DatabaseRevisions(connection, "global")
        assert [by_entity.next("a-1"), by_entity.next("a-2"), by_entity.next("a-1")] == [1, 1, 2]
        assert [all_.next("a-1"), all_.next("a-2"), all_.next("a-1")] == [1, 2, 3]
    # Its name, which no stream has, is not to change: it would begin anew.
    counters_of = connection.execute("SELECT name FROM reservation.revision_counters ORDER BY 1")
    assert counters_of.fetchall() == [("",), ("a-1",), ("a-2",)]


def test_a_revision_that_was_rolled_back_is_drawn_again(connection):
    """A number whose transaction was rolled back is drawn again."""
    for rolled_back in (True, False):
        with connection.transaction(force_rollback=rolled_back):
            assert DatabaseRevisions(connection).next("a-1") == 1


def test_outside_of_a_transaction_none_is_drawn(connection):
    """Outside a transaction no number is drawn, as nothing would keep the order."""
    with pytest.raises(StoreError, match=r"within `with connection\.transaction"):
        DatabaseRevisions(connection).next("a-1")
    with pytest.raises(DeclarationError, match="scope='stream' is neither 'entity' nor 'global'"):
        DatabaseRevisions(connection, "stream")


def test_a_sender_that_draws_later_commits_later(connection, database_url):
    """A sender that draws later waits for the earlier one of its entity to commit."""
    with (
        psycopg.connect(database_url) as first,
        psycopg.connect(database_url, autocommit=True) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        assert DatabaseRevisions(first).next("a-1") == 1
        with second.transaction():
            assert DatabaseRevisions(second).next("a-2") == 1
            drawn = pool.submit(DatabaseRevisions(second).next, "a-1")
            waiting = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
            until(lambda: connection.execute(waiting, [second.info.backend_pid]).fetchall())
            assert not drawn.done()
            first.commit()
            assert drawn.result() == 2


def test_a_sender_may_draw_and_do_nothing_else(connection):
    """A sender can draw numbers but neither see nor set them."""
    role = f"drawer_{connection.info.dbname}"
    words = ["store", "grants", "sender", role, "--category", COMMANDS]
    done = invoke_cli(*words, "--database-url", address(connection))
    assert done.returncode == 0, done.stderr
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL ROLE {role}")
            assert DatabaseRevisions(connection).next("till-1") == 1
        rights = connection.execute(
            "SELECT has_table_privilege(%s, 'reservation.revision_counters', 'SELECT')", [role]
        )
        assert rights.fetchall() == [(False,)]
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
