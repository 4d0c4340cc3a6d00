"""Listing versions, turning the views that readers use, and removing a version."""

import json

import psycopg
import pytest
from jsonschema import Draft202012Validator

import consumers
from reservation import ReadModel
from tests.apps.bank import address
from tests.apps.occupancy import (
    BOOKINGS,
    FIRST,
    ROOT,
    Booked,
    Cancelled,
    book,
    by_sets,
    nights,
    one_by_one,
)
from tests.consumers.builders import decide
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, running, until
from tests.support.read_models import component, looks, prepare


def models(connection, *arguments, status=0):
    """Run ``reservation models``; return its object, or why it refused."""
    done = invoke_cli("models", *arguments, "--json", "--database-url", address(connection))
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else done.stderr


def fits(name, printed):
    """Check what a command prints against its schema."""
    schema = json.loads((ROOT / f"docs/reference/schemas/{name}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    assert [error.message for error in Draft202012Validator(schema).iter_errors(printed)] == []


def drain(connection, *made):
    for model in made:
        consumers.drain(model, address(connection))


@pytest.fixture
def both(connection, store):
    """Make two versions of some nights, of which the views show the first."""
    book(store, 1, 1, 2)
    drain(connection, one_by_one(), by_sets())


def columns(connection):
    return connection.execute("SELECT * FROM occupancy.nights LIMIT 0").description


@pytest.mark.usefixtures("both")
def test_the_views_show_the_other_version_and_back(connection):
    """A column that only one has comes and goes."""
    assert models(connection, "switch", "occupancy", "2")["switched"] is True
    assert [column.name for column in columns(connection)] == ["night", "taken", "events"]
    assert models(connection, "switch", "occupancy", "2")["switched"] is False
    assert models(connection, "switch", "occupancy", "1")["switched"] is True
    assert [column.name for column in columns(connection)] == ["night", "taken"]
    assert nights(connection) == {1: 2, 2: 1}


@pytest.fixture
def reader(connection, admin):
    """Give the name of a role that may read the views only."""
    ((name,),) = connection.execute("SELECT 'reader_' || current_database()").fetchall()
    admin.execute(f"CREATE ROLE {name}")
    yield name
    connection.execute(f"DROP OWNED BY {name}")
    admin.execute(f"DROP ROLE {name}")


@pytest.mark.usefixtures("both")
def test_rights_options_and_comments_of_views_stay(connection, reader):
    """Also where a view has to be made anew, because it loses a column."""
    connection.execute(f"GRANT USAGE ON SCHEMA occupancy TO {reader}")
    connection.execute(f"GRANT SELECT ON occupancy.nights TO {reader} WITH GRANT OPTION")
    connection.execute(f"GRANT UPDATE (taken) ON occupancy.nights TO {reader}")
    connection.execute("ALTER VIEW occupancy.nights SET (security_barrier = true)")
    connection.execute("COMMENT ON VIEW occupancy.nights IS 'rooms'")
    before = _described(connection)
    for version in ("2", "1", "2"):
        models(connection, "switch", "occupancy", version)
        assert _described(connection) == before
        with connection.transaction():
            connection.execute(f"SET LOCAL ROLE {reader}")
            assert nights(connection) == {1: 2, 2: 1}
    with connection.transaction():
        connection.execute(f"SET LOCAL ROLE {reader}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            nights(connection, "occupancy_2")


def _described(connection):
    return connection.execute(
        "SELECT relacl::text, relowner, reloptions, obj_description(c.oid, 'pg_class'),"
        "  (SELECT attacl::text FROM pg_attribute WHERE attrelid = c.oid AND attname = 'taken')"
        " FROM pg_class c WHERE oid = 'occupancy.nights'::regclass"
    ).fetchall()


@pytest.mark.usefixtures("both")
def test_a_version_that_lags_is_not_shown(connection, store):
    """The reason says by how many messages."""
    book(store, *[3] * 5)
    drain(connection, one_by_one())
    assert "lags by 5 messages" in models(connection, "switch", "occupancy", "2", status=2)
    with hosted(by_sets(), address(connection)):
        assert models(connection, "switch", "occupancy", "2")["switched"] is True


def test_a_version_must_be_run_on_each_of_its_categories(connection, store):
    """And is compared with the one shown category by category."""
    old, new = by_sets(1), by_sets(2)
    for model in (old, new):
        model.handle_many(Cancelled, category="refund")(lambda events, context: None)
        prepare(connection, model)
    at = address(connection)
    book(store, 1, 1, 2)
    with running(component(new), at, BOOKINGS):
        until(lambda: nights(connection, "occupancy_2") == {1: 2, 2: 1})
    refused = models(connection, "switch", "occupancy", "2", status=2)
    assert "was never run on refund; start it first" in refused
    assert models(connection, "list")["versions"][1]["lagMessages"] == 0
    drain(connection, old, new)
    store.write(Cancelled("b", 1), "refund-1")
    book(store, 3, booking="b")
    with running(component(old), at, "refund"), running(component(new), at, BOOKINGS):
        until(lambda: position(connection, "refund") == position(connection, BOOKINGS) - 1 == 4)
    lags = [one["lagMessages"] for one in models(connection, "list")["versions"]]
    assert lags == [1, 1]
    refused = models(connection, "switch", "occupancy", "2", status=2)
    assert "lags by 1 messages of refund" in refused
    drain(connection, new)
    assert models(connection, "switch", "occupancy", "2")["switched"] is True


def position(connection, category):
    """Return how far the version is that is furthest in a category."""
    ((reached,),) = connection.execute(
        "SELECT max(position) FROM reservation.positions WHERE category = %s", [category]
    ).fetchall()
    return reached


@pytest.mark.usefixtures("both")
def test_a_version_with_open_letters_is_not_shown(connection, store):
    """Its rows lack their events; once they are discarded somebody has decided so."""
    book(store, 4, rooms=13)
    drain(connection, one_by_one(attempts=1), by_sets(attempts=1))
    assert "dead letters that are open, 1 in all" in models(
        connection, "switch", "occupancy", "2", status=2
    )
    decide(connection, "discard", "--all", "--yes", "--reason", "never")
    models(connection, "switch", "occupancy", "2")


def test_versions_that_are_not_there_are_named(connection, store):
    """With those that are."""
    assert "no version 1" in models(connection, "switch", "occupancy", "1", status=2)
    book(store, 1)
    drain(connection, one_by_one())
    assert "it has 1" in models(connection, "switch", "occupancy", "2", status=2)


@pytest.mark.usefixtures("both")
def test_a_view_that_others_depend_on_is_not_lost(connection):
    """Its name and the way out are said, and nothing is changed."""
    models(connection, "switch", "occupancy", "2")
    connection.execute("CREATE VIEW public.busy AS SELECT night, events FROM occupancy.nights")
    refused = models(connection, "switch", "occupancy", "1", status=2)
    assert "occupancy.nights" in refused
    assert "busy" in refused
    assert len(columns(connection)) == 3


@pytest.mark.usefixtures("both")
def test_a_view_of_a_table_that_is_gone_goes_too(connection, store):
    """Readers get an error rather than rows that no longer change."""
    model = ReadModel("occupancy", version=3)
    model.tables(lambda connection: connection.execute("CREATE TABLE days (day int PRIMARY KEY)"))
    model.handle(Booked, category=BOOKINGS)(lambda event, context: None)
    drain(connection, model)
    models(connection, "switch", "occupancy", "3")
    found = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'occupancy'::regnamespace"
    ).fetchall()
    assert found == [("days",)]


@pytest.mark.usefixtures("both")
def test_a_view_that_somebody_made_beside_them_stays(connection):
    """It is named like no table of the version shown, and no new one can have its name."""
    connection.execute("CREATE VIEW occupancy.weekly AS SELECT 1 AS week")
    models(connection, "switch", "occupancy", "2")
    assert len(columns(connection)) == 3
    model = ReadModel("occupancy", version=3)
    model.tables(lambda connection: connection.execute("CREATE TABLE weekly (w int PRIMARY KEY)"))
    model.handle(Booked, category=BOOKINGS)(lambda event, context: None)
    drain(connection, model)
    refused = models(connection, "switch", "occupancy", "3", status=2)
    assert "occupancy.weekly is not a view of the read model" in refused
    assert connection.execute("SELECT week FROM occupancy.weekly").fetchall() == [(1,)]


@pytest.mark.usefixtures("both")
def test_a_version_is_removed_with_its_positions(connection, store):
    """It begins anew when it is started again; the one that is shown stays."""
    assert "switch them" in models(connection, "drop", "occupancy", "1", "--yes", status=2)
    models(connection, "drop", "occupancy", "2", "--yes")
    assert [one["version"] for one in models(connection, "list")["versions"]] == [1]
    drain(connection, by_sets())
    assert nights(connection, "occupancy_2") == {1: 2, 2: 1}


@pytest.mark.usefixtures("both")
def test_positions_cannot_be_taken_away_from_the_tables(connection):
    """Events would change the rows a second time."""
    at = ["--database-url", address(connection)]
    for arguments in (
        ["positions", "reset", FIRST, "--yes"],
        ["positions", "set", FIRST, BOOKINGS, "0", "--yes"],
        ["positions", "import", FIRST],
        ["retire", "occupancy_1", "--apply"],
    ):
        done = invoke_cli(*arguments, *at, cwd=ROOT)
        assert done.returncode == 2
        assert "models drop occupancy 1" in done.stderr


@pytest.mark.usefixtures("both")
def test_the_list_shows_how_far_versions_are(connection, store):
    """With the share, the lag and the dead letters; a table has the same."""
    book(store, *[5] * 3)
    book(store, 6, rooms=13, booking="bad")
    drain(connection, one_by_one(attempts=1))
    first, second = models(connection, "list", "occupancy")["versions"]
    assert (first["shown"], first["progress"], first["lagMessages"]) == (True, 1.0, 0)
    assert (second["shown"], second["lagMessages"], second["openLetters"]) == (False, 4, 0)
    assert first["openLetters"] == 1
    assert 0 < second["progress"] < 1
    assert (second["messagesPerSecond"], second["secondsLeft"]) == (0, None)
    env = {"COLUMNS": "200"}
    done = invoke_cli("models", "list", "--database-url", address(connection), env=env)
    assert "does not move" in done.stdout
    fits("models", models(connection, "list"))
    assert models(connection, "list", "other") == {"versions": []}


@pytest.mark.usefixtures("both")
def test_the_list_has_a_bar_on_a_terminal(connection, store):
    """As long as the share that is made, beside the number."""
    book(store, *range(4))
    drain(connection, one_by_one())
    done = invoke_cli(
        "models",
        "list",
        "--database-url",
        address(connection),
        env={"FORCE_COLOR": "1", "COLUMNS": "160"},
    )
    first, second = (line for line in done.stdout.splitlines() if "occupancy" in line)
    assert "━" * 20 in first
    assert "100.0 %" in done.stdout
    assert "━" in second


def test_the_list_measures_the_rate_of_a_version_that_is_made(connection, store, monkeypatch):
    """From two looks, between which it handles some messages."""
    book(store, *range(10))
    drain(connection, one_by_one())
    book(store, *range(40), booking="more")

    def meanwhile(seconds: float) -> None:
        drain(connection, one_by_one())
        book(store, *range(5), booking="last")

    (found,) = looks(connection, monkeypatch, meanwhile)
    assert (found.lag, found.open_letters) == (5, 0)
    assert found.rate > 0
    assert found.left > 0
