"""Endpoints with an idempotency key that send their command in their own transaction."""

import threading

import httpx
import pytest
from psycopg import AsyncConnection, connect
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.background import BackgroundTask
from starlette.responses import Response
from structlog.testing import capture_logs

import consumers
from reservation.errors import StoreError
from tests.apps.http_app import (
    PATIENCE,
    Deposit,
    Server,
    account,
    consuming,
    key_headers,
    rendered,
    serving,
)
from tests.apps.session_app import RECEIPT, TABLES, commit_then_wait, session_app
from tests.store.builders import as_login, grant, new_role
from tests.store.test_http import problem, whole
from tests.store.test_sqlalchemy import AUTOCOMMIT
from tests.support.consuming import until
from tests.support.ports import free_port

__all__ = ["new_role"]  # a fixture


@pytest.fixture(autouse=True)
def _tables(connection):
    connection.execute(TABLES)


def post(address, key="k", *, amount=10, timeout=PATIENCE):
    return httpx.post(
        f"{address}/receipts", json={"amount": amount}, headers=key_headers(key), timeout=timeout
    )


COUNTS = """
SELECT (SELECT coalesce(sum(cardinality(sent)), 0) FROM reservation.http_requests),
       (SELECT count(*) FROM message_store.messages
        WHERE message_store.category(stream_name) = 'account:command'),
       (SELECT count(*) FROM receipts)
"""


def counts(connection):
    """Return how many commands the rows of keys have, are stored, and how many receipts."""
    return tuple(map(int, connection.execute(COUNTS).fetchone()))


def test_key_command_and_row_are_committed_together(database_url, connection):
    """Each request has one command and one receipt, however often it is sent."""
    with consuming(database_url), serving(session_app(database_url)) as address:
        first, again = post(address), post(address)
        other = post(address, "other")
    assert first.status_code == other.status_code == 201
    assert whole(first) == whole(again)
    assert counts(connection) == (2, 2, 2)


def test_a_rollback_takes_all_three_away(database_url, connection):
    """An exception after the command, or at the commit, leaves nothing; the next request is new."""
    owners = ["nobody", "alice"]

    async def endpoint(request, keyed, session, command):
        async with session.begin():
            assert await keyed.send(command, account, session=session)
            if len(owners) == 2:
                assert counts(connection) == (0, 0, 0)
            await session.execute(
                text("INSERT INTO receipts VALUES (:id, :owner)"),
                {"id": keyed.key, "owner": owners.pop(0)},
            )
            if request.headers.get("fail"):
                raise ValueError
        return rendered(await keyed.wait_for(command, account), "1")

    app = session_app(database_url, endpoint=endpoint)
    with consuming(database_url), serving(app) as address:
        assert post(address).status_code == 500
        assert counts(connection) == (0, 0, 0)
        assert post(address).status_code == 201
        owners[:] = ["alice"]
        headers = key_headers("raises", fail="1")
        body = {"amount": 1}
        failed = httpx.post(f"{address}/receipts", json=body, headers=headers, timeout=PATIENCE)
        assert failed.status_code == 500
    assert counts(connection) == (1, 1, 1)


@pytest.mark.parametrize("step", ["command", "row", "commit", "answer"])
def test_a_kill_between_leaves_all_or_nothing(database_url, connection, step):
    """Wherever the server dies, all three are there or none, and the next server answers."""
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND query LIKE %s"
    )
    port, options = free_port(), {"database_url": database_url, "timeout": PATIENCE}

    def lost(address):
        with pytest.raises(httpx.TransportError):
            post(address)

    with (
        connect(database_url, autocommit=True) as locking,
        Server(session_app, port, **options) as server,
    ):
        client = threading.Thread(target=lost, args=[server.address])
        with locking.transaction():
            statement = {"command": "%write_message%", "row": "%INTO receipts%", "commit": "COMMIT"}
            match step:
                case "command":
                    lock = "SELECT pg_advisory_xact_lock(message_store.hash_64('account:command'))"
                    locking.execute(lock)
                case "row":
                    locking.execute("LOCK TABLE receipts IN EXCLUSIVE MODE")
                case "commit":
                    locking.execute("SELECT FROM owners FOR UPDATE")
            client.start()
            if step == "answer":
                until(lambda: counts(connection) == (1, 1, 1))
            else:
                until(lambda: connection.execute(waits, [statement[step]]).fetchone()[0])
                assert counts(connection) == (0, 0, 0)
            server.kill()
        client.join(PATIENCE)
    # A commit that has begun goes on without its client.
    after = (1, 1, 1) if step in ("commit", "answer") else (0, 0, 0)
    sessions = (
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name NOT IN ('tests', '') AND state <> 'idle'"
    )
    until(lambda: connection.execute(sessions).fetchone()[0])
    until(lambda: counts(connection) == after)
    with Server(session_app, port, **options) as server, consuming(database_url):
        answers = [post(server.address) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert whole(answers[0]) == whole(answers[1])
    assert counts(connection) == (1, 1, 1)


def test_a_link_to_the_status_works(database_url, connection):
    """A command that is not handled in time is 202, and the link leads to the answer."""
    with serving(session_app(database_url, timeout=0.05)) as address:
        accepted = post(address)
        assert accepted.status_code == 202
        consumers.drain(account, database_url)
        link = address + accepted.headers["location"]
        assert httpx.get(link, headers=key_headers("x"), timeout=PATIENCE).status_code == 201
        assert post(address).status_code == 201
    assert counts(connection) == (1, 1, 1)


def test_several_commands_are_part_of_a_transaction(database_url, connection):
    """Each command has its own number, so that a second transaction is recognized too."""
    fails = [True]

    async def endpoint(request, keyed, session, command):
        second = Deposit(keyed.key + "2", "124", 1)
        async with session.begin():
            for each in (command, Deposit(keyed.key + "1", "123", 1)):
                if await keyed.send(each, account, session=session):
                    await session.execute(text(RECEIPT), {"id": each.deposit_id})
        if fails:
            fails.clear()
            raise ValueError
        async with session.begin():
            if await keyed.send(second, account, session=session):
                await session.execute(text(RECEIPT), {"id": second.deposit_id})
        await keyed.wait_for(command, account)
        return rendered(await keyed.wait_for(second, account), "1")

    app = session_app(database_url, endpoint=endpoint)
    with consuming(database_url), serving(app) as address:
        assert post(address).status_code == 500
        assert counts(connection) == (2, 2, 2)
        assert post(address).status_code == 201
    assert counts(connection) == (3, 3, 3)


def test_a_command_that_a_savepoint_took_away_is_not_sent_by_waiting(database_url, connection):
    """Of two commands the one that was rolled back is not there, and cannot be waited for."""

    async def endpoint(request, keyed, session, command):
        other = Deposit(keyed.key + "2", "123", 1)
        async with session.begin():
            savepoint = await session.begin_nested()
            assert await keyed.send(command, account, session=session)
            await savepoint.rollback()
            assert await keyed.send(other, account, session=session)
        with pytest.raises(StoreError, match="not committed"):
            await keyed.wait_for(command, account)
        return rendered(await keyed.wait_for(other, account), "1")

    app = session_app(database_url, endpoint=endpoint)
    with consuming(database_url), serving(app) as address:
        assert post(address).status_code == 201
    assert counts(connection) == (1, 1, 0)


def test_an_answer_before_the_commit_is_not_given(database_url, connection):
    """A success that is not committed is 500 and logged; the next request is answered."""

    async def endpoint(request, keyed, session, command):
        own = AsyncSession(session.bind)
        if await keyed.send(command, account, session=own):
            await own.execute(text(RECEIPT), {"id": keyed.key})

        async def commit():  # as a dependency that commits after the answer
            await own.commit()
            await own.close()

        return Response("done", 201, background=BackgroundTask(commit))

    with serving(session_app(database_url, endpoint=endpoint)) as address, capture_logs() as logs:
        assert problem(post(address)) == (500, "not-committed")
        until(lambda: counts(connection) == (1, 1, 1))
        assert post(address).status_code == 201
    assert [log["event"] for log in logs] == ["http_answer_before_commit"]


def test_a_refusal_after_a_rollback_is_given_and_not_stored(database_url, connection):
    """An endpoint that rolls back and answers 4xx runs again the next time."""
    refuses = [True]

    async def endpoint(request, keyed, session, command):
        if refuses:
            refuses.clear()
            await keyed.send(command, account, session=session)
            await session.rollback()
            return Response("full", 409)
        return await commit_then_wait(request, keyed, session, command)

    app = session_app(database_url, endpoint=endpoint)
    with consuming(database_url), serving(app) as address:
        assert post(address).text == "full"
        assert counts(connection) == (0, 0, 0)
        assert post(address).status_code == 201
    assert counts(connection) == (1, 1, 1)


def refusals(database_url, *calls, **options):
    """Return the texts of the errors of calls of an endpoint, each one line."""
    found = []

    async def endpoint(request, keyed, session, command):
        for call in calls:
            with pytest.raises(StoreError) as refusal:
                await call(keyed, session, command)
            found.append(str(refusal.value))
        await session.rollback()
        return Response("refused", 400)

    with serving(session_app(database_url, endpoint=endpoint, **options)) as address:
        assert post(address).text == "refused"
    assert not any("\n" in text for text in found)
    return found


def test_waiting_before_the_commit_is_refused(database_url):
    """Nothing is waited for while the transaction is open, and nothing sent beside it."""

    async def unsent(keyed, session, command):
        await keyed.wait_for(command, account)

    async def wait(keyed, session, command):
        await keyed.send(command, account, session=session)
        await keyed.wait_for(command, account)

    async def send(keyed, session, command):
        await keyed.send(command, account)

    uncommitted = (
        "The session in which a command was sent is not committed, so its outcome would be waited "
        "for in vain; commit first"
    )
    assert refusals(database_url, unsent, wait, send) == [
        "The command was not sent; send it with keyed.send(…, session=session)",
        uncommitted,
        uncommitted,
    ]


def test_what_has_no_transaction_is_refused(database_url):
    """A pool, and a connection or a session in autocommit, have no transaction."""

    async def in_pool(keyed, session, command):
        await keyed.send(command, account, session=AsyncConnectionPool(open=False))

    async def in_autocommit(keyed, session, command):
        async with await AsyncConnection.connect(database_url, autocommit=True) as own:
            await keyed.send(command, account, session=own)

    async def at_level(keyed, session, command):
        await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        await keyed.send(command, account, session=session)

    async def of_another_kind(keyed, session, command):
        await keyed.send(command, account, session=session.sync_session)

    *texts, kind = refusals(database_url, in_pool, in_autocommit, at_level, of_another_kind)
    assert texts == [AUTOCOMMIT] * 3
    assert kind.endswith("not a Session; MessageStore takes those")


def test_a_session_of_another_role_or_database_is_refused(database_url, connection, new_role):
    """The row of the key must be one that the session sees."""
    role = new_role()
    grant(connection, "sender", role, ["account:command"])
    login = as_login(connection, database_url, role)

    async def send(keyed, session, command):
        async with await AsyncConnection.connect(login) as own:
            await keyed.send(command, account, session=own)

    (refusal,) = refusals(database_url, send)
    assert refusal == (
        "The request is not stored where the session's role can see it; give the session the "
        "database and the role of the middleware"
    )


def test_a_sender_may_send_in_a_transaction_of_psycopg(database_url, connection, new_role):
    """The rights of a sender suffice, and psycopg's own connection is a session too."""
    role = new_role()
    grant(connection, "sender", role, ["account:command"])
    connection.execute(f"GRANT ALL ON receipts, owners TO {role}")
    login = as_login(connection, database_url, role)

    async def endpoint(request, keyed, session, command):
        async with await AsyncConnection.connect(login, autocommit=True) as own, own.transaction():
            if await keyed.send(command, account, session=own):
                await own.execute("INSERT INTO receipts VALUES (%s, 'alice')", [keyed.key])
        return rendered(await keyed.wait_for(command, account), "1")

    with consuming(database_url), serving(session_app(login, endpoint=endpoint)) as address:
        assert [post(address).status_code for _ in range(2)] == [201, 201]
    assert counts(connection) == (1, 1, 1)


def test_the_second_of_two_transactions_of_a_request_is_refused(database_url, connection):
    """Where a lock was lost, and two servers answer, the second finds the command sent."""
    found = []

    async def endpoint(request, keyed, session, command):
        async with session.begin():
            found.append(await keyed.send(command, account, session=session))
            if found[-1]:
                await session.execute(text(RECEIPT), {"id": keyed.key})
        return rendered(await keyed.wait_for(command, account), "1")

    end = (
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
        "WHERE application_name = 'reservation http'"
    )
    with (
        consuming(database_url),
        serving(session_app(database_url, endpoint=endpoint)) as one,
        serving(session_app(database_url, endpoint=endpoint)) as other,
        connect(database_url, autocommit=True) as locking,
    ):
        with locking.transaction():
            locking.execute("LOCK TABLE receipts IN EXCLUSIVE MODE")
            clients = [threading.Thread(target=post, args=[address]) for address in (one, other)]
            clients[0].start()
            until(lambda: found)
            assert connection.execute(end).fetchone() == (1,)
            clients[1].start()
            waits = (
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND query LIKE '%begin_http_request%'"
            )
            until(lambda: connection.execute(waits).fetchone()[0])
        for client in clients:
            client.join(PATIENCE)
    assert found == [True, False]
    assert counts(connection) == (1, 1, 1)


def test_a_failed_commit_is_the_endpoints(database_url, connection):
    """An endpoint that answers a commit's own error has stored nothing."""

    async def endpoint(request, keyed, session, command):
        await keyed.send(command, account, session=session)
        await session.execute(
            text("INSERT INTO receipts VALUES (:id, 'nobody')"), {"id": keyed.key}
        )
        with pytest.raises(IntegrityError):
            await session.commit()
        return Response("nobody", 422)

    with serving(session_app(database_url, endpoint=endpoint)) as address:
        assert post(address).text == "nobody"
    assert counts(connection) == (0, 0, 0)
