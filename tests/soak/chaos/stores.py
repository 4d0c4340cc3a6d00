"""One server for many runs, a database for many runs in this process, and the evidence."""

import itertools
import json
import logging
import shutil
import signal
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from psycopg import Connection, conninfo, sql
from structlog.testing import capture_logs

from consumers.testing.embedded_server import server_folder
from reservation.admin import install
from reservation.postgres.connection import connect
from tests.soak.chaos.kinds import KINDS
from tests.support.servers import OwnServer, server

# Runs that share a database, whose tables are emptied between them.
SHARED_BY = 200


# Seconds for one run.
LONGEST = 240.0


class Hangs(BaseException):
    """A run does not come to its end."""


def _hangs(_number: int, _frame: object) -> None:
    raise Hangs(f"the run was not over after {LONGEST:.0f} s")


class Stores:
    """Databases with the store installed, and the evidence of runs with violations."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        self._shared: tuple[str, int] | None = None
        self._own: str | None = None

    def __enter__(self) -> Self:
        signal.signal(signal.SIGALRM, _hangs)
        logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # connections are cut all the time
        self._url = self._stack.enter_context(server("embedded"))
        self._admin = self._stack.enter_context(connect(self._url, autocommit=True))
        with connect(self._create("template0"), autocommit=True) as connection:
            self._template = connection.info.dbname
            install(connection)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fresh(self) -> str:
        """Return the address of a database of its own."""
        return self._create(self._template)

    def own(self) -> str:
        """Return the address of a database on a server that may be stopped, `server`."""
        if self._own is None:
            self.server = OwnServer(self._stack.enter_context(server_folder()) / "postgres")
            self._stack.callback(self.server.close)
            with connect(self.server.address, autocommit=True) as connection:
                install(connection)
            self._own = self.server.address
        return self._own

    def shared(self) -> str:
        """Return the address of a database that the runs before may have used."""
        address, uses = self._shared or ("", SHARED_BY)
        if uses >= SHARED_BY:
            if address:
                self.drop(address)
            address, uses = self.fresh(), 0
        self._shared = address, uses + 1
        return address

    def drop(self, address: str) -> None:
        """Drop a database."""
        name = conninfo.conninfo_to_dict(address)["dbname"]
        self._admin.execute(
            sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(str(name)))
        )

    def run(self, kind: str, seed: int, evidence: Path) -> list[str]:
        """Run a seed; return the violations, and keep the evidence if there are any."""
        with capture_logs() as logs:
            run = KINDS[kind](self, seed)
            signal.setitimer(signal.ITIMER_REAL, LONGEST)
            try:
                found = run.play()
            except (Exception, Hangs) as error:  # noqa: BLE001  whatever happens is kept
                places = traceback.extract_tb(error.__traceback__)
                found = [f"{type(error).__name__}: {error}", *map(str, reversed(places))]
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if found:
                self._keep(evidence / str(seed), run, found, logs)
                self._shared = None  # whatever it contains
            run.close()
        return found

    def _keep(self, folder: Path, run: Any, found: list[str], logs: list[Any]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "violation.txt").write_text("\n".join(found) + "\n")
        (folder / "history.txt").write_text(run.describe())
        (folder / "log.json").write_text(
            "".join(json.dumps(event, default=str) + "\n" for event in logs)
        )
        (folder / "log.txt").write_text(run.log())
        with connect(run.address, autocommit=True) as connection:
            for table in ("messages", *_TABLES):
                _dump(connection, table, folder)

    def _create(self, template: str) -> str:
        name = f"chaos_{next(self._numbers)}"
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return conninfo.make_conninfo(self._url, dbname=name)


_TABLES = ("positions", "dead_letters", "states", "snapshots", "members", "revisions")


def _dump(connection: Connection[Any], table: str, folder: Path) -> None:
    schema = "message_store" if table == "messages" else "reservation"
    query = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT CSV HEADER").format(
        sql.Identifier(schema, table)
    )
    with connection.cursor().copy(query) as rows, (folder / f"{table}.csv").open("wb") as file:
        for row in rows:
            file.write(row)
