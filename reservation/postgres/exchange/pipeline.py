"""libpq's pipeline: statements are prepared once, sent together, and their results are taken.

psycopg waits for what the generators yield.
"""

import functools
import re
from collections.abc import Mapping, Sequence

from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from reservation.postgres.exchange.keeping_connection import KeepingConnection, Names
from reservation.postgres.exchange.request import Request
from reservation.postgres.exchange.results import results_up_to_sync, send_up_to_sync

_PLACEHOLDER = re.compile(rb"%(?:\((\w+)\))?s|%%")


class EncodedStatement:
    """A statement as libpq takes it."""

    def __init__(self, connection: KeepingConnection, request: Request) -> None:
        self.query, order = _numbered(request.query)
        if isinstance(request.parameters, Mapping):
            values = [request.parameters[name] for name in order]
        else:
            values = list(request.parameters)
        transformer = Transformer(connection)
        self.values = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        self.types = transformer.types or ()
        self.formats = transformer.formats
        self.key = self.query, self.types


@functools.lru_cache(maxsize=256)
def _numbered(query: bytes) -> tuple[bytes, list[str]]:
    """Return a query with numbers for its placeholders, and the names of those that have one."""
    order: list[str] = []
    count = 0

    def number(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match[0] == b"%%":
            return b"%"
        if match[1] is None:
            count += 1
            return b"$%d" % count
        name = match[1].decode()
        if name not in order:
            order.append(name)
        return b"$%d" % (order.index(name) + 1)

    return _PLACEHOLDER.sub(number, query), order


# The results of preparing statements, and of running them.
Results = tuple[list[PGresult], list[PGresult]]


def put(
    connection: KeepingConnection,
    sent: Sequence[EncodedStatement],
    *,
    commits: bool,
) -> PQGen[Names]:
    """Send statements in libpq's pipeline mode; return the names of those that are new.

    Those are prepared first, in a transaction of their own where none is open: what is prepared
    stays so after a rollback, and a transaction whose first statement is not its BEGIN has the
    isolation level of the session.
    """
    pgconn, names, prefix = connection.pgconn, connection.prepared, connection.prefix
    new = {one.key: one for one in sent if one.key not in names}
    given = {key: f"{prefix}_{n}".encode() for n, key in enumerate(new, len(names))}

    def send(one: EncodedStatement) -> None:
        name = names.get(one.key) or given[one.key]
        pgconn.send_query_prepared(
            name, one.values, param_formats=one.formats, result_format=Format.BINARY
        )

    pgconn.enter_pipeline_mode()
    for key, one in new.items():
        pgconn.send_prepare(given[key], one.query, param_types=one.types)
    if new:
        pgconn.pipeline_sync()
    for one in sent:
        send(one)
    if commits:
        pgconn.send_query_params(b"COMMIT", None)
    yield from send_up_to_sync(pgconn)
    return given


def taken(connection: KeepingConnection, new: Names) -> PQGen[Results]:
    """Return the results of preparing what is new, and of running all."""
    pgconn = connection.pgconn
    prepared = (yield from results_up_to_sync(pgconn)) if new else []
    results = yield from results_up_to_sync(pgconn)
    pgconn.exit_pipeline_mode()
    for key, result in zip(new, prepared, strict=False):
        if result.status == ExecStatus.COMMAND_OK:
            connection.prepared[key] = new[key]
    return prepared, results


def put_and_taken(
    connection: KeepingConnection, sent: Sequence[EncodedStatement], *, commits: bool
) -> PQGen[Results]:
    """Send statements, and return their results."""
    new = yield from put(connection, sent, commits=commits)
    return (yield from taken(connection, new))
