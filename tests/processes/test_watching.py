"""``reservation status --watch`` on a terminal."""

import codecs
import os
import pty
import select
import signal
import subprocess
import time

import psycopg
from psycopg import conninfo, sql

from tests.consumers.test_status import group, messages
from tests.support.started import EXAMPLES, PATIENCE, command_line


class Terminal:
    """The command line on a terminal of its own."""

    def __init__(self, *arguments):
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command_line(*arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=EXAMPLES,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def read_to(self, text):
        """Read until the terminal shows a text, and return the output since the last call."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.text:
            assert select.select([self.ours], [], [], deadline - time.monotonic())[0], self.text
            self.text += self._decoder.decode(os.read(self.ours, 65_536))
        before, found, self.text = self.text.partition(text)
        return before + found


def test_watching_shows_new_commits_and_outlives_the_database(server_url, connection, database_url):
    """While the database is away the last table stays, with the reason; Ctrl-C ends it cleanly."""
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format
    name = sql.Identifier(conninfo.conninfo_to_dict(database_url)["dbname"])
    messages(connection, 1, 7)
    group(connection, [0])
    with Terminal("status", "--watch", "0.1", "--database-url", database_url) as terminal:
        assert "\x1b[" in terminal.read_to("7 ")  # on a terminal there are colours
        messages(connection, 8, 4321)
        terminal.read_to("4,321")
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(allow(name, sql.Literal(False)))
            terminal.read_to("Cannot reach the database")
            messages(connection, 4322, 5432)
            admin.execute(allow(name, sql.Literal(True)))
        terminal.read_to("5,432")
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.read_to("\x1b[?25h")  # the cursor is there again
        assert terminal.process.wait(PATIENCE) == 0
        assert "Traceback" not in shown + terminal.text
