"""Retries of a message that failed."""

from dataclasses import replace

from consumers.failures.failure import (
    PERMANENT,
    Failure,
    HandlerRaisedError,
    ProviderFailure,
    Reason,
    reason_of,
)
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
        cause, provider = None, None
        if isinstance(error, HandlerRaisedError):
            cause, provider = error.__cause__, error.of_provider
        may_be_last = provider is None or _is_at_fault(provider, tried)
        attempts, wait = next_attempt(
            cause, self._retry(type_), self._default, tried, may_be_last=may_be_last
        )
        failure = Failure.of(error, self.detail, attempts=attempts, wait=wait)
        return failure if provider is None else _of_provider(failure, provider, tried)

    def most(self, type_: str) -> int:
        """Return how often a message is tried at most.

        With a breaker a first failure is never the last.
        """
        most = (self._retry(type_) or self._default).attempts
        return most if self._declared[type_].breaker is None else max(most, 2)

    def _retry(self, type_: str) -> Retry | None:
        return self._declared[type_].retry


def _of_provider(failure: Failure, provider: ProviderFailure, tried: int) -> Failure:
    """Return the failure of a message that was tried so often before, if it is the provider's."""
    if provider.is_probe:
        failure = replace(failure, attempts=tried)
    if provider.wait is not None:
        return replace(failure, reason=Reason.BREAKER, wait=provider.wait)
    if failure.wait is not None and failure.attempts <= tried:
        return replace(failure, wait=max(failure.wait, provider.pause))
    return failure


def _is_at_fault(provider: ProviderFailure, tried: int) -> bool:
    """Return whether a message failed again although its provider answers others."""
    is_closed = provider.wait is None
    return is_closed and provider.is_alone and not provider.is_probe and tried > 0
