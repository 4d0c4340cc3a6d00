"""Retries of a message that failed."""

from consumers.failures.failure import PERMANENT, Failure, HandlerRaisedError, reason_of
from consumers.runtime.observability.error_detail import PLACE_ONLY, ErrorDetail
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import MessageError
from reservation.handlers.retry import Retry, next_attempt


class Retries:
    """Decides whether and when messages of one category are tried again."""

    def __init__(
        self, component: Component, category: str, detail: ErrorDetail = PLACE_ONLY
    ) -> None:
        declared = declarations(component)
        self._declared = declared.of(category)
        self._default = declared.default_retry
        self.detail = detail

    def failure(self, type_: str, error: MessageError, tried: int = 0) -> Failure:
        """Return the failure of a message that was tried so often before."""
        if reason_of(error) in PERMANENT:
            return Failure.of(error, self.detail, attempts=tried + 1)
        cause = error.__cause__ if isinstance(error, HandlerRaisedError) else None
        following = next_attempt(cause, self._retry(type_), self._default, tried)
        return Failure.of(error, self.detail, attempts=following.attempts, wait=following.wait)

    def most(self, type_: str) -> int:
        """Return how often a message is tried at most."""
        return (self._retry(type_) or self._default).attempts

    def _retry(self, type_: str) -> Retry | None:
        return self._declared[type_].retry
