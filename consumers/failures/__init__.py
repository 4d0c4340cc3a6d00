"""Messages that could not be handled: why, and when they are tried again.

The states of a message in ``reservation.dead_letters``::

                 its handler failed            the last attempt failed
    (batch) ──────────────────────▶ waiting ─────────────────────────▶ dead ───▶ discarded
       │                            ▲  │  │   tried again by a person   │          (by a person)
       │                            └──│──│─────────────────────────────┘
       │                      another  │  │ success
       │                      failure  ▼  └──────────────▶ handled
       │  behind an open one of        ▲                      ▲
       └─ its entity ────────▶ parked ─┴──────────────────────┘

A message whose async call has not ended yet waits too, with the reason *running*: it has not
failed, and is due once the call has ended, or once another process holds its partition. So does one
whose handler may not be called yet because of a rate, with the reason *limited*, or of a breaker,
with *breaker_open*.

A message that no retry can help (it cannot be decoded, its type is unknown, its key is unusable or
in conflict) is dead at once. Waiting, parked and dead messages are open: later messages of their
entity are parked. The open messages of an entity form a queue in the order of the log. The first of
them is due if it is parked, or if its time to wait is over. Queries compute that; it is not stored.
"""
