"""Recurring commands: sent once for each tick, by whichever process is there."""

import json
import threading
import uuid
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import connect, errors

from tests.apps.bank import drain
from tests.apps.nightly import SENT, YEARLY, CloseDay, close_day, hotels
from tests.support.commands import invoke_cli
from tests.support.consuming import ended, hosted, logged, until
from tests.support.ticking import recurring

HOUR = timedelta(hours=1)
YEAR = datetime.now(UTC).year
NEW_YEAR = datetime(YEAR, 1, 1, tzinfo=UTC)


def series(connection, columns="reached, attempts, given_up, stopped_at IS NOT NULL"):
    """Return what the store knows of the one series."""
    (row,) = connection.execute(f"SELECT {columns} FROM reservation.series".encode()).fetchall()
    return row


def set_back(connection, years=1):
    """Let the series have seen no ticks for so many years, on a day after the tick."""
    connection.execute(
        "UPDATE reservation.series SET reached = reached - make_interval(years => %s),"
        " attempted = NULL, attempts = 0, attempt_at = NULL",
        [years],
    )


def sent(store):
    """Return the keys of the commands in the log, in their order."""
    return [message.decode(CloseDay).close_id for message in store.read_category(SENT)]


def keys(*years):
    """Return the keys of the ticks of years."""
    return [f"night-{year}-01-01T00:00:00Z" for year in years]


def listed(database_url):
    """Return the series as the command line lists them."""
    env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "300"}
    done = invoke_cli("scheduled", "list", "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["series"]


def test_a_new_series_starts_from_now(connection, store):
    """No tick before the first process is sent."""
    drain(connection, hotels())
    assert sent(store) == []
    (reached,) = series(connection, "reached")
    assert abs(datetime.now(UTC) - reached) < HOUR


def test_processes_that_start_at_once_begin_one_series(connection, database_url):
    """Whoever comes second waits for the first, and begins where that one did."""
    places = []

    def start(other):
        places.extend(declared(other, YEARLY, "reached"))

    with connect(database_url) as first, connect(database_url, autocommit=True) as second:
        start(first)
        thread = threading.Thread(target=start, args=[second])
        thread.start()
        blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        until(lambda: connection.execute(blocked, [second.info.backend_pid]).fetchone()[0])
        first.commit()
        ended(thread)
    assert places[0] == places[1] == series(connection, "reached")


@pytest.mark.parametrize(
    ("missed", "years"),
    [("latest", [YEAR]), ("all", [YEAR - 2, YEAR - 1, YEAR]), ("none", [])],
)
def test_missed_ticks_are_sent_as_declared(connection, store, missed, years):
    """After three years the last, all or none are sent and handled, each once."""
    component = hotels(missed=missed)
    drain(connection, component)
    set_back(connection, 3)
    with logged() as log:
        drained = drain(connection, component)
    assert sent(store) == keys(*years)
    assert drained.counts["handled"] == len(years)
    assert [one["type"] for one in log.named("tick_sent")] == ["CloseDay"] * len(years)
    assert len(log.named("ticks_missed")) == (missed != "all")
    drain(connection, component)
    assert sent(store) == keys(*years)
    reached, last_tick = series(connection, "reached, last_tick")
    assert reached == NEW_YEAR
    assert last_tick == (NEW_YEAR if years else None)


def test_a_command_has_the_id_of_its_tick(connection, store):
    """A series that has lost its place sends its ticks again, and the log knows them."""
    component = hotels()
    drain(connection, component)
    for _ in range(2):
        set_back(connection)
        drain(connection, component)
    (message,) = store.read_category(SENT)
    assert uuid.UUID(message.id).version == 5
    assert message.metadata.local_properties == {
        "series": "night",
        "tick": f"{YEAR}-01-01T00:00:00+00:00",
    }
    assert connection.execute("SELECT FROM reservation.scheduled").fetchall() == []


def test_a_function_that_returns_nothing_sends_nothing(connection, store):
    """The tick is done with, and the series goes on."""
    component = hotels(function=lambda tick: None)
    drain(connection, component)
    set_back(connection)
    with logged() as log:
        drain(connection, component)
    assert [one["type"] for one in log.named("tick_sent")] == [None]
    assert (sent(store), series(connection, "last_tick")) == ([], (NEW_YEAR,))


@pytest.mark.parametrize(
    ("problem", "function"),
    [
        ("raised ZeroDivisionError in", lambda tick: 1 // 0),
        ("raised SystemExit in", lambda tick: exit()),
        ("cannot send str", lambda tick: tick.key),
        ("field hotel_id is empty", lambda tick: CloseDay("", tick.key)),
        ("Cannot encode a CloseDay", lambda tick: CloseDay("berlin", 1j)),
        ("NUL", lambda tick: CloseDay("berlin", "\0")),
    ],
)
def test_a_failing_function_is_called_again_and_given_up_after_sixty_attempts(
    connection, store, database_url, problem, function
):
    """What it raises, and what cannot be sent, is counted and shown, and ends no series."""
    component = hotels(function=function, missed="all")
    drain(connection, component)
    set_back(connection, 2)
    with logged() as log:
        drain(connection, component)
    (failed,) = log.named("tick_failed")
    assert problem.lower() in failed["error"].lower()
    (one,) = listed(database_url)
    assert (one["state"], one["attempts"], one["givenUp"]) == ("failing", 1, 0)
    assert one["error"] == failed["error"]
    assert one["nextTick"] == f"{YEAR - 1}-01-01T00:00:00+00:00"
    (wait,) = series(connection, "attempt_at - now()")
    assert wait <= timedelta(seconds=1)

    connection.execute("UPDATE reservation.series SET attempts = 60, attempt_at = now()")
    with logged() as log:
        drain(connection, component)
    assert [one["tick"][:4] for one in log.named("tick_given_up")] == [str(YEAR - 1)]
    assert series(connection, "given_up, attempts, attempted") == (1, 1, NEW_YEAR)
    good = hotels(missed="all")
    connection.execute("UPDATE reservation.series SET attempt_at = now()")
    drain(connection, good)
    assert sent(store) == keys(YEAR)
    assert series(connection, "given_up, attempts, error") == (1, 0, None)


def test_pauses_between_attempts_grow_up_to_a_minute(connection):
    """The next attempt is after a second, two, four and so on."""
    drain(connection, hotels())
    set_back(connection)
    pauses = []
    for _ in range(8):
        connection.execute("UPDATE reservation.series SET attempt_at = now()")
        (claimed,) = connection.execute(
            "SELECT reservation.claim_tick(component, name, reached, %s) FROM reservation.series",
            [NEW_YEAR],
        ).fetchone()
        pauses.append(round(series(connection, "extract(epoch FROM attempt_at - now())")[0]))
    assert (claimed, pauses) == (8, [1, 2, 4, 8, 16, 32, 60, 60])


def test_a_newer_tick_takes_the_place_of_one_that_fails(connection, store, database_url):
    """The failing tick is given up when the next one is due, if only the latest is wanted."""
    drain(connection, hotels())
    set_back(connection, 2)
    connection.execute(
        "UPDATE reservation.series SET attempted = %s, attempts = 9, error = 'it failed',"
        " attempt_at = now() + interval '1 hour'",
        [NEW_YEAR.replace(year=YEAR - 1)],
    )
    with logged() as log:
        drain(connection, hotels())
    assert [one["tick"][:4] for one in log.named("tick_given_up")] == [str(YEAR - 1)]
    assert sent(store) == keys(YEAR)
    (one,) = listed(database_url)
    assert (one["givenUp"], one["attempts"], one["error"]) == (1, 0, None)


def test_a_fault_of_the_environment_is_no_attempt(connection, store, database_url):
    """What the database keeps from being sent is sent once it is there, without another call."""
    calls = []

    def function(tick):
        calls.append(tick)
        return close_day(tick)

    component = hotels(function=function)
    drain(connection, component)
    set_back(connection)
    connection.execute(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE disk_full; END $$;"
        "CREATE TRIGGER full_disk BEFORE INSERT ON reservation.scheduled "
        "FOR EACH ROW EXECUTE FUNCTION full_disk()"
    )
    with logged() as log, hosted(component, database_url) as thread:
        until(lambda: log.named("database_unavailable"), thread)
        connection.execute("UPDATE reservation.series SET attempt_at = now()")
        connection.execute("DROP TRIGGER full_disk ON reservation.scheduled")
        until(lambda: sent(store), thread)
    assert (sent(store), len(calls)) == (keys(YEAR), 1)
    assert log.named("tick_failed") == []


def test_a_changed_expression_starts_from_now_and_another_choice_does_not(connection, store):
    """Ticks of the new expression before now are not missed; those of the same one are."""
    drain(connection, hotels())
    set_back(connection)
    drain(connection, hotels("0 0 2 1 *"))
    assert sent(store) == []
    set_back(connection)
    drain(connection, hotels("0 0 2 1 *", missed="all"))
    assert sent(store) == [f"night-{YEAR}-01-02T00:00:00Z"]


def test_a_series_that_is_not_declared_stops_and_says_so(connection, store, database_url):
    """The list and the log say so; declared again at once, it goes on from where it was."""
    drain(connection, hotels())
    set_back(connection)
    with logged() as log:
        drain(connection, hotels(recurs=False))
    assert [one["series"] for one in log.named("series_stopped")] == ["night"]
    (one,) = listed(database_url)
    assert (one["state"], one["nextTick"], sent(store)) == ("stopped", None, [])
    with logged() as log:
        drain(connection, hotels(recurs=False))
    assert log.named("series_stopped") == []
    drain(connection, hotels())
    assert sent(store) == keys(YEAR)
    assert listed(database_url)[0]["state"] == "scheduled"


def test_a_series_that_was_stopped_starts_from_now(connection, store):
    """Its ticks may have been sent under another name meanwhile."""
    drain(connection, hotels())
    set_back(connection)
    drain(connection, hotels(name="audit"))
    connection.execute("UPDATE reservation.series SET stopped_at = stopped_at - interval '1 hour'")
    drain(connection, hotels())
    assert sent(store) == []
    reached = "SELECT now() - reached FROM reservation.series WHERE name = 'night'"
    assert connection.execute(reached).fetchone()[0] < HOUR


def test_the_process_that_started_last_decides(connection, store, database_url):
    """While it runs, an older one sends nothing; once it has ended, that does."""
    old, new = hotels(), hotels("0 0 2 1 *")
    drain(connection, old)
    with hosted(old, database_url):
        newest = "SELECT reservation.newest_series('hotel') IS NOT NULL"
        until(lambda: connection.execute(newest).fetchone()[0])
        with hosted(new, database_url):
            until(lambda: series(connection, "expression") == ("0 0 2 1 *",))
            set_back(connection)
            assert declared(connection, YEARLY) == []
            assert len(declared(connection, "0 0 2 1 *")) == 1
        assert len(declared(connection, YEARLY)) == 1
        assert series(connection, "expression") == (YEARLY,)


@pytest.mark.parametrize("changed", [{"name": "audit"}, {"expression": "0 0 2 1 *"}])
def test_a_reconnect_does_not_make_an_older_process_the_newest(connection, database_url, changed):
    """What the newer one has renamed or changed stays so when the older one has connected again."""
    shown = "SELECT name, expression, reached, stopped_at FROM reservation.series ORDER BY name"
    with hosted(hotels(), database_url):
        old = member_after(connection, 0)
        until(lambda: connection.execute(shown).fetchall())
        with hosted(hotels(**changed), database_url):
            new = member_after(connection, old)
            decided = (
                f"SELECT FROM ({shown}) AS s WHERE (name, expression) <> ('night', '{YEARLY}')"
            )
            until(lambda: connection.execute(decided).fetchall())
            before = connection.execute(shown).fetchall()
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                " AND mode = 'ExclusiveLock' AND objsubid = 2 AND objid::bigint = %s",
                [old],
            )
            member_after(connection, new)
            assert declared(connection, YEARLY) == []
            assert connection.execute(shown).fetchall() == before


def member_after(connection, member):
    """Return the next member after another, once it is there with its declaration."""
    later = (
        "SELECT member FROM reservation.members WHERE category = 'hotel:command'"
        " AND declaration IS NOT NULL AND member > %s"
    )
    until(lambda: connection.execute(later, [member]).fetchall())
    return connection.execute(later, [member]).fetchone()[0]


def test_an_older_process_lets_a_newer_one_connect_again_before_it_decides(
    connection, database_url
):
    """The newer one may only have lost its connection; what is changed twice loses ticks."""
    commands = recurring(hotels())
    with hosted(hotels("0 0 2 1 *"), database_url):
        until(lambda: connection.execute("SELECT FROM reservation.series").fetchall())
        commands.run(connection)
        assert commands.limit(60) <= 5
    commands.run(connection)
    assert series(connection, "expression") == ("0 0 2 1 *",)
    assert 4 < commands.limit(60) <= 5
    commands.run(connection)
    assert series(connection, "expression") == (YEARLY,)


@pytest.mark.parametrize(
    ("missed", "late"), [("none", []), ("latest", [25]), ("all", [15, 20, 25])]
)
def test_a_busy_process_sends_what_was_due_meanwhile(connection, missed, late):
    """No tick is missed between two looks on one connection; before a new one, it may be."""
    connection.execute(
        "CREATE SCHEMA now; ALTER FUNCTION reservation.declare_series SET SCHEMA now;"
        "CREATE TABLE clock AS SELECT interval '0' AS ahead;"
        "CREATE FUNCTION reservation.declare_series(text, text[], text[], text[], text[])"
        " RETURNS TABLE (name text, at timestamptz, reached timestamptz, attempted timestamptz,"
        " attempts integer, attempt_at timestamptz) LANGUAGE sql AS $$"
        " SELECT name, at + (SELECT ahead FROM public.clock), reached, attempted, attempts,"
        " attempt_at FROM now.declare_series($1, $2, $3, $4, $5) $$"
    )

    def sent_at(minute):
        connection.execute(
            "UPDATE clock SET ahead = %s - clock_timestamp()", [start + timedelta(minutes=minute)]
        )
        commands.run(connection)
        ticks = [datetime.fromisoformat(one["tick"]) - start for one in log.named("tick_sent")]
        return [tick // timedelta(minutes=1) for tick in ticks], len(log.named("ticks_missed"))

    with logged() as log:
        commands = recurring(hotels("*/5 * * * *", missed=missed))
        commands.run(connection)
        start = series(connection, "date_bin('5 minutes', reached, '2000-01-01Z')")[0]
        assert sent_at(12) == ([5, 10], 0)
        commands.connected()
        assert sent_at(27) == ([5, 10, *late], missed != "all")


def declared(connection, expression, columns="name"):
    """Return the series that a process may send which declares it with this expression."""
    return connection.execute(
        f"SELECT {columns} FROM reservation.declare_series("
        "  'hotel', ARRAY['night'], ARRAY[%s], ARRAY['UTC'], ARRAY['latest'])",
        [expression],
    ).fetchall()


def test_an_idle_process_sends_its_tick_and_several_send_it_once(connection, store, database_url):
    """Two processes wait for the same minute, and the command is there once, and on time."""
    drain(connection, hotels("* * * * *"))
    # A minute ago there was a tick, so that nothing is waited for.
    connection.execute("UPDATE reservation.series SET reached = now() - interval '1 minute'")
    calls = []

    def function(tick):
        calls.append(tick)
        return close_day(tick)

    component = hotels("* * * * *", function)
    with hosted(component, database_url) as one, hosted(component, database_url):
        until(lambda: list(store.read_category("hotel")), one)
    found = sent(store)
    assert len(found) == len(set(found))
    assert {tick.key for tick in calls} >= set(found)
    (due, written) = connection.execute(
        "SELECT (local->>'tick')::timestamptz, time FROM ("
        "  SELECT metadata->'localProperties' AS local, time FROM message_store.messages"
        "  WHERE stream_name LIKE 'hotel:command%' ORDER BY global_position LIMIT 1) AS m"
    ).fetchone()
    assert due <= written.replace(tzinfo=UTC)


def test_a_slow_function_keeps_its_lease_and_is_not_called_at_once(connection, store, database_url):
    """Another process does not begin the same tick while the first one is at it."""
    drain(connection, hotels())
    set_back(connection)
    calls, goes_on = [], threading.Event()

    def function(tick):
        calls.append(tick)
        assert goes_on.wait(30)
        return close_day(tick)

    component = hotels(function=function)
    with hosted(component, database_url) as first:
        until(lambda: calls, first)
        assert connection.execute(
            "SELECT reservation.claim_tick(component, name, reached, attempted)"
            " FROM reservation.series"
        ).fetchone() == (None,)
        goes_on.set()
        until(lambda: sent(store), first)
    assert len(calls) == 1


def test_series_cost_other_consumers_nothing(connection, store, monkeypatch):
    """Without series, and of other than commands, a consumer asks the server nothing for them."""
    asked = []
    execute = psycopg.Cursor.execute

    def noted(cursor, query, *arguments, **options):
        asked.append(str(query))
        return execute(cursor, query, *arguments, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    drain(connection, hotels(recurs=False))
    assert sum("declare_series" in query for query in asked) == 0
    drain(connection, hotels())
    assert sum("declare_series" in query for query in asked) == 1


def test_who_may_not_send_says_so(connection, database_url):
    """A role without rights on the series is told which."""
    connection.execute("SET ROLE pg_monitor")
    with pytest.raises(errors.InsufficientPrivilege, match="permission denied"):
        connection.execute("SELECT reservation.newest_series('hotel')")
    connection.execute("RESET ROLE")


def test_retiring_a_component_and_pruning_remove_its_series(connection, database_url):
    """A stopped series goes with --cancelled-older-than, and any with its component."""
    env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "300"}
    drain(connection, hotels())
    prune = ["prune", "--cancelled-older-than", "1d", "--apply"]
    invoke_cli(*prune, env=env)
    assert len(listed(database_url)) == 1
    drain(connection, hotels(recurs=False))
    connection.execute("UPDATE reservation.series SET stopped_at = now() - interval '2 days'")
    done = invoke_cli(*prune, env=env)
    assert "recurring commands" in done.stdout
    assert listed(database_url) == []
    drain(connection, hotels())
    done = invoke_cli("retire", "hotel", "--apply", env=env)
    assert done.returncode == 0, done.stderr
    assert listed(database_url) == []
