"""The pauses that concern one running consumer, as it knows them.

It reads them with each rebalance of its group, twice a second while it works (in a long batch from
the thread that renews its lease), and once it is notified where it is at rest. So a pause is
effective within a second, also for the rest of a batch.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from psycopg import Connection

from consumers.pauses.pause import Scope, StoredPause
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

# Seconds after which what was read is read again, while a consumer works, and while it is paused.
INTERVAL = 0.4

_QUERIES = load_queries("consumers.pauses")

# The columns of `reservation.pauses_of`.
Row = Sequence[Any]


class SinglePauses:
    """The pauses of types and entities: those of single messages."""

    def __init__(self, pauses: Sequence[tuple[frozenset[str] | None, str | None]]) -> None:
        self._pauses = pauses

    def concern(self, type_: str, entity: str | None) -> bool:
        """Return whether the handler of a message is not to be called."""
        return any(
            (types is None or type_ in types) and paused in (None, entity)
            for types, paused in self._pauses
        )


class Pauses:
    """What one consumer knows of its pauses; several threads may use it.

    Attributes:
        whole: the pause for which the consumer handles nothing; None if there is none.
        single: the pauses of types and entities; None if there are none.
        is_released: whether letters may wait for a pause that is over.
    """

    def __init__(
        self, component: Component[Any], category: str, log: Callable[..., object]
    ) -> None:
        self._component, self._category, self._log = component.name, category, log
        self._types = declarations(component).of(category).types
        self._lock = threading.Lock()
        self._rows: Sequence[Row] = []
        self._read_at = float("-inf")  # by the monotonic clock
        self.whole: StoredPause | None = None
        self.single: SinglePauses | None = None
        self.is_released = True

    @property
    def stops_consumer(self) -> bool:
        """Whether the consumer handles nothing."""
        return self.whole is not None

    @property
    def is_due(self) -> bool:
        """Whether it is time for `read`."""
        return time.monotonic() - self._read_at >= INTERVAL

    def none_since(self) -> None:
        """Note that nothing was paused or resumed since, because there was no notice of it."""
        self._read_at = time.monotonic()

    def read(self, connection: Connection[Any]) -> None:
        """Read them."""
        began = time.monotonic()
        with translated():
            ((rows,),) = connection.execute(
                _QUERIES["current"], {"component": self._component}
            ).fetchall()
        self.note(rows, began)

    def release(self, connection: Connection[Any]) -> None:
        """Have letters looked at that wait for a pause which is over."""
        self.is_released = False
        try:
            with translated():
                names = {"component": self._component, "category": self._category}
                connection.execute(_QUERIES["release"], names)
        except BaseException:
            self.is_released = True
            raise

    def note(self, rows: Sequence[Row] | None, began: float) -> None:
        """Note what was read by a statement that began at a time."""
        with self._lock:
            if began >= self._read_at:
                self._read_at = began
                self._note([row for row in rows or () if row[0] in (None, self._category)])

    def _note(self, own: Sequence[Row]) -> None:
        if own == self._rows:
            return
        before, self._rows = self._rows, own
        pauses = [_pause(self._component, row) for row in own]
        whole = [one for one in pauses if one.scope.is_whole]
        single = [one.scope for one in pauses if not one.scope.is_whole]
        self.whole = whole[0] if whole else None
        self.single = SinglePauses([self._single(one) for one in single]) if single else None
        for row in own:
            if row not in before:
                self._log_change("consumer_paused", row)
        for row in before:
            if row not in own:
                self.is_released = True
                self._log_change("consumer_resumed", row)

    def _single(self, scope: Scope) -> tuple[frozenset[str] | None, str | None]:
        """Return the types that a pause is of, with their former names, and its entity."""
        if scope.type is None:
            return None, scope.entity
        types = self._types
        names = types.names_of(types[scope.type]) if scope.type in types else ()
        return frozenset((scope.type, *names)), scope.entity

    def _log_change(self, event: str, row: Row) -> None:
        pause = _pause(self._component, row)
        of = {"type": pause.scope.type, "entity": pause.scope.entity}
        given = {name: printable(value) for name, value in of.items() if value is not None}
        who, why = printable(pause.paused_by), printable(pause.reason)
        self._log(event, **given, paused_by=who, reason=why)


def _pause(component: str, row: Row) -> StoredPause:
    category, type_, entity, reason, paused_by, paused_at = row
    at = datetime.fromisoformat(paused_at)
    return StoredPause(Scope(component, category, type_, entity), reason, paused_by, at)
