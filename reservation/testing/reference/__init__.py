"""The reference interpreter: what must be stored, taking one message at a time on the log alone.

Nothing is cached and nothing is batched. It shares with the consumers a component's declarations
and the effects of one message (`reservation.effects`), and no more: how messages are recognized,
copied, compared and parked is written here once more, as plainly as possible.
"""
