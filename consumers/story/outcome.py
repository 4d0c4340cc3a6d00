"""What became of a command, in a sentence."""

from collections.abc import Sequence

from consumers.dead_letters.stored_letters import OPEN, StoredLetter
from consumers.story.content.entries import Entry, Kind, Outcome
from consumers.story.content.kinds import component_of, is_command
from consumers.story.search.following import Gathered
from consumers.story.search.reading import Reading
from reservation.messages import stream_name as names
from reservation.messages.message import StoredMessage

_DONE = {
    Kind.REJECTION: Outcome("Rejected", "warn"),
    Kind.EVENT: Outcome("Handled", "good"),
    Kind.NO_EVENT: Outcome("Handled, without an event", "good"),
}
_PENDING = Outcome("Not handled yet", "warn")


def outcome_of(reading: Reading, found: Gathered, entries: Sequence[Entry]) -> Outcome | None:
    """Return what became of the command of a story; None if it is of no command.

    Args:
        reading: the store.
        found: what belongs to the command.
        entries: of the messages, and of what is about them.
    """
    if not is_command(found.command):
        return None
    own = [m for m in (found.command, found.copy) if m is not None]
    positions = {message.global_position for message in own}
    letters = [
        entry.letter
        for entry in entries
        if entry.letter is not None and entry.global_position in positions
    ]
    for letter in letters:
        if letter.state in OPEN:
            return _of_open(letter)
    for entry in entries:
        if entry.kind in _DONE and entry.cause in positions:
            return _DONE[entry.kind]
    if any(letter.state == "discarded" for letter in letters):
        return Outcome("A dead letter, which was discarded", "bad")
    return _by_position(reading, own[-1], found)


def _of_open(letter: StoredLetter) -> Outcome:
    if letter.next_attempt_at is not None:
        return Outcome(f"Waits for its next attempt, after {letter.attempts} failed", "warn")
    if letter.state == "parked":
        return Outcome(f"Parked behind the dead letter at {letter.behind}", "warn")
    if letter.state == "retry":
        return Outcome("Is about to be tried again", "warn")
    if letter.reason == "conflict":
        return Outcome("In conflict with another command", "bad")
    return Outcome(f"A dead letter: {letter.reason}", "bad")


def _by_position(reading: Reading, message: StoredMessage, found: Gathered) -> Outcome:
    """Return what the position of the consumer says, where nothing follows from a command."""
    consumer = component_of(found.command)
    category = names.category(message.stream_name)
    ((position, has_group),) = reading.rows(
        "dealt_with", consumer=consumer, category=category, stream=message.stream_name
    )
    if not has_group:
        return Outcome("No consumer has read it", "warn")
    if position < message.global_position:
        return _PENDING
    if found.copy is None and found.looked_until < reading.end_of_log:
        return Outcome("Read by its consumer; nothing that follows was found so far", "warn")
    return Outcome("Handled; nothing follows from it", "good")
