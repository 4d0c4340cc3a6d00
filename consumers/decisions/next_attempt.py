"""What follows when a handler raised: an attempt after a wait, the last failure, or neither."""

from consumers.dead_letters.failure import HandlerRaisedError
from reservation.declaration.category import CategoryDeclarations
from reservation.handlers.retry import next_attempt


def decide_on(error: HandlerRaisedError, declared: CategoryDeclarations, tried: int) -> bool:
    """Note in an error what its message's policy, or the handler itself, says to do next."""
    retry = declared[error.message.type].retry
    error.exhausted, error.wait = next_attempt(error.__cause__, retry, tried)
    return error.is_decided
