"""Dead letters of the bank's commands, stored as they are."""

COMMANDS = "account:command"


def letters(connection, states, *, entity="account-7", stream="account:command-7"):
    """Store dead letters in these states, all of one entity."""
    for state, wait in states:
        connection.execute(
            "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id,"
            " stream_name, type, entity, state, reason, process, next_attempt_at) "
            "SELECT 'account', %s, coalesce(max(global_position), 0) + 1, gen_random_uuid(), %s, "
            "'Deposit', %s, %s, 'HandlerError', 'a:1', now() + %s::interval "
            "FROM reservation.dead_letters",
            [COMMANDS, stream, entity, state, wait],
        )
