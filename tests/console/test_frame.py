"""The frame of the console: what is true of every page."""

import pytest

from cli.console.application import ENTRIES
from tests.console.conftest import form_token

PATHS = [entry.path for entry in ENTRIES]


@pytest.mark.parametrize("path", PATHS)
def test_every_page_answers_with_a_strict_policy(client, path):
    """No page may be framed, kept, or load anything that is not the console's own."""
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_signing_out_ends_the_session(client):
    """A cookie that was signed out is worth nothing, even if somebody kept it."""
    token, kept = form_token(client), dict(client.cookies)
    assert client.post("/sign-out", data={"form_token": token}).url.path == "/sign-in"
    client.cookies.update(kept)
    assert client.get("/", follow_redirects=False).status_code == 303
