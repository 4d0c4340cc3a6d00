"""The books of a bank with planted findings, of any size, made inside the server."""

from collections import Counter
from dataclasses import dataclass

from psycopg import Connection

from reservation.postgres.queries import load_queries

_LEDGER = load_queries("benchmarks", "ledger.sql")
_QUERIES = load_queries("benchmarks")

# The findings planted at each remainder of a deposit's number; see ledger.sql.
EVERY = 1009
PLANTED = {
    1: "missing",
    2: "orphan",
    3: "multiple",
    4: "conflict",
    5: "wrong-type",
    6: "keyless",
    7: "effect-twice",
    8: "unhandled",
    9: "without-cause",
    10: "dead",
}


@dataclass(frozen=True, slots=True)
class Ledger:
    """Books with a number of deposits.

    Attributes:
        keys: how many deposits there are.
        accounts: to how many accounts.
        pending: how many of the last are not reserved yet, and how many before them not handled.
    """

    keys: int
    accounts: int
    pending: int

    @classmethod
    def of_messages(cls, messages: int) -> "Ledger":
        """Return books that hold about this number of messages in all."""
        keys = max(1, round(messages / 3.16))
        return cls(keys, max(1, keys // 20), max(1, keys // 1000))

    @property
    def _base(self) -> int:
        return 2 * self.accounts + 2

    def fill(self, connection: Connection[tuple[object, ...]], until: int | None = None) -> None:
        """Write the books to an empty store."""
        connection.execute(_QUERIES["drop_indexes"])
        connection.execute(_LEDGER["open"], {"accounts": self.accounts})
        self._write(connection, 1, until or self.keys)
        connection.execute(_QUERIES["make_indexes"])
        self._note(connection)

    def go_on(self, connection: Connection[tuple[object, ...]], after: int) -> None:
        """Write the rest of the books, behind the deposit at which `fill` stopped."""
        self._write(connection, after + 1, self.keys)
        self._note(connection)

    def _note(self, connection: Connection[tuple[object, ...]]) -> None:
        """Record the consumers' positions, and the messages that they could not handle."""
        values = {"base": self._base, "keys": self.keys, "pending": self.pending}
        connection.execute(_LEDGER["positions"], values)
        connection.execute(_LEDGER["letters"], values)
        connection.execute(_LEDGER["settle"])
        connection.execute(_QUERIES["analyze"])

    def _write(self, connection: Connection[tuple[object, ...]], first: int, last: int) -> None:
        connection.execute(
            _LEDGER["fill"],
            {
                "first": first,
                "last": last,
                "base": self._base,
                "accounts": self.accounts,
                "keys": self.keys,
                "pending": self.pending,
            },
        )

    def findings(self) -> Counter[str]:
        """Return how many findings of each kind, duplicates and pending commands are planted."""
        read = self.keys - 2 * self.pending
        found = Counter(
            {
                name: (read - kind) // EVERY + 1 if read >= kind else 0
                for kind, name in PLANTED.items()
            }
        )
        found["duplicates"] = sum(1 for n in range(1020, read + 1, 20) if (n - 1000) % EVERY != 2)
        found["pending"] = 2 * self.pending
        return found
