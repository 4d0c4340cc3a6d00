"""The invariants' own test: each must notice when it is broken."""

import uuid

from tests.apps.bank import broken, drain
from tests.support.controls import COMMANDS, close, deposit, open_, withdraw

# A letter of the copy that was handled last, and then its effect is gone.
LETTER = (
    "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id, "
    "stream_name, type, state, reason, process) "
    "SELECT 'account', 'accountTransaction', global_position, id, stream_name, type, '{state}', "
    "'handler', 'host:1' FROM message_store.messages WHERE stream_name = "
    "'accountTransaction-123+w2'; "
)
DAMAGED = "DELETE FROM message_store.messages WHERE type = 'WithdrawalRejected'"

DAMAGE = {
    "a command was lost": (
        (
            "DELETE FROM message_store.messages WHERE type = 'Deposit' "
            "AND stream_name LIKE '%command%' AND position = 1"
        ),
        {"I1", "I3", "I4"},
    ),
    "an effect was lost": (
        "DELETE FROM message_store.messages WHERE type = 'Closed'",
        {"I2", "I8"},
    ),
    "an effect came twice": (
        (
            "INSERT INTO message_store.messages (stream_name, position, type, data, metadata) "
            "SELECT stream_name, 9, type, data, metadata FROM message_store.messages "
            "WHERE type = 'Deposited'"
        ),
        {"I2", "I4", "I5"},
    ),
    "an effect has no command": (
        (
            "INSERT INTO message_store.messages (stream_name, position, type, data) "
            "VALUES ('account-9', 0, 'Noted', '{\"accountId\": \"9\"}')"
        ),
        {"I3"},
    ),
    "an effect follows another key's command": (
        (
            'UPDATE message_store.messages SET data = data || \'{"depositId": "x"}\' '
            "WHERE type = 'Deposited'"
        ),
        {"I2", "I3"},
    ),
    "a stream has a gap": (
        "UPDATE message_store.messages SET position = 7 WHERE type = 'Closed'",
        {"I4"},
    ),
    "transactions changed places": (
        (
            "UPDATE message_store.messages SET position = 20 - position "
            "WHERE stream_name = 'account-123'; "
            "UPDATE message_store.messages SET position = position - 16 "
            "WHERE stream_name = 'account-123'"
        ),
        {"I5", "I6"},
    ),
    "reservations changed places": (
        (
            "UPDATE message_store.messages SET global_position = 1000 - global_position "
            "WHERE stream_name LIKE 'accountTransaction-%'"
        ),
        {"I3", "I5", "I7", "I8"},
    ),
    "an amount changed": (
        (
            "UPDATE message_store.messages SET data = data || '{\"amount\": 1}' "
            "WHERE type = 'Deposited'"
        ),
        {"I6"},
    ),
    "a consumer is behind": (
        "UPDATE reservation.moves SET position = position - 1",
        {"I7"},
    ),
    "a reserved command was not handled": (
        "DELETE FROM message_store.messages WHERE type = 'WithdrawalRejected'",
        {"I2", "I8"},
    ),
    "a letter says that it was handled and it was not": (
        LETTER.format(state="handled") + DAMAGED,
        {"I2", "I8"},
    ),
}


def test_a_dead_letter_accounts_for_what_was_not_handled(connection, store):
    """A dead letter accounts for its message in every state but handled."""
    store.write([open_(), withdraw("w2", "999")], COMMANDS)
    drain(connection)
    connection.execute(LETTER.format(state="parked") + DAMAGED)
    assert broken(connection) == {}


def test_a_broken_invariant_is_noticed(connection, store):
    """Each invariant is reported when it is broken."""
    acknowledged = [uuid.uuid4() for _ in range(6)]
    commands = [open_(), deposit(), deposit(), withdraw(), withdraw("w2", "999"), close()]
    for message_id, command in zip(acknowledged, commands, strict=True):
        store.write(command, COMMANDS, id=message_id)
    drain(connection)
    assert broken(connection, acknowledged) == {}
    missed = {}
    for name, (damage, noticed) in DAMAGE.items():
        with connection.transaction(force_rollback=True):
            connection.execute(damage)
            missed[name] = noticed - set(broken(connection, acknowledged))
    assert missed == {name: set() for name in DAMAGE}
