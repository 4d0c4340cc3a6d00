"""Who comes in, and what no other site can do."""

import re

import pytest
from starlette.testclient import TestClient

from cli.console.reading.keyset import Cursor, slice_of
from cli.console.rendering import render, visible
from cli.console.security.attempts import MOST, WINDOW, Attempts
from cli.console.security.guard import Access
from cli.console.security.sessions import LIFETIME, Sessions
from cli.console.security.sign_in import ProxySignIn, TokenSignIn, networks
from tests.console.conftest import TOKEN, built, form_token, signed_in
from tests.console.filling import HOSTILE

PROXY = Access(
    ProxySignIn("X-Forwarded-User", b"secret"), ("testserver",), networks(["10.0.0.5"]), "c"
)


@pytest.fixture
def stranger(seen_url):
    """Give a client that has not signed in."""
    with TestClient(built(seen_url)) as client:
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


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(stranger):
    """Over https it is also never sent without."""
    done = stranger.post("/sign-in", data={"token": TOKEN}, follow_redirects=False)
    cookie = done.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    stranger.base_url = "https://testserver"
    done = stranger.post("/sign-in", data={"token": TOKEN}, follow_redirects=False)
    assert "Secure" in done.headers["set-cookie"].split("; ")


def test_a_wrong_token_can_be_tried_a_few_times(stranger):
    """After that, even the right one has to wait."""
    for _ in range(MOST):
        assert stranger.post("/sign-in", data={"token": "wrong"}).status_code == 403
    answer = stranger.post("/sign-in", data={"token": TOKEN})
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= WINDOW


def test_clients_behind_a_proxy_wait_for_themselves(seen_url):
    """Who guesses there keeps nobody else out, and the wish to go somewhere is kept."""
    access = Access(TokenSignIn(TOKEN), ("testserver",), networks(["10.0.0.5"]), "c")
    with TestClient(built(seen_url, access=access), client=("10.0.0.5", 1)) as client:
        guess = {"headers": {"x-forwarded-for": "1.1.1.1, 2.2.2.2"}}
        for _ in range(MOST):
            answer = client.post("/sign-in", data={"token": "x", "next": "/consumers"}, **guess)
            assert 'name="next" value="/consumers"' in answer.text
        assert client.post("/sign-in", data={"token": TOKEN}, **guess).status_code == 429
        made_up = [("x-forwarded-for", "3.3.3.3"), ("x-forwarded-for", "2.2.2.2")]
        answer = client.post("/sign-in", data={"token": TOKEN}, headers=made_up)
        assert answer.status_code == 429
        signed_in(client)


def test_attempts_are_counted_by_client_and_forgotten():
    """The time of the window has to pass, and nobody else waits."""
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(MOST):
        attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == WINDOW
    assert attempts.wait("10.0.0.2") == 0
    now[0] = WINDOW
    assert attempts.wait("10.0.0.1") == 0


def test_a_token_in_the_address_is_only_for_consoles_that_print_it(stranger):
    """The token of a file never belongs into an address."""
    assert stranger.get(f"/sign-in?token={TOKEN}").url.path == "/sign-in"
    assert not stranger.cookies


def test_another_site_uses_up_no_attempts(seen_url):
    """Its pages can load the address with wrong tokens; whoever has the right one is let in."""
    access = Access(TokenSignIn(TOKEN, in_address=True), ("testserver",), (), "c")
    with TestClient(built(seen_url, access=access)) as client:
        for _ in range(MOST):
            wrong = client.get("/sign-in?token=x", headers={"sec-fetch-site": "cross-site"})
            assert wrong.status_code == 200
        client.get(f"/sign-in?token={TOKEN}")
        assert client.cookies
        client.cookies.clear()
        for _ in range(MOST):
            assert client.get("/sign-in?token=x").status_code == 403
        assert client.get(f"/sign-in?token={TOKEN}").status_code == 429


def test_sessions_end_and_cannot_be_forged():
    """A changed cookie, one of another secret and an old one are worth nothing."""
    now = [1000.0]
    sessions = Sessions(b"secret", lambda: now[0])
    begun, cookie = sessions.begin("anna")
    assert sessions.of(cookie) == begun
    body, _, signature = cookie.partition(".")
    for forged in ("", ".", body, f"{body}x.{signature}", f"{body}.{signature[:-1]}", "é.é", None):
        assert sessions.of(forged) is None
    assert Sessions(b"another", lambda: now[0]).of(cookie) is None
    now[0] += LIFETIME
    assert sessions.of(cookie) is None


def test_another_token_ends_all_sessions():
    """A restart of the console with the same token keeps them."""
    _, cookie = Sessions(TokenSignIn("one" * 8).secret).begin("anna")
    assert Sessions(TokenSignIn("one" * 8).secret).of(cookie)
    assert Sessions(TokenSignIn("two" * 8).secret).of(cookie) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://testserver:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_refused(client, headers):
    """Even one that carries the right token."""
    answer = client.post("/sign-out", data={"form_token": form_token(client)}, headers=headers)
    assert answer.status_code == 403
    assert client.get("/", follow_redirects=False).status_code == 200


@pytest.mark.parametrize("token", [None, "", "0" * 64])
def test_a_form_needs_the_token_of_its_session(client, token):
    """Without it nothing is done."""
    answer = client.post("/sign-out", data={} if token is None else {"form_token": token})
    assert answer.status_code == 403
    assert "outdated" in answer.text
    assert client.get("/", follow_redirects=False).status_code == 200


def test_the_token_of_another_session_is_refused(seen_url, client):
    """Somebody else's form is not one's own."""
    with TestClient(built(seen_url)) as other:
        theirs = form_token(signed_in(other, "bert"))
    assert client.post("/sign-out", data={"form_token": theirs}).status_code == 403


def test_another_host_name_is_refused(client):
    """A name that somebody else's DNS points here sees nothing."""
    answer = client.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert client.get("/", headers={"host": "TestServer:8765"}).status_code == 200


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999999999", str(65 * 2**20)])
def test_a_form_says_how_long_it_is(client, length):
    """A form that is too long is refused before it is read."""
    answer = client.post("/sign-out", content=b"", headers={"content-length": length})
    assert answer.status_code in (411, 413)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_no_other_method_is_answered(client, method):
    """Pages are read, and forms are sent."""
    assert client.request(method, "/").status_code == 405


def test_the_proxy_says_who_is_signed_in(seen_url):
    """Its name is what is recorded; a header of anybody else is ignored."""
    with TestClient(built(seen_url, access=PROXY), client=("10.0.0.5", 1)) as client:
        answer = client.get("/", headers={"x-forwarded-user": "anna", "x-forwarded-proto": "https"})
        assert answer.status_code == 200
        assert "anna" in answer.text
        assert "Sign out" not in answer.text
        assert "Secure" in answer.headers["set-cookie"]
        first = re.search(r'form_token" value="(\w+)', answer.text)
        bert = client.get("/", headers={"x-forwarded-user": "bert"})
        assert "bert" in bert.text
        assert "anna" not in bert.text
        assert first is None
        for headers in ([], [("x-forwarded-user", "a"), ("x-forwarded-user", "b")]):
            assert client.get("/", headers=headers).status_code == 403
        for name in ("Łukasz", "Jürgen"):
            answer = client.get("/", headers=[(b"x-forwarded-user", name.encode())])
            assert f'<span class="tag">{name}</span>' in answer.text
        answer = client.get("/", headers=[(b"x-forwarded-user", "Jürgen".encode("latin-1"))])
        assert "Jürgen" in answer.text
    with TestClient(built(seen_url, access=PROXY), client=("10.0.0.6", 1)) as client:
        assert client.get("/", headers={"x-forwarded-user": "anna"}).status_code == 403


def test_what_data_holds_is_never_markup():
    """It is escaped, and what cannot be seen is made visible."""
    shown = render("problem.html", **shown_in(HOSTILE))
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202eevil\\u200b&amp;amp;&#39;&#34;" in shown
    assert "{{ 7 * 7 }}" in shown
    assert visible("a\tb\nc\x1b[1m\x85") == "a\tb\nc\\x1b[1m\\x85"


def shown_in(text):
    """Return what a page with a text takes."""
    return {"title": text, "text": text, "retry": False, "session": None, "console": None}


ROWS = [(number // 2, f"row-{number}") for number in range(7)]


def test_pages_by_keys_go_forth_and_back():
    """Every row is on one page, in order, in both directions."""
    seen, cursor = [], Cursor()
    while True:
        slice_ = slice_of(look(cursor, 3), cursor, 3, key=list)
        seen.append(list(slice_.rows))
        if slice_.after is None:
            break
        cursor = Cursor.of({"after": slice_.after}, parts=2)
    assert [row for rows in seen for row in rows] == ROWS
    back = Cursor.of({"before": slice_.before}, parts=2)
    before = slice_of(look(back, 3), back, 3, key=list)
    assert list(before.rows) == seen[1]
    first = Cursor.of({"before": before.before}, parts=2)
    assert slice_of(look(first, 3), first, 3, key=list).before is None


def look(cursor, limit):
    """Return rows as a query of keys does, one more than the page has."""
    if cursor.key is None:
        return ROWS[: limit + 1]
    key = tuple(cursor.key)
    if cursor.backward:
        return [row for row in reversed(ROWS) if row < key][: limit + 1]
    return [row for row in ROWS if row > key][: limit + 1]


@pytest.mark.parametrize(
    "text", ["", "x", "!!", "W10", "eyJhIjoxfQ", "WyJcdWQ4MDAiLDFd", "WzFlOTk5LDFd"]
)
def test_a_cursor_of_nobody_is_the_first_page(text):
    """Whatever an address holds, the page is shown."""
    assert Cursor.of({"after": text}, parts=2) == Cursor()
