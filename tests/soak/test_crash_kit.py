"""The crash kit: what it finds in handlers with bugs, and that it finds nothing in good ones."""

import threading

import pytest

from consumers.testing import BugKind, CrashFindings, CrashReport, crash_everywhere
from shooting_range.messages import FireAt, Hit, Missed, MoveTarget
from shop.messages import CancelUnpaid, Capture, Captured, Declined, Place, Refund
from shop.provider import Server
from tests.apps import orm, planted
from tests.soak import crash_tested
from tests.support.controls import deposit, open_, withdraw

BUGS = {
    "own_id": BugKind.OWN_ID,
    "own_clock": BugKind.OWN_CLOCK,
    "writes_file": BugKind.OUTSIDE_EFFECT,
    "counts": BugKind.GLOBAL_STATE,
    "own_connection": BugKind.OWN_CONNECTION,
    "any_order": BugKind.RANDOM_ORDER,
    "folder_order": BugKind.RANDOM_ORDER,
    "ignores_version": BugKind.IGNORED_VERSION,
    "overwrites": BugKind.IGNORED_VERSION,
    "changes_command": BugKind.MUTATION,
    "changes_entity": BugKind.MUTATION,
    "changes_event": BugKind.MUTATION,
    "changes_default": BugKind.MUTATION,
    "leaves_thread": BugKind.LEFT_RUNNING,
    "leaves_process": BugKind.LEFT_RUNNING,
    "leaves_lock": BugKind.LEFT_RUNNING,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give the folder that planted handlers write to."""
    folder = tmp_path_factory.mktemp("planted")
    for name in "abc":
        (folder / name).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_FOLDER", str(folder))
        yield folder


def test_each_planted_bug_is_found_and_nothing_else(server_url, folder):
    """Each bug is found by its kind, in its handler, with the place and the way out."""
    report: CrashReport = crash_everywhere(
        "tests.apps.planted:planted",
        planted.commands(planted.HANDLERS),
        database_url=server_url,
        prepare=planted.prepare,
        most_kills=3,
        check=False,
    )
    known = {(f"tests.apps.planted.{name}", kind) for name, kind in BUGS.items()}
    known.add(("tests.apps.planted.leaves_process", BugKind.OUTSIDE_EFFECT))
    assert {(one.handler, one.kind) for one in report.findings} == known
    for finding in report.findings:
        assert finding.where
        assert f"{finding.what}\n  Way out: {finding.way_out}" in str(report)


def test_nothing_is_found_in_handlers_that_use_the_context(server_url, folder):
    """A handler may read and write tables and streams through its context."""
    report = crash_everywhere(
        planted.good,
        planted.commands(planted.GOOD),
        database_url=server_url,
        prepare=planted.prepare,
        most_kills=4,
    )
    assert report.findings == ()


def test_nothing_is_found_in_handlers_that_are_to_be_called_again(server_url):
    """A handler with retry= may raise because another transaction holds a lock."""
    report = crash_everywhere(
        planted.locking,
        planted.commands(planted.LOCKING),
        database_url=server_url,
        prepare=planted.prepare,
        most_kills=4,
    )
    assert report.findings == ()


def test_a_bug_is_found_in_a_handler_that_is_to_be_called_again(server_url):
    """One that asks for the wrong lock overwrites what another handler has written."""
    report = crash_everywhere(
        planted.locking_wrong,
        planted.commands(planted.LOCKING_WRONG),
        database_url=server_url,
        prepare=planted.prepare,
        most_kills=1,
        check=False,
    )
    assert {(one.handler, one.kind) for one in report.findings} == {
        ("tests.apps.planted.tries_own_lock", BugKind.IGNORED_VERSION)
    }


def test_swallowed_errors_and_repeated_effects_are_found(server_url, folder):
    """An error that a handler swallows is found, and an effect outside that comes twice."""
    receipts = folder / "receipts"
    receipts.unlink(missing_ok=True)
    with pytest.raises(CrashFindings, match="swallowed exception") as raised:
        crash_everywhere(
            planted.swallowing,
            planted.commands(planted.SWALLOWING),
            database_url=server_url,
            prepare=planted.prepare,
            allow=[str(receipts)],
            effects=lambda: receipts.read_text() if receipts.exists() else "",
            reset=lambda: receipts.unlink(missing_ok=True),
            most_kills=8,
        )
    report = raised.value.report
    assert {(one.handler, one.kind) for one in report.findings} == {
        ("tests.apps.planted.swallows", BugKind.SWALLOWED_ERROR),
        ("tests.apps.planted.goes_on", BugKind.SWALLOWED_ERROR),
        ("the component swallowing", BugKind.OUTSIDE_EFFECT),
    }
    assert "what effects= returns differs" in str(report)


GOOD = {
    "shooting_range:shooting_range": [
        MoveTarget("1", 5),
        FireAt("1", 5),
        FireAt("1", 7),
        MoveTarget("2", 1),
        FireAt("2", 1),
        FireAt("1", 3),
    ],
    "shooting_range:leader_board": [Hit("s1", "1"), Missed("s2", "2"), Hit("s3", "1")],
    "shop.orders:orders": [
        Place("o1", "ann", "lamp"),
        Place("o2", "bob", "book"),
        Place("o3", "eve", "nothing"),
        Captured("o1", "o1", 4900, "r"),
        CancelUnpaid("o2"),
        Captured("o2", "o2", 1900, "r"),
        Declined("o1", "o1", "broke"),
    ],
    "bank:account": [
        open_(),
        open_(account="2"),
        deposit(),
        deposit("d2", account="2"),
        withdraw(),
    ],
    **{f"tests.soak.crash_tested:{name}": sent for name, sent in crash_tested.SENT.items()},
}


@pytest.mark.parametrize("app", GOOD)
def test_nothing_is_found_in_good_components(server_url, app):
    """Examples and every strategy pass, killed at each of their statements and calls."""
    report = crash_everywhere(app, GOOD[app], database_url=server_url, most_kills=1000)
    assert report.findings == ()
    assert report.kills > report.statements


def test_nothing_is_found_in_handlers_with_an_orm(server_url):
    """Rows of SQLAlchemy and Django are there once with their events, wherever they are killed."""
    kinds, numbers = (orm.Count, orm.Shelve), range(2)
    commands = [kind(shelf, f"{shelf}{n}") for n in numbers for shelf in "ab" for kind in kinds]
    report = crash_everywhere(
        orm.library, commands, database_url=server_url, prepare=orm.prepare, most_kills=60
    )
    assert report.findings == ()


def test_nothing_is_found_in_calls_with_a_key(server_url, tmp_path, monkeypatch):
    """A provider that is called with context.id has the same calls, wherever the shop is killed."""
    provider = Server(0, str(tmp_path / "provider.db"), 0, 0)
    serving = threading.Thread(target=provider.serve_forever, daemon=True)
    serving.start()
    monkeypatch.setenv("SHOP_PROVIDER", f"http://127.0.0.1:{provider.server_port}")
    capture = Capture("o1", "o1", "ann", 100)
    commands = [capture, Capture("o2", "o2", "broke", 9), Refund("r1", "o1", 50), capture]
    try:
        report = crash_everywhere(
            "shop.payments:payments",
            commands,
            database_url=server_url,
            effects=provider.ledger.entries,
            most_kills=30,
        )
    finally:
        provider.shutdown()
        provider.server_close()
        serving.join()
    assert report.findings == ()
    assert len(provider.ledger.entries()) == 2
