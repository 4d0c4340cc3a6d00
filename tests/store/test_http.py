"""``reservation.http``: an endpoint with an `Idempotency-Key` answers a request once."""

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from psycopg import connect, conninfo
from psycopg.errors import InsufficientPrivilege
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from structlog.testing import capture_logs

import consumers
from reservation.errors import DeclarationError
from reservation.http import KeyedRequest
from tests.apps.http_app import (
    PATIENCE,
    Deposit,
    Open,
    account,
    bank,
    consuming,
    fastapi_app,
    key_headers,
    plain,
    serving,
    starlette_app,
)
from tests.store.builders import as_login, grant, new_role
from tests.support.commands import invoke_cli
from tests.support.consuming import until
from tests.support.proxy import Cut, Proxy

__all__ = ["new_role"]  # a fixture

DEPOSITS = "/accounts/123/deposits"
APPS = {"starlette": starlette_app, "fastapi": fastapi_app}


@pytest.fixture(name="make", params=APPS, ids=list(APPS))
def _make(request):
    """Give a function that makes the application, with either framework."""
    return APPS[request.param]


@pytest.fixture(name="client")
def _client():
    """Give a client that makes a connection for each request, as a failure ends it."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(timeout=PATIENCE, limits=limits) as client:
        yield client


def deposit(client, address, key="k", tenant="alice", *, amount=1):
    """Send a request to deposit an amount; return the answer."""
    headers = key_headers(key, tenant)
    return client.post(address + DEPOSITS, json={"amount": amount}, headers=headers)


def whole(answer):
    """Return all of an answer but what the server adds and what is not stored."""
    left_out = {b"date", b"server", b"set-cookie"}
    headers = [(name.lower(), value) for name, value in answer.headers.raw]
    return answer.status_code, [h for h in headers if h[0] not in left_out], answer.content


def problem(answer):
    """Return the status and the kind of a problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    shown = answer.json()
    assert shown["status"] == answer.status_code
    assert shown["title"]
    assert shown["detail"]
    return answer.status_code, shown["type"].removeprefix("urn:reservation:problem:")


def sent(connection):
    """Return how many commands are stored."""
    return connection.execute(
        "SELECT count(*) FROM message_store.messages "
        "WHERE message_store.category(stream_name) = 'account:command'"
    ).fetchone()[0]


def balance(connection):
    """Return the sum of all that was deposited."""
    return connection.execute(
        "SELECT coalesce(sum((data->>'amount')::int), 0) FROM message_store.messages "
        "WHERE type = 'Deposited'"
    ).fetchone()[0]


def test_a_request_is_answered_once(make, database_url, connection, client):
    """The same request with the same key gets the same bytes, and the command is stored once."""
    with bank(make, database_url) as address:
        answers = [deposit(client, address, amount=10) for _ in range(3)]
        other = deposit(client, address, "k2", amount=10)
    assert answers[0].status_code == 201
    assert whole(answers[0]) == whole(answers[1]) == whole(answers[2])
    assert whole(other) != whole(answers[0])
    assert (sent(connection), balance(connection)) == (2, 20)


def test_a_key_is_the_same_with_quotes_and_without(database_url, connection, client):
    """A client that stops quoting its keys gets its answers nevertheless."""
    with bank(starlette_app, database_url) as address:
        quoted = deposit(client, address)
        headers = {**key_headers("k"), "Idempotency-Key": "k"}
        bare = client.post(address + DEPOSITS, json={"amount": 1}, headers=headers)
    assert whole(quoted) == whole(bare)


def test_an_answer_outlives_a_deployment(make, database_url, client):
    """A version that renders otherwise gives the stored answer, and renders new ones."""
    with consuming(database_url):
        with serving(make(database_url, version="1")) as address:
            first = deposit(client, address)
        with serving(make(database_url, version="2")) as address:
            again = deposit(client, address)
            new = deposit(client, address, "n")
    assert whole(again) == whole(first)
    assert (first.json()["version"], new.json()["version"]) == ("1", "2")


def test_headers_of_the_moment_are_not_stored(database_url, client):
    """Date and cookies come with the first answer only; other headers are stored as they are."""
    with bank(starlette_app, database_url) as address:
        first, again = (deposit(client, address) for _ in range(2))
    assert "set-cookie" in first.headers
    assert "set-cookie" not in again.headers
    assert "then" in first.headers.get_list("date")
    assert "then" not in again.headers.get_list("date")
    assert again.headers["x-latin"] == first.headers["x-latin"] == "é"


def test_a_key_belongs_to_one_request(database_url, connection, client):
    """Another endpoint, entity, query or content with the key of a request is refused."""
    other = Route("/other", plain(), methods=["POST", "PATCH"])
    with bank(starlette_app, database_url, routes=[other]) as address:
        headers = key_headers("k")
        first = client.post(address + DEPOSITS, json={"amount": 1}, headers=headers)
        assert first.status_code == 201
        for path, content in (
            (DEPOSITS, {"amount": 2}),
            ("/accounts/124/deposits", {"amount": 1}),
            (DEPOSITS + "?a=1", {"amount": 1}),
            ("/other", {"amount": 1}),
        ):
            answer = client.post(address + path, json=content, headers=headers)
            assert problem(answer) == (422, "key-reused")
        one = client.post(address + "/other", headers=key_headers("m"))
        assert one.status_code == 200
        assert problem(client.patch(address + "/other", headers=key_headers("m"))) == (
            422,
            "key-reused",
        )
    assert sent(connection) == 1


def test_a_missing_key_is_refused_where_one_is_required(database_url, client):
    """Without a key 400, but not where none is required, nor for a method that takes no part."""
    routes = [Route("/free", plain("free"), methods=["GET", "POST"])]
    address_of = starlette_app(
        database_url, routes=routes, required=lambda request: request.url.path != "/free"
    )
    with serving(address_of) as address:
        missing = client.post(address + DEPOSITS, json={}, headers={"Authorization": "Bearer a"})
        assert problem(missing) == (400, "key-missing")
        assert client.post(address + "/free").text == "free"
        assert client.get(address + "/free", headers=key_headers("")).text == "free"
        assert problem(client.post(address + "/free", headers=key_headers(""))) == (
            400,
            "key-invalid",
        )
    with serving(starlette_app(database_url, routes=routes)) as address:
        assert problem(client.post(address + "/free")) == (400, "key-missing")
        assert client.get(address + "/free").text == "free"


def test_nobody_gets_the_answer_of_another(database_url, connection, client):
    """Tenants with the same key, or with keys made to collide, have nothing in common."""
    requests = [
        *(("alice", "k"), ("bob", "k")),
        *(("alice", "x:k"), ("alice:x", "k")),
        *(("alice", "+k"), ("alice+", "k")),
        *(("alice", '\\",\\"k'), ('alice","', "k")),
    ]
    with bank(starlette_app, database_url) as address:
        answers = [deposit(client, address, key, tenant) for tenant, key in requests]
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["drawn"] for answer in answers}) == len(requests)
    assert balance(connection) == len(requests)


def test_who_is_not_authenticated_is_refused(database_url, client):
    """A scope of None is 401, and an exception of the scope is its own status."""

    async def refuse(request):
        raise HTTPException(403, "not you", {"X-Why": "a"})

    with serving(starlette_app(database_url)) as address:
        answer = client.post(address + DEPOSITS, headers={"Idempotency-Key": "k"})
        assert problem(answer) == (401, "not-authenticated")
    with serving(starlette_app(database_url, scope=refuse)) as address:
        answer = client.post(address + DEPOSITS, headers={"Idempotency-Key": "k"})
        assert problem(answer) == (403, "scope-refused")
        assert (answer.headers["x-why"], answer.json()["detail"]) == ("a", "not you")


@pytest.mark.parametrize("found", ["", 7])
def test_a_scope_that_is_no_text_is_an_error(database_url, client, found):
    """A scope function that returns no text is a mistake, and nothing is answered with it."""
    app = starlette_app(database_url, scope=lambda request: found)
    with serving(app) as address:
        answer = deposit(client, address)
    assert answer.status_code == 500


def test_a_request_in_progress_is_409(database_url, client):
    """While a server is answering, that one and every other refuse the same request."""
    entered, let_go, calls = threading.Event(), threading.Event(), []

    async def wait(request):
        calls.append(request)
        entered.set()
        await asyncio.to_thread(let_go.wait, PATIENCE)
        return JSONResponse({"drawn": uuid.uuid4().hex})

    routes = [Route("/w", wait, methods=["POST"])]
    with (
        serving(starlette_app(database_url, routes=routes)) as one,
        serving(starlette_app(database_url, routes=routes)) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        headers = key_headers("k")
        first = thread.submit(client.post, f"{one}/w", headers=headers)
        assert entered.wait(PATIENCE)
        for address in (one, other):
            meanwhile = client.post(f"{address}/w", headers=headers)
            assert problem(meanwhile) == (409, "in-progress")
            assert meanwhile.headers["retry-after"] == "1"
            reused = client.post(f"{address}/w", headers=headers, json={})
            assert problem(reused) == (422, "key-reused")
        let_go.set()
        answer = first.result()
        assert answer.status_code == 200
        for address in (one, other):
            assert whole(client.post(f"{address}/w", headers=headers)) == whole(answer)
    assert len(calls) == 1


def test_past_the_timeout_the_answer_is_a_link_that_works(make, database_url, connection, client):
    """A pending command is 202 with a link, scoped alike; afterwards link and request agree."""
    with serving(make(database_url, timeout=0.05)) as address:
        accepted = deposit(client, address, amount=10)
        assert accepted.status_code == 202
        assert accepted.json() == {"state": "pending", "link": accepted.headers["location"]}
        link = address + accepted.headers["location"]
        mine, theirs = key_headers("x"), key_headers("x", "bob")
        assert client.get(link, headers=mine).status_code == 202
        assert problem(client.get(link, headers=theirs)) == (404, "request-unknown")
        assert problem(client.get(link)) == (401, "not-authenticated")
        assert deposit(client, address, amount=10).status_code == 202
        consumers.drain(account, database_url)
        answer = client.get(link, headers=mine)
        assert answer.status_code == 201
        assert whole(client.get(link, headers=mine)) == whole(answer)
        assert whole(deposit(client, address, amount=10)) == whole(answer)
        assert problem(client.get(link, headers=theirs)) == (404, "request-unknown")
    assert (sent(connection), balance(connection)) == (1, 10)
    kept = "SELECT parked, parked_content, status FROM reservation.http_requests"
    assert connection.execute(kept).fetchall() == [(None, None, 201)]


def test_a_link_leads_to_the_application_where_it_is_mounted(database_url, client):
    """Under a prefix the link has the prefix."""
    inner = starlette_app(database_url, timeout=0.0, status_path="/v1/asked")
    with serving(Starlette(routes=[Mount("/bank", inner)])) as address:
        url = f"{address}/bank{DEPOSITS}"
        accepted = client.post(url, json={"amount": 1}, headers=key_headers("k"))
        assert accepted.headers["location"].startswith("/bank/v1/asked/")
        link = address + accepted.headers["location"]
        assert client.get(link, headers=key_headers("x")).status_code == 202
        consumers.drain(account, database_url)
        assert client.get(link, headers=key_headers("x")).status_code == 201
        assert (
            client.get(f"{address}/bank/v1/asked/zz", headers=key_headers("x")).status_code == 404
        )


def test_the_link_of_a_request_that_was_interrupted_says_so(database_url, client):
    """A request that began, and was neither answered nor parked, is to be sent again."""

    async def fail(request):
        raise RuntimeError("down")

    routes = [Route("/fail", fail, methods=["POST"])]
    with serving(starlette_app(database_url, routes=routes, timeout=0.0)) as address:
        parked = deposit(client, address, "k", "bob")
        link = address + parked.headers["location"]
        mine = key_headers("x")
        assert problem(client.get(link, headers=mine)) == (404, "request-unknown")
        assert client.post(f"{address}/fail", headers=key_headers("k")).status_code == 500
        assert problem(client.get(link, headers=mine)) == (409, "interrupted")


def test_a_failure_is_not_stored(database_url, connection, client):
    """After a 5xx, or an exception, the endpoint runs again, and its command is not sent again."""
    fails = ["raise", "503"]

    async def flaky(request):
        keyed = KeyedRequest.of(request)
        outcome = await keyed.send(Deposit(keyed.key, "123", 10), account)
        match fails.pop(0) if fails else None:
            case "raise":
                raise RuntimeError("down")
            case "503":
                return Response("down", 503)
        return JSONResponse({"amount": outcome.events[0].amount})

    routes = [Route("/flaky", flaky, methods=["POST"])]
    with bank(starlette_app, database_url, routes=routes) as address:
        answers = [client.post(f"{address}/flaky", headers=key_headers("k")) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [500, 503, 200, 200]
    assert (sent(connection), balance(connection)) == (1, 10)


def test_a_refusal_before_a_command_is_not_stored(make, database_url, connection, client):
    """A validation error runs again; the rejection of a command is an answer like any other."""
    with bank(make, database_url) as address:
        bad = [deposit(client, address, "bad", amount="x") for _ in range(2)]
        rejected = [deposit(client, address, amount=-1) for _ in range(2)]
    assert [answer.status_code in (400, 422) for answer in bad] == [True, True]
    assert whole(rejected[0]) == whole(rejected[1])
    assert rejected[0].status_code == 402
    assert rejected[0].json()["reason"] == "an amount is not negative"
    stored = (
        "SELECT count(*) FILTER (WHERE status IS NULL), count(*) FROM reservation.http_requests"
    )
    assert connection.execute(stored).fetchone() == (1, 2)
    assert sent(connection) == 1


def test_a_bad_id_in_a_path_is_no_failure(make, database_url, connection, client):
    """An id with a control character, a separator or too many bytes is 400; others are taken."""
    refused = ["a+b", "%00", "a%0Ab", "x" * 3000, "%C2%80", "%2B", "+"]
    taken = ["%ED%A0%80", "%FF%FE", "%20", "'--"]
    with serving(make(database_url, timeout=0.0)) as address:
        for n, entity in enumerate([*refused, *taken]):
            answer = client.post(
                f"{address}/accounts/{entity}/deposits",
                json={"amount": 1},
                headers=key_headers(f"k{n}"),
            )
            if entity in taken:
                assert answer.status_code == 202, entity
            else:
                assert problem(answer) == (400, "command-refused")
                assert entity not in answer.text
    assert sent(connection) == len(taken)


def test_a_dead_command_is_a_failure_until_it_is_handled(database_url, client):
    """A dead letter is 500 with the link, and it is not stored."""
    with bank(starlette_app, database_url) as address:
        answer = deposit(client, address, amount=666_666)
        assert problem(answer) == (500, "command-dead")
        assert problem(deposit(client, address, amount=666_666)) == (500, "command-dead")
        assert "666666" not in answer.text


def test_a_natural_key_shows_nobody_the_command_of_another(database_url, connection, client):
    """A command whose key was used by somebody else's request is 422, not their answer."""

    async def open_(request):
        keyed, body = KeyedRequest.of(request), await request.json()
        outcome = await keyed.send(Open(body["id"], body["owner"]), account)
        return JSONResponse({"owner": outcome.events[0].owner}, 201)

    routes = [Route("/accounts", open_, methods=["POST"])]
    with bank(starlette_app, database_url, routes=routes) as address:
        body = {"id": "a1", "owner": "alice"}
        mine = client.post(f"{address}/accounts", json=body, headers=key_headers("k"))
        assert mine.status_code == 201
        again = client.post(f"{address}/accounts", json=body, headers=key_headers("k"))
        assert whole(again) == whole(mine)
        theirs = client.post(f"{address}/accounts", json=body, headers=key_headers("k", "bob"))
        assert problem(theirs) == (422, "command-conflict")


def test_a_version_that_makes_another_command_answers_with_the_first(database_url, client):
    """A request that was sent on by a former version has the effect of then, and its outcome."""
    amounts = [10, 99]
    fails = [True]

    async def changing(request):
        keyed = KeyedRequest.of(request)
        outcome = await keyed.send(Deposit(keyed.key, "123", amounts.pop(0)), account)
        if fails:
            fails.clear()
            return Response("died", 500)
        return JSONResponse({"amount": outcome.events[0].amount})

    routes = [Route("/c", changing, methods=["POST"])]
    with bank(starlette_app, database_url, routes=routes) as address:
        first, again = (client.post(f"{address}/c", headers=key_headers("k")) for _ in range(2))
    assert (first.status_code, again.status_code) == (500, 200)
    assert again.json() == {"amount": 10}


def test_sizes_are_limited(database_url, client):
    """A request that is too long is 413, an answer that is too long 500, and neither is stored."""
    routes = [Route("/long", plain("x" * 101), methods=["POST"])]
    app = starlette_app(database_url, routes=routes, max_request_bytes=100, max_answer_bytes=100)

    def chunks():
        yield b"x" * 60
        yield b"x" * 60

    with serving(app) as address, capture_logs() as logs:
        for content in (b"x" * 101, chunks()):
            answer = client.post(f"{address}/long", content=content, headers=key_headers("k"))
            assert problem(answer) == (413, "request-too-large")
        answer = client.post(f"{address}/long", content=b"x" * 100, headers=key_headers("k"))
        assert problem(answer) == (500, "answer-too-large")
    assert [log["event"] for log in logs] == ["http_answer_too_large"]


def test_a_store_that_is_away_is_503(make, database_url, client):
    """Without a database the answer is 503, and it is logged why."""
    away = conninfo.make_conninfo(database_url, dbname="nowhere")
    with serving(make(away)) as address, capture_logs() as logs:
        answer = deposit(client, address)
        assert problem(answer) == (503, "store-unavailable")
        assert answer.headers["retry-after"] == "1"
    assert {log["event"] for log in logs} == {"http_store_unavailable"}


def test_connections_that_were_cut_are_made_again(database_url, admin, client):
    """After a restart of the server requests are answered, and lost locks are taken again."""
    end = (
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
        "WHERE datname = %s AND application_name LIKE 'reservation%%' AND pid <> pg_backend_pid()"
    )
    name = conninfo.conninfo_to_dict(database_url)["dbname"]
    with serving(starlette_app(database_url, timeout=0.0)) as address:
        for n in range(3):
            answer = deposit(client, address, f"k{n}")
            assert answer.status_code == 202, answer.text
            assert admin.execute(end, [name]).fetchone()[0] >= 2


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER], ids=lambda cut: cut.name.lower())
def test_a_lost_connection_is_harmless(database_url, connection, cut):
    """If the database is lost at the command, the answer says to try again or is the right one."""
    check_lost_connection(database_url, connection, "reservation.commit_message", cut)


def check_lost_connection(database_url, connection, statement, cut):
    """Lose the database at a statement, and check that all answers are right."""

    def finished():  # in progress, as long as the server has not noticed the loss
        answer = post()
        return None if answer.status_code == 409 else answer

    with (
        Proxy(database_url) as proxy,
        consuming(database_url),
        serving(starlette_app(proxy.address)) as address,
    ):

        def post():
            body = {"amount": 10}
            return httpx.post(
                address + DEPOSITS, json=body, headers=key_headers("k"), timeout=PATIENCE
            )

        proxy.cut(cut, statement)
        answers = [post(), *(until(finished) for _ in range(2))]
        assert proxy.happened.is_set()
    assert [answer.status_code for answer in answers[1:]] == [201, 201]
    assert answers[0].status_code in (201, 409, 503)
    assert len({answer.content for answer in answers if answer.status_code == 201}) == 1
    assert (sent(connection), balance(connection)) == (1, 10)


def test_a_sender_serves_and_sees_no_request_of_another_role(
    database_url,
    connection,
    client,
    new_role,
):
    """The role of a web application needs to be a sender only, and has rows of its own."""
    roles, answers = [new_role(), new_role()], []
    with consuming(database_url):
        for role in roles:
            grant(connection, "sender", role, ["account:command"])
            address = as_login(connection, database_url, role)
            with serving(starlette_app(address)) as url:
                answers += [deposit(client, url) for _ in range(2)]
            with connect(address) as own, pytest.raises(InsufficientPrivilege):
                own.execute("SELECT * FROM reservation.http_requests")
    assert [answer.status_code for answer in answers] == [201] * 4
    assert whole(answers[0]) == whole(answers[1])
    assert whole(answers[2]) == whole(answers[3])
    rows = "SELECT role::text, count(*) FROM reservation.http_requests GROUP BY role"
    assert dict(connection.execute(rows)) == dict.fromkeys(roles, 1)


def test_nothing_of_a_request_is_logged(database_url, client):
    """No log holds a key, a scope, a payload or an answer, even of what goes wrong."""
    with capture_logs() as logs, bank(starlette_app, database_url, max_answer_bytes=10) as address:
        deposit(client, address, "secretkey", amount=666_666)
    shown = repr(logs)
    for secret in ("666666", "secretkey", "alice"):
        assert secret not in shown


def test_an_endpoint_without_the_middleware_says_what_is_missing(database_url, client):
    """`KeyedRequest.of` names the middleware where there is none, or no key."""

    async def bare(request):
        try:
            KeyedRequest.of(request)
        except DeclarationError as error:
            return Response(str(error), 418)

    routes = [Route("/bare", bare, methods=["POST"])]
    with serving(starlette_app(database_url, routes=routes, required=False)) as address:
        answer = client.post(f"{address}/bare")
    assert answer.status_code == 418
    assert "reservation.http.Idempotency" in answer.text


def test_old_requests_are_pruned_when_asked(database_url, connection, client):
    """`prune` removes requests that are older, and the command of one takes no effect again."""
    with bank(starlette_app, database_url) as address:
        first = deposit(client, address, amount=10)
        connection.execute(
            "UPDATE reservation.http_requests SET created_at = now() - interval '31 days'"
        )
        deposit(client, address, "young")
        env = {"RESERVATION_DATABASE_URL": database_url}
        would = invoke_cli("prune", "--http-requests-older-than", "30d", env=env)
        assert would.stdout.startswith("answers of http requests: 1 request would be removed\n")
        assert whole(deposit(client, address, amount=10)) == whole(first)
        done = invoke_cli("prune", "--http-requests-older-than", "30d", "--apply", env=env)
        assert done.stdout == "answers of http requests: 1 request removed\n"
        again = deposit(client, address, amount=10)
    assert again.status_code == 201
    assert again.json()["drawn"] != first.json()["drawn"]
    assert (sent(connection), balance(connection)) == (2, 11)
