"""Reporting failed attempts: to the functions that a component declares for it, and to the log."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context

from consumers.calls.handler_call import unforked
from consumers.failures.failure import Failure, HandlerRaisedError, Unhandled
from consumers.runtime.observability.error_detail import ErrorDetail
from consumers.runtime.observability.log_context import LogContext
from consumers.runtime.observability.logs import Log
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.effects.faults import is_interrupt
from reservation.errors import MessageError
from reservation.handlers.failed_attempt import FailedAttempt, Outcome
from reservation.messages.message import StoredMessage, printable
from reservation.messages.upcasting import name_of
from reservation.raised import describe


class ErrorReports:
    """Reports one consumer's failed attempts, once what becomes of them is decided."""

    def __init__(
        self,
        component: Component,
        category: str,
        log: Log,
        *,
        debug: bool,
        heartbeat: Callable[[], None],
    ) -> None:
        self._heartbeat = heartbeat
        self._component = component
        self._category = category
        self._log = log
        self._debug = debug
        self._log_context = LogContext(component.name, category)

    @property
    def wants_exceptions(self) -> bool:
        """Whether anybody is to be called with the exceptions."""
        return self._debug or bool(declarations(self._component).error_hooks)

    def decided(self, letters: Iterable[Unhandled]) -> None:
        """Report what a transaction that is committed has set aside."""
        for one in letters:
            if one.state != "parked":
                attempt = max(one.failure.attempts, 1)
                self.failed(one.message, one.entity, one.failure, attempt, one.state)

    def stopped(self, messages: Sequence[StoredMessage], error: MessageError) -> None:
        """Report an attempt after which the consumer stops."""
        if self.wants_exceptions and messages:
            message = error.message if isinstance(error, HandlerRaisedError) else messages[0]
            failure = Failure.of(error, ErrorDetail(exceptions=True))
            self.failed(message, None, failure, 1, "stopped")

    def failed(
        self,
        message: StoredMessage,
        entity: str | None,
        failure: Failure,
        attempt: int,
        outcome: Outcome,
    ) -> None:
        """Report one attempt, unless nothing was raised."""
        error, entity = failure.exception, entity or failure.entity_stream
        if error is None:
            return
        if self._debug:
            self._log.warning(
                "attempt_failed",
                type=printable(message.type),
                stream_name=printable(message.stream_name),
                global_position=message.global_position,
                attempt=attempt,
                outcome=outcome,
                exc_info=error,
            )
        told = FailedAttempt(
            self._component.name,
            self._category,
            message.id,
            message.type,
            message.stream_name,
            message.global_position,
            entity,
            attempt,
            outcome,
        )
        for hook in declarations(self._component).error_hooks:
            self._heartbeat()
            try:
                with unforked(), self._log_context.entered():
                    self._log_context.enter_message(message, entity)
                    copy_context().run(hook, error, told)
            except BaseException as raised:  # a function can raise anything
                if is_interrupt(raised):
                    raise
                self._log.warning(
                    "error_hook_failed",
                    hook=name_of(hook),
                    global_position=message.global_position,
                    error=describe(raised),
                )
