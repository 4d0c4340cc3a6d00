"""The crash kit: what it refuses to run, and what its page says. The rest starts processes."""

import re

import pytest

from bank import account
from consumers.testing import BugKind, CrashKitError, crash_everywhere
from reservation import Component
from reservation.errors import AppPathError, DeclarationError, StoreError
from shooting_range.messages import Hit
from tests.apps import planted
from tests.support.controls import open_
from tests.support.pages import ROOT


def test_what_cannot_be_run_is_refused(server_url, database_url, store):
    """Each refusal names the thing and the way out, before anything is run."""
    own = Component("own", id="box_id")
    put = planted.commands(["own_id"])

    def refused(error, match, *arguments, **options):
        with pytest.raises(error, match=match):
            crash_everywhere(*arguments, **{"database_url": server_url} | options)

    refused(CrashKitError, "no commands to handle; give at least one", account, [])
    refused(CrashKitError, "at least two", account, [open_()], hash_seeds=[1, 1])
    refused(CrashKitError, "most_kills=-1 is negative", account, [open_()], most_kills=-1)
    refused(AppPathError, "give its app path, for example 'bank:account'", own, put)
    refused(AppPathError, "no module 'nowhere'", "nowhere:component", put)
    refused(DeclarationError, "account has no handler for Hit", account, [Hit("s", "1")])
    store.write(open_(), "account:command-1")
    refused(StoreError, "a store with messages", account, [open_()], database_url=database_url)


def test_the_table_of_the_page_has_every_kind():
    """docs/how-to/crash-test.md shows each kind with the way out that reports give."""
    page = (ROOT / "docs/how-to/crash-test.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| .* \| (.*) \|$", page, re.MULTILINE)
    assert dict(rows[1:]) == {str(kind): kind.way_out for kind in BugKind}
