"""Who comes in, and what no other site can do."""

import json
from base64 import b64encode

import pytest
from starlette.testclient import TestClient

from tests.console.conftest import (
    BEHIND_PROXY,
    BY_PROXY,
    PROXY,
    TOKEN,
    TOO_LONG,
    built,
    signed_in,
)


@pytest.fixture
def stranger(seen_url):
    """Give a client that has not signed in."""
    with TestClient(built(seen_url), headers={"origin": "http://testserver"}) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/consumers", "/dead-letters", "/nothing"])
def test_nothing_is_shown_before_the_sign_in(stranger, path):
    """Every address leads to the sign-in, and back to where one wanted to go."""
    answer = stranger.get(path)
    assert answer.url.path == "/sign-in"
    assert f'name="next" value="{path}"' in answer.text
    assert "order" not in answer.text
    done = stranger.post("/sign-in", data={"token": TOKEN, "next": path}, follow_redirects=False)
    assert done.headers["location"] == path


@pytest.mark.parametrize(
    "to",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "x",
        "//[",
        "//\u2100",
        "http://[",
    ],
)
def test_the_sign_in_leads_to_no_other_site(stranger, to):
    """A link that names another site, or nothing at all, leads to the first page."""
    assert 'name="next" value="/"' in stranger.get("/sign-in", params={"next": to}).text
    done = stranger.post("/sign-in", data={"token": TOKEN, "next": to}, follow_redirects=False)
    assert done.headers["location"] == "/"


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(stranger, seen_url):
    """Behind a proxy, which speaks TLS with browsers, it is also never sent without."""
    done = stranger.post("/sign-in", data={"token": TOKEN}, follow_redirects=False)
    parts = done.headers["set-cookie"].lower().split("; ")
    assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= set(parts)
    assert "secure" not in parts
    headers = {"origin": "https://testserver", "x-forwarded-proto": "https"}
    with TestClient(built(seen_url, access=BEHIND_PROXY), client=(PROXY, 1)) as behind:
        done = behind.post(
            "/sign-in", data={"token": TOKEN}, headers=headers, follow_redirects=False
        )
    assert done.status_code == 303
    assert "secure" in done.headers["set-cookie"].lower().split("; ")


def test_wrong_tokens_keep_nobody_out(stranger):
    """Whoever guesses may have the same address, behind a proxy for example."""
    for _ in range(20):
        answer = stranger.post("/sign-in", data={"token": "wrong", "next": "/consumers"})
        assert answer.status_code == 403
        assert 'name="next" value="/consumers"' in answer.text
    assert signed_in(stranger)


def test_a_token_in_the_address_is_only_for_consoles_that_print_it(stranger):
    """The token of a file never belongs into an address."""
    assert stranger.get(f"/sign-in?token={TOKEN}").url.path == "/sign-in"
    assert not stranger.cookies


def test_a_session_cannot_be_forged(client, seen_url):
    """A changed cookie, and one of another process, are worth nothing."""
    (name, cookie), *_ = client.cookies.items()
    body, *signature = cookie.split(".")
    other = b64encode(json.dumps({"actor": "bert", "id": "1"}).encode()).decode()
    for forged in ("x", body, f"{body}x.{'.'.join(signature)}", f"{other}.{'.'.join(signature)}"):
        client.cookies = {name: forged}
        assert client.get("/consumers").url.path == "/sign-in"
    with TestClient(built(seen_url), cookies={name: cookie}) as restarted:
        assert restarted.get("/consumers").url.path == "/sign-in"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://testserver:81"},
        {"origin": "https://testserver"},
    ],
)
def test_a_form_of_another_site_is_refused(client, headers):
    """Even where a browser sends the cookie with it."""
    answer = client.post("/sign-out", headers=headers)
    assert answer.status_code == 403
    assert client.get("/", follow_redirects=False).status_code == 200


def test_a_form_without_an_origin_is_refused(client):
    """No browser of today sends one."""
    del client.headers["origin"]
    assert client.post("/sign-out").status_code == 403
    assert client.get("/", follow_redirects=False).status_code == 200


def test_another_host_name_is_refused(client):
    """A name that somebody else's DNS points here sees nothing."""
    answer = client.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 400
    assert client.get("/", headers={"host": "TestServer:8765"}).status_code == 200


def test_a_form_that_is_too_long_is_refused(stranger):
    """Before anybody has signed in."""
    answer = stranger.post("/sign-in", data={"token": TOO_LONG})
    assert answer.status_code == 413


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_no_other_method_is_answered(client, method):
    """Pages are read, and forms are sent."""
    assert client.request(method, "/").status_code == 405


def test_the_proxy_says_who_is_signed_in(seen_url):
    """Its name is what is recorded; it is the only one that may connect."""
    with TestClient(built(seen_url, access=BY_PROXY), client=(PROXY, 1)) as client:
        forwarded = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}
        answer = client.get("/", headers={"x-forwarded-user": "anna", **forwarded})
        assert answer.status_code == 200
        assert "anna" in answer.text
        assert "Sign out" not in answer.text
        bert = client.get("/", headers={"x-forwarded-user": "bert"})
        assert "bert" in bert.text
        assert "anna" not in bert.text
        for headers in ([], [("x-forwarded-user", "a"), ("x-forwarded-user", "b")]):
            assert client.get("/", headers=headers).status_code == 403
        for name in ("Łukasz", "Jürgen"):
            answer = client.get("/", headers=[(b"x-forwarded-user", name.encode())])
            assert f'<span class="tag">{name}</span>' in answer.text
        answer = client.get("/", headers=[(b"x-forwarded-user", "Jürgen".encode("latin-1"))])
        assert "Jürgen" in answer.text
    for other in ("10.0.0.6", "somewhere"):
        with TestClient(built(seen_url, access=BY_PROXY), client=(other, 1)) as client:
            headers = {"x-forwarded-user": "anna", "x-forwarded-for": "10.0.0.5"}
            assert client.get("/", headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/", "/consumers", "/dead-letters", "/story", "/nothing"])
def test_every_page_answers_with_a_strict_policy(client, path):
    """No page may be framed, kept, or load anything that is not the console's own."""
    answer = client.get(path)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_signing_out_ends_the_session(client):
    """A cookie that was signed out is worth nothing, even if somebody kept it."""
    kept = dict(client.cookies)
    assert client.post("/sign-out").url.path == "/sign-in"
    client.cookies.update(kept)
    assert client.get("/", follow_redirects=False).status_code == 303
