"""Good components of the tests, under the names by which other processes import them."""

from reservation.strategies import MessageIdInEvents, PositionInEvents, Processed, StateBased
from tests.apps.idempotence import copied, key_of, numbered, opened, purse, revised
from tests.support.awaiting import awaiting
from tests.support.controls import deposit, open_, withdraw

processed = purse(Processed())
processed_by_key = purse(Processed(key=key_of))
message_id = purse(MessageIdInEvents())
revisions = revised()
states = purse(StateBased("whole"))
deltas = purse(StateBased("delta"))
sequence = purse(PositionInEvents())
pseudo_events = purse(PositionInEvents(pseudo_events=True))
initiate = opened()
reservation = copied()
awaited = awaiting(purse(Processed()))
awaited_reservation = awaiting(copied())

_SENT = [withdraw("a", "5"), deposit("b", "10"), withdraw("c", "5"), deposit("d", "1", "2")]
_REISSUED = [*_SENT, withdraw("a", "5")]

# What each is sent.
SENT = {
    "processed": _SENT,
    "processed_by_key": _REISSUED,
    "message_id": _SENT,
    "revisions": [numbered(command, n) for n, command in enumerate(_SENT, 1)],
    "states": _SENT,
    "deltas": _SENT,
    "sequence": _SENT,
    "pseudo_events": _SENT,
    "initiate": [open_(), open_(account="2"), *_SENT, open_()],
    "reservation": _REISSUED,
    "awaited": _SENT,
    "awaited_reservation": _REISSUED,
}
