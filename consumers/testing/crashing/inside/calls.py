"""The calls of a component's handlers: counted, killed, observed, and with statements that fail."""

import inspect
import os
import socket
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from consumers.testing.crashing.inside.cutting import die
from consumers.testing.crashing.inside.observing.call_observer import CallObserver, note_tasks
from consumers.testing.crashing.inside.observing.sessions import Sessions
from consumers.testing.crashing.orders import Called, Calling, Observed, Order, Paused, Record
from consumers.testing.crashing.report import BugKind
from reservation.component import Component
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.table import declarations
from reservation.handlers.execution import is_async
from reservation.handlers.reject import Reject

_LOSES = (
    b"DO $$ BEGIN RAISE EXCEPTION 'could not serialize access (the crash kit)' "
    b"USING ERRCODE = 'serialization_failure'; END $$"
)


class Calls:
    """The calls of one run.

    Attributes:
        pauses: whether the next call waits when it has returned.
        connection: that of the consumer; None before there is one.
        sessions: a look at the database, for observers; None where nothing is observed.
    """

    def __init__(
        self,
        component: Component,
        order: Order,
        allowed: tuple[str, ...],
        send: Callable[[Record], None],
        wait: Callable[[], object],
    ) -> None:
        self.pauses = False
        self.connection: Connection[Any] | None = None
        self.sessions: Sessions | None = None
        self._order = order
        self._allowed = allowed
        self._send = send
        self._wait = wait
        self._number = 0
        self._current_call: _Call | None = None
        self._observers: list[CallObserver] = []
        for declared in declarations(component).all():
            self._take_over(declared)

    def _take_over(self, declared: CategoryDeclarations) -> None:
        for type_, one in declared.handled.items():
            if type_ == one.names[0]:
                keeps_state = one.once is not None and one.once.keeps_state
                handler = self._wrapped(one.handler, changes_entity=keeps_state)
                declared.declare(one.message, handler=handler)

    # Any: a handler takes the component's own messages.
    def _wrapped(self, handler: Any, *, changes_entity: bool) -> Any:
        def begin(arguments: tuple[Any, ...]) -> _Call:
            return _Call(self, handler, arguments, changes_entity)

        if is_async(handler):

            async def awaited(*arguments: Any) -> Any:
                if self.sessions is not None:
                    note_tasks()
                call = begin(arguments)
                try:
                    returned = await handler(*arguments)
                except BaseException as error:
                    call.raised(error)
                    raise
                call.returned(returned)
                return returned

            return awaited

        def called(*arguments: Any) -> Any:
            call = begin(arguments)
            try:
                returned = handler(*arguments)
            except BaseException as error:
                call.raised(error)
                raise
            call.returned(returned)
            return returned

        return called

    def committed(self) -> None:
        """Look at what the calls of a batch left, now that it is committed."""
        for observer in self._observers:
            observer.look_again()
            observer.committed()

    def exchange(self) -> None:
        """Count an exchange with the server, and let it fail if it is the one that is to."""
        call = self._current_call
        if call is not None:
            call.exchange()


class _Call:
    """One call."""

    def __init__(
        self, calls: Calls, handler: Any, arguments: tuple[Any, ...], changes_entity: bool
    ) -> None:
        calls._number += 1
        self._calls = calls
        self._number = calls._number
        self._handler = f"{handler.__module__}.{getattr(handler, '__qualname__', handler)}"
        self._context = arguments[-1]
        self._message = self._context.message
        self._statements = 0
        self._failed = False
        self._is_async = is_async(handler)
        self._observer: CallObserver | None = None
        calls._send(Calling(self._handler, str(self._message)))
        self._kill("call")
        if calls.sessions is not None:
            self._observer = CallObserver(
                inspect.unwrap(handler),
                arguments,
                calls.sessions,
                calls._allowed,
                changes_entity=changes_entity,
                is_async=self._is_async,
                report=self._report,
            )
            calls._observers.append(self._observer)
        if not self._is_async:
            calls._current_call = self

    def exchange(self) -> None:
        self._statements += 1
        fault, connection = self._calls._order.fault, self._calls.connection
        if fault is None or connection is None or self._failed:
            return
        if (fault.call, fault.statement) != (self._number, self._statements):
            return
        self._failed = True
        if fault.lost:
            with socket.socket(fileno=os.dup(connection.pgconn.socket)) as shared:
                shared.shutdown(socket.SHUT_RDWR)
            return  # the statement itself meets that
        connection.pgconn.exec_(_LOSES)
        raise psycopg.errors.SerializationFailure("could not serialize access (the crash kit)")

    def raised(self, error: BaseException) -> None:
        if self._observer is not None:
            self._observer.close()
            if isinstance(error, Reject):
                self._observer.ended(None)
        self._end(type(error).__name__)

    def returned(self, returned: object) -> None:
        if self._observer is not None:
            self._observer.close()
            for name in self._observer.ended(returned):
                self._report(BugKind.GLOBAL_STATE, f"changes {name}")
        self._end(None)
        self._kill("returned")
        if self._calls.pauses:
            self._calls.pauses = False
            self._calls._send(Paused())
            self._calls._wait()

    def _end(self, raised: str | None) -> None:
        calls = self._calls
        calls._current_call = None
        status = None if calls.connection is None else calls.connection.info.transaction_status
        ended = raised is None and status is TransactionStatus.INERROR
        if ended:
            self._report(
                BugKind.SWALLOWED_ERROR,
                "returns although a statement on context.connection has failed",
            )
        calls._send(
            Called(
                self._number,
                self._handler,
                str(self._message),
                (self._message.stream_name, self._message.position),
                self._statements,
                len(self._context.writes),
                raised,
                ended,
                self._failed and raised is None and status is TransactionStatus.INTRANS,
            )
        )

    def _kill(self, at: str) -> None:
        kill = self._calls._order.kill
        if kill is not None and (kill.at, kill.number) == (at, self._number):
            die()

    def _report(self, kind: BugKind, what: str) -> None:
        self._calls._send(Observed(kind, self._handler, self._number, str(self._message), what))
