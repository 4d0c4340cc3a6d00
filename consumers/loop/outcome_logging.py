"""Logging the outcome of messages, without anything of their data."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from consumers.batch.batch_handling import BatchResult
from consumers.batch.batch_runner import BatchRunner
from consumers.batch.letter_transaction import RetryResult
from consumers.failures.failure import Reason, Unhandled
from consumers.runtime.observability.logs import Log
from reservation.messages.message import StoredMessage, printable
from reservation.raised import describe


def log_batch(log: Log, result: BatchResult, held: Sequence[int]) -> None:
    """Log the outcome of a batch."""
    log_conflicts(log, result.conflicts)
    log_letters(log, result.letters)
    if result.read and result.part is not None:
        partitions = result.part.partitions
        where = {} if partitions in (None, tuple(held)) else {"part": partitions}
        log.info("batch_committed", position=result.to, read=result.read, **where, **result.counts)


def log_retried(log: Log, result: RetryResult, of_calls: int) -> None:
    """Log the outcome of due letters, some of which had only waited for async calls."""
    log_conflicts(log, result.conflicts)
    log_letters(log, result.letters)
    if of_calls:
        log.info("calls_committed", handled=of_calls)
    states = Counter(letter.state for letter in result.letters if not letter.runs)
    outcomes = {
        "handled": result.handled - of_calls,
        "dead": states["dead"],
        "waiting": states["waiting"],
    }
    if any(outcomes.values()):
        log.info("dead_letters_retried", **outcomes)


def crash_text(category: str, runner: BatchRunner | None, error: BaseException) -> str:
    """Return the text for a crash of a consumer, with the messages that were in flight."""
    messages = () if runner is None else runner.uncommitted
    what = f"the consumer of {category} was ended by {describe(error)}"
    if not messages:
        return f"While it had no message in flight, {what}"
    more = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
    return f"While it handled {messages[0]}{more}, {what}"


def log_conflicts(log: Log, conflicts: Sequence[tuple[StoredMessage, str]]) -> None:
    """Log the commands whose key another command has with different content."""
    for message, key_stream in conflicts:
        log.warning(
            "command_conflict",
            type=message.type,
            stream_name=message.stream_name,
            global_position=message.global_position,
            key_stream=key_stream,
        )


def log_letters(log: Log, letters: Sequence[Unhandled]) -> None:
    """Log each message that is dead, other than conflicts, and how many are parked or wait."""
    waiting = [letter for letter in letters if letter.state == "waiting" and not letter.runs]
    _log_waiting(log, [letter for letter in waiting if not letter.is_held_up])
    _log_held_up(log, [letter for letter in waiting if letter.is_held_up])
    for letter in letters:
        if letter.state != "dead" or letter.failure.reason is Reason.CONFLICT:
            continue
        log.warning(
            "message_dead",
            type=printable(letter.message.type),
            stream_name=printable(letter.message.stream_name),
            global_position=letter.message.global_position,
            reason=letter.failure.reason.value,
            attempts=letter.failure.attempts,
            error=letter.failure.error,
        )
    parked = [letter for letter in letters if letter.state == "parked"]
    if parked:
        entities = {letter.entity for letter in parked}
        log.info("message_parked", count=len(parked), entities=len(entities))


def _log_held_up(log: Log, letters: Sequence[Unhandled]) -> None:
    """Log the messages whose handlers may not be called yet: one event for a type and a reason."""
    alike: defaultdict[tuple[str, Reason], list[float]] = defaultdict(list)
    for letter in letters:
        alike[letter.message.type, letter.failure.reason].append(letter.failure.wait or 0.0)
    for (type_, reason), waits in alike.items():
        log.info(
            "message_held_up",
            type=printable(type_),
            reason=reason.value,
            count=len(waits),
            next_attempt_in=round(min(waits), 3),
        )


def _log_waiting(log: Log, letters: Sequence[Unhandled]) -> None:
    """Log the messages that wait for their next attempt: one event for those that failed alike."""
    failed_alike: defaultdict[tuple[str, str | None], list[Unhandled]] = defaultdict(list)
    for letter in letters:
        failed_alike[letter.message.type, letter.failure.digest].append(letter)
    for (type_, _), waiting in failed_alike.items():
        first = min(waiting, key=lambda letter: letter.failure.wait or 0.0)
        log.warning(
            "message_waiting",
            type=printable(type_),
            count=len(waiting),
            stream_name=printable(first.message.stream_name),
            global_position=first.message.global_position,
            attempts=first.failure.attempts,
            next_attempt_in=round(first.failure.wait or 0.0, 3),
            error=first.failure.error,
        )
