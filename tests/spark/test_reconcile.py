"""``reservation reconcile`` from start to exit, on stores with planted findings."""

import json
import re
import stat
from contextlib import closing, contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import connect
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from bank import account
from reservation import Key, MessageStore, Write
from reservation.errors import ReservationError
from spark_jobs.reconcile import in_session, working
from spark_jobs.reconcile import reconcile as reconciled
from spark_jobs.run import Run
from tests.apps.bank import RESERVED, drain
from tests.apps.idempotence import PURSE, purse
from tests.spark.builders import ROOT, head, rows_of
from tests.support.controls import COMMANDS, LATER, deposit, open_, withdraw
from tests.support.started import EXAMPLES
from tests.support.watching import until

# The other connections to the database, and what they have fetched once they have ended.
OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
FETCHED = """
    SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables
    WHERE schemaname = 'message_store' AND relname = 'messages'"""


@pytest.fixture
def planted(connection, store):
    """Plant one or more of every finding in a store, beside what is in order."""
    store.write([open_(), deposit("d1"), deposit("d1", time=LATER), deposit("lost")], COMMANDS)
    store.write(withdraw("w1"), COMMANDS)
    drain(connection)
    # Lost: the reservation and its effects are gone although the consumer has read the command.
    connection.execute(
        "DELETE FROM message_store.messages WHERE stream_name = 'accountTransaction-123+lost'"
    )
    # A conflict, read by the consumer and discarded.
    store.write([deposit("d1", amount="99"), open_(customer="another")], COMMANDS)
    drain(connection)
    # Orphans, and a stream with more than one message.
    store.write_batch(
        [
            Write(deposit("o1"), "accountTransaction-123+o1"),
            Write(deposit("o2"), "accountTransaction-123+o2\u202e<b>"),
            Write(deposit("d1"), "accountTransaction-123+d1"),
            Write(deposit("d1"), "accountTransaction-123+d1"),
        ]
    )
    # Pending: not read yet.
    store.write([deposit("p1"), deposit("p2"), deposit("p1")], COMMANDS)


COUNTS = {
    "commands": 8,
    "keys": 5,
    "duplicates": 2,
    "reserved": 2,
    "missing": 1,
    "pending": 2,
    "orphans": 2,
    "multiple": 1,
    "conflicts": 1,
}
EFFECTS = {"reserved": 6, "handled": 2, "silent": 0, "pending": 4, "unhandled": 0, "dead": 0}
EVENTS = {"events": 4, "causes": 3, "effect_twice": 0, "without_cause": 1}


def type_of_times(folder):
    """Return how the times of findings stand in the files of a folder."""
    (path,) = folder.glob("run=*/*.parquet")
    return pq.read_schema(path).field("time").type


def modes(folder):
    """Return the modes of a folder and all in it, by whether it is a folder."""
    return {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.usefixtures("planted")
def test_each_planted_finding_is_found_and_written_in_every_form(reconcile, connection, tmp_path):
    """The counts equal the planted findings, and every row is in the output."""
    output, state = tmp_path / "findings", tmp_path / "state"
    files = {name: tmp_path / f"report.{name}" for name in ("html", "junit", "prometheus")}
    options = [word for name, place in files.items() for word in (f"--{name}", place)]
    found = reconcile("--findings", output, "--state", state, *options)
    assert (found.status, found.error) == (1, "")
    assert found.commands == COUNTS
    _, opened, effects, events = found.counts
    assert (opened["commands"], opened["keys"], opened["conflicts"]) == (2, 1, 1)
    assert (effects, events) == (EFFECTS, EVENTS)
    # Not Spark's own type, which other programs do not read.
    assert type_of_times(output) == pa.timestamp("us", tz="UTC")
    rows = pq.read_table(output).to_pylist()
    assert sorted(((row["finding"], row["key_stream"]) for row in rows), key=str) == [
        ("conflict", "account-123"),
        ("conflict", "accountTransaction-123+d1"),
        ("missing", "accountTransaction-123+lost"),
        ("multiple", "accountTransaction-123+d1"),
        ("multiple", "accountTransaction-123+d1"),
        ("orphan", "accountTransaction-123+o1"),
        ("orphan", "accountTransaction-123+o2\u202e<b>"),
        ("without-cause", None),
    ]
    assert rows_of(output) == found.findings
    stored_at = dict(
        connection.execute(
            "SELECT global_position, time AT TIME ZONE 'UTC' FROM message_store.messages"
        ).fetchall()
    )
    assert all(row["time"] == stored_at[row["global_position"]] for row in rows)
    # --html measures the details.
    assert {one["type"] for one in found.report["latency"]} == {None, "Deposit", "Withdraw", "Open"}
    assert "need attention" in files["html"].read_text()
    assert 'failures="5"' in files["junit"].read_text()
    assert "reservation_reconcile_in_order" in files["prometheus"].read_text()
    assert {*tmp_path.iterdir()} == {output, state, *files.values()}
    assert modes(output) | modes(state) == {(True, 0o700), (False, 0o600)}


@pytest.mark.usefixtures("planted")
def test_the_table_is_for_people(command):
    """The table shows counts, samples and a verdict, with control characters escaped."""
    limits = ("--fail-on", "conflict,orphan:2", "--warn", "orphan")
    done = command("reconcile", "bank:account", *limits)
    assert done.returncode == 1
    assert "Not in order" in done.stdout
    assert "Threshold exceeded: 2 conflicts (allowed: 0)" in done.stdout
    assert "Warning: 2 orphans (allowed: 0)" in done.stdout
    assert "more than one message" in done.stdout
    assert "\u202e" not in done.stdout
    assert "\x1b" not in done.stdout  # no colours where there is no terminal


def test_a_store_in_order_exits_with_0(reconcile, connection, store):
    """An empty store is in order, and so are duplicates and unread messages."""
    empty = reconcile("--details")
    assert (empty.status, empty.error, empty.commands, empty.found) == (0, "", {}, [])
    assert (empty.report["latency"], empty.report["volume"]) == ([], [])
    assert empty.report["reissues"]["senders"] == []
    store.write([open_(), deposit(), deposit(), withdraw()], COMMANDS)
    drain(connection)
    store.write([deposit("d2"), open_()], COMMANDS)
    found = reconcile()
    assert (found.status, found.error, found.report["inOrder"]) == (0, "", True)
    assert found.commands == {
        "commands": 4,
        "keys": 3,
        "duplicates": 1,
        "reserved": 2,
        "pending": 1,
    }


def test_messages_written_during_a_job_are_left_to_the_next(
    spark, database_url, connection, store, reconcile
):
    """Even at lower positions; and a finding within the limit of --fail-on is shown."""
    store.write([open_(), deposit("d1")], COMMANDS)
    drain(connection)
    with closing(connect(database_url)) as slow:
        # It has its position, and ends in the middle of the job.
        MessageStore(slow).write(deposit("slow"), COMMANDS)
        store.write(deposit("o1", time=LATER), "accountTransaction-123+o1")

        with working(Run(account, "bank:account", EXAMPLES, database_url)) as begun:
            slow.commit()
            drain(connection)
            store.write(deposit("d2"), COMMANDS)
            snapshot, session = begun
            run = Run(account, "bank:account", EXAMPLES, database_url)
            (first, _) = in_session(run, snapshot, session).categories
    assert (first.commands, first.reserved, first.pending, first.orphans) == (1, 1, 0, 1)
    then = reconcile("--fail-on", "missing,orphan:1")
    assert (then.status, then.found) == (0, ["orphan"])
    counts = {"commands": 3, "keys": 3, "reserved": 2, "pending": 1, "orphans": 1}
    assert then.commands == counts


def test_a_failure_on_a_worker_is_reported_in_one_line(spark, database_url):
    """The line is the worker's error, without the stack traces of Java and Python."""

    @F.udf("int")
    def fail(_):
        raise ValueError("no such coin")

    @contextmanager
    def failing(session):
        session.range(1).select(fail("id")).collect()
        yield

    run = Run(account, "bank:account", EXAMPLES, database_url)
    with pytest.raises(ReservationError) as caught:
        reconciled(run, failing)
    assert str(caught.value) == "The Spark job failed: ValueError: no such coin"


@pytest.mark.parametrize(
    ("option", "content", "said"),
    [
        ("--findings", "file", "is not empty and contains no table of findings: it holds 'model'"),
        ("--findings", "link", "is a broken symbolic link; remove the link"),
        (
            "--state",
            "file",
            "is not empty and contains no state: it holds 'model'; name another folder",
        ),
        (
            "--to",
            "file",
            "is not empty and contains no archive: it holds 'model'; name another folder",
        ),
    ],
)
def test_a_place_of_something_else_is_refused_before_the_job(
    command, tmp_path, option, content, said
):
    """What is written there is left as it is, and neither Spark nor the database is used."""
    place = tmp_path / "place"
    if content == "link":
        place.symlink_to(tmp_path / "nothing")
    else:
        place.mkdir()
        (place / "model").touch()
    words = ["archive", "--before", "1d"] if option == "--to" else ["reconcile"]
    nowhere = ["--database-url", "postgresql://127.0.0.1:1/none"]
    done = command(*words, "bank:account", option, str(place), *nowhere)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in place.rglob("*")] == ["model"] * (content == "file")


def test_findings_are_a_table_that_grows(spark, store, connection, reconcile, tmp_path):
    """Each run adds its own, and the query of the page shows how many it has left."""
    table = tmp_path / "findings"
    store.write(deposit(), COMMANDS)
    drain(connection)
    counts = []
    for _ in range(2):
        store.write(deposit("lost"), f"{RESERVED}-123+o{len(counts)}")
        counts.append(len(reconcile("--findings", table).found))
    page = (ROOT / "docs" / "how-to" / "reconcile.md").read_text()
    (query,) = re.findall(r"```sql\n(SELECT run_time.*?)```", page, re.DOTALL)
    rows = spark.sql(query.replace("`findings`", f"`{table}`")).collect()
    assert [row["findings"] for row in rows if row["finding"] == "orphan"] == [1, 2]
    assert sum(row["findings"] for row in rows) == sum(counts)
    (known,) = {
        (row["component"], row["store"], row["declaration"])
        for row in pq.read_table(table).to_pylist()
    }
    ((id_,),) = connection.execute("SELECT id::text FROM reservation.store_identity").fetchall()
    assert known[:2] == ("account", id_)
    assert len({path.name for path in table.iterdir()}) == 2
    assert stat.S_IMODE(table.stat().st_mode) == 0o700


def test_a_run_since_a_time_says_what_it_looked_at(command, connection, store, tmp_path):
    """Counts are of the new and of what belongs to it."""
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    connection.execute("UPDATE message_store.messages SET time = time - interval '2 days'")
    since = head(connection) + 1
    store.write([deposit("d2"), deposit("d3")], COMMANDS)
    drain(connection)
    junit = tmp_path / "junit.xml"
    done = command("reconcile", "bank:account", "--since", "1d", "--json", "--junit", str(junit))
    report = json.loads(done.stdout)
    (found,) = report["categories"]
    assert (report["since"], report["inOrder"]) == (since, True)
    assert (found["commands"], found["keys"], found["duplicates"], found["reserved"]) == (
        3,
        2,
        1,
        2,
    )
    shown = command("reconcile", "bank:account", "--since", str(since)).stdout
    assert f"This report covers the messages from global position {since} on" in shown
    assert "In order: every new command is reserved once" in shown
    assert f'<property name="since" value="{since}" />' in junit.read_text()


def test_a_run_since_a_position_reads_little_of_the_log(connection, store, reconcile):
    """The server counts what it fetches: for a new reissue, less than a tenth of all messages."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(2_000))], COMMANDS)
    drain(connection)
    connection.execute("VACUUM ANALYZE message_store.messages")
    since = head(connection) + 1
    store.write(deposit("d1000"), COMMANDS)
    drain(connection)
    fetched = [_fetched(connection)]
    for options in (["--since", since], []):
        assert reconcile(*options).status == 0
        fetched.append(_fetched(connection))
    of_new, of_all = fetched[1] - fetched[0], fetched[2] - fetched[1]
    assert of_all > head(connection)
    assert of_new < head(connection) / 10


def _fetched(connection):
    """Return how many messages the server has fetched for all connections that have ended."""
    until(lambda: connection.execute(OTHERS).fetchone() == (0,))
    ((fetched,),) = connection.execute(FETCHED)
    return fetched


def test_a_run_since_a_time_after_the_last_message_finds_nothing(command, connection, planted):
    """It counts nothing, and says from where on it looked."""
    done = command("reconcile", "bank:account", "--since", "9000-01-01", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["since"]) == (0, head(connection) + 1)
    assert [counts["commands"] for counts in report["categories"]] == [0]


def test_a_run_that_needs_all_messages_has_no_since(database_url, tmp_path):
    """Otherwise it would say that it looked at the new ones only."""
    for needs in ({"state": tmp_path}, {"archive": tmp_path}, {"details": True}):
        with pytest.raises(ReservationError, match="leave out its state, archive and details"):
            Run(account, "bank:account", EXAMPLES, database_url, since=1, **needs)


def test_an_output_that_cannot_be_made_is_named(command, tmp_path):
    """A folder in a file, or where nobody may write, is refused in one line."""
    (tmp_path / "file").touch()
    for impossible in (tmp_path / "file" / "x", "/proc/x"):
        done = command("reconcile", "bank:account", "--findings", str(impossible))
        assert done.returncode == 2
        assert f"The output {impossible} cannot be made" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--follow", "--details", "--html", "page.html"], "leave out --details, --html"),
        (
            ["--since", "1h", "--state", "state"],
            "looks only at what is new in the store; leave out --state",
        ),
        (["--since", "0"], "0 is not a global position; the first one is 1"),
        (["--since", "soon"], "'soon' is neither a date nor a time span"),
        (["--fail-on", "lost"], "is not a threshold: write name, name:N or name:N%"),
        (["--master", "spark://127.0.0.1:1"], "There is no Spark master at spark://127.0.0.1:1"),
        (["--master", "spark://nowhere"], "write it as spark://host:7077"),
        (["--remote", "127.0.0.1:1"], "write it as sc://host:15002"),
        (["--conf", "driver.memory"], "--conf takes KEY=VALUE"),
        (["--conf", "spark.hadoop.fs.s3a.secret.key=hunter2"], "looks like a credential"),
    ],
)
def test_a_job_that_cannot_run_says_so(command, tmp_path, arguments, said):
    """The error says what to do, repeats no secret, and nothing is left behind."""
    output = ["--findings", str(tmp_path / "out")] if "--follow" not in arguments else []
    done = command("reconcile", "bank:account", *arguments, *output)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())
    assert "hunter2" not in done.stderr
    assert not any(tmp_path.iterdir())


RENAMED = f"""
import sys; sys.path.append({str(EXAMPLES)!r})
from reservation import Key
from tests.apps.idempotence import purse

component = purse(add_key=Key("deposit_id", ignoring="time", former_key="deposit_id"))
"""


def test_a_reservation_under_its_former_name_is_that_of_the_key(
    reconcile, connection, store, tmp_path
):
    """A reservation under its former name is found; two names for a key are two."""
    component = purse(add_key=Key("deposit_id", per=None, ignoring="time"))
    store.write([deposit("d1"), deposit("d2")], PURSE)
    drain(connection, component)
    renamed = purse(add_key=Key("deposit_id", ignoring="time", former_key="deposit_id"))
    store.write([deposit("d1", time=LATER), deposit("d3"), deposit("d2", "99")], PURSE)
    drain(connection, renamed)
    store.write(deposit("d1"), "purseTransaction-123+d1")
    (tmp_path / "renamed.py").write_text(RENAMED)
    found = reconcile(app="renamed:component", app_dir=tmp_path)
    counted = {"commands": 5, "keys": 3, "duplicates": 1, "reserved": 3, "conflicts": 1}
    assert found.commands == counted | {"multiple": 1}
    assert ("multiple", head(connection)) in found.findings
