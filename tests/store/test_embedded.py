"""The address of an embedded server that does not run any more."""

import os

import pytest

from reservation import MessageStore
from reservation.errors import DatabaseUnavailableError


def test_a_server_that_has_stopped_is_told_apart(monkeypatch):
    """Who uses its address after that gets to know when it runs."""
    monkeypatch.setenv("XDG_DATA_HOME", "/tmp/home")
    with pytest.raises(DatabaseUnavailableError, match="stops with the last command"):
        MessageStore.open("postgresql:///postgres?host=/tmp/home/reservation/postgres")
    with pytest.raises(DatabaseUnavailableError, match="Check that it runs"):
        MessageStore.open("postgresql:///postgres?host=/tmp/nowhere")


def test_a_user_without_a_home_is_told_the_same(monkeypatch):
    """A container may run as a user that has no home."""
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(DatabaseUnavailableError, match="Check that it runs"):
        MessageStore.open("postgresql:///postgres?host=/tmp/nowhere&user=nobody")
