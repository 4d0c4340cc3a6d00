"""The crash kit finds planted bugs, and nothing in handlers without one.

Each kind of bug, every strategy and the examples: `tests/soak/test_crash_kit.py`.
"""

from consumers.testing import Kind, crash_everywhere
from tests.apps import planted

BUGS = {
    "own_id": Kind.OWN_ID,
    "changes_event": Kind.MUTATION,
    "ignores_version": Kind.IGNORED_VERSION,
    "leaves_lock": Kind.LEFT_RUNNING,
}


def test_planted_bugs_are_found_and_nothing_else(server_url):
    """Each bug is found by its kind, in its handler, beside handlers that use the context well."""
    report = crash_everywhere(
        "tests.apps.planted:sample",
        planted.commands(planted.SAMPLE),
        database_url=server_url,
        prepare=planted.prepare,
        most_kills=2,
        check=False,
    )
    known = {(f"tests.apps.planted.{name}", kind) for name, kind in BUGS.items()}
    assert {(one.handler, one.kind) for one in report.findings} == known
    assert report.kills == 2
