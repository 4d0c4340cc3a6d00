"""The crash kit finds planted bugs, and nothing in handlers without one.

Each kind of bug, every strategy and the other examples: `tests/soak/test_crash_kit.py`.
"""

import pytest

from bank import account
from consumers.testing import BugKind, crash_everywhere
from tests.apps import orm, planted
from tests.support.controls import close, deposit, open_, withdraw

BUGS = {
    ("tests.apps.planted.own_id", BugKind.OWN_ID),
    ("tests.apps.planted.changes_event", BugKind.MUTATION),
    ("tests.apps.planted.ignores_version", BugKind.IGNORED_VERSION),
    ("tests.apps.planted.leaves_lock", BugKind.LEFT_RUNNING),
}
PLANTED = "tests.apps.planted:sample"
OF_BANK = [
    open_(),
    open_(account="2"),
    deposit(),
    deposit("d2", account="2"),
    withdraw(),
    deposit(),
    close(),
]

OF_LIBRARY = [
    orm.Count("a", "a1"),
    orm.Shelve("a", "a1"),
    orm.Count("b", "b1"),
    orm.Count("a", "a2"),
]


@pytest.mark.parametrize(
    ("component", "commands", "prepare", "kills", "known", "duplicates"),
    [
        (
            "tests.apps.planted:sample",
            planted.commands(planted.SAMPLE),
            planted.prepare,
            2,
            BUGS,
            0,
        ),
        (account, OF_BANK, None, 8, set(), 1),
        (orm.library, OF_LIBRARY, orm.prepare, 6, set(), 0),
        (orm.loans, [orm.Lend("a"), orm.Lend("b")], orm.prepare, 8, set(), 0),
    ],
    ids=["planted", "bank", "orm", "own connection"],
)
def test_planted_bugs_are_found_and_nothing_else(
    server_url, component, commands, prepare, kills, known, duplicates
):
    """Each bug is found by its kind, in its handler, beside handlers that use the context well."""
    report = crash_everywhere(
        component,
        commands,
        database_url=server_url,
        prepare=prepare,
        most_kills=kills,
        check=False,
    )
    assert {(one.handler, one.kind) for one in report.findings} == known
    assert report.kills == kills
    assert report.counts["duplicate"] == duplicates
