"""Rates: how often a handler is called at most, over all processes of the store.

What has to wait does so in the database, and the consumer goes on with other messages. (The limit
is that of the generic cell rate algorithm, GCRA, which smooths ATM traffic and the requests of
redis-cell's users.)
"""

from datetime import timedelta

from reservation.errors import DeclarationError
from reservation.handlers.arguments import whole_number
from reservation.serialization.durations import MICROSECOND, time_span, written

# Between two calls. More often than this, a limit in a database would be what limits.
SHORTEST, LONGEST = timedelta(microseconds=100), timedelta(days=1)

MOST_AT_ONCE = 1_000_000

_WAY_OUT = "to make no calls, stop the component's consumers"


class Rate:
    """A limit for the calls of one handler, or for those with each value of a field.

    ``@payments.handle(Capture, key="capture_id", rate=Rate(5, per="1s", by="merchant_id"))``

    It holds over all processes of the store. The calls are evenly spaced: 5 a second are 200 ms
    apart. A message that has to wait is *waiting* with the reason ``limited``, which takes none of
    its attempts; later messages of its entity wait behind it, and others go on. A call that is
    repeated, because a process died or another was first, counts again.

    Attributes:
        calls: how many calls are made in `per` at most.
        per: the time span.
        burst: how many calls may be made at once, if there were none for a while.
        by: the field of the message for each value of which the limit holds; None for all messages
            of the handler together.
    """

    __slots__ = ("burst", "by", "calls", "per")

    def __init__(
        self, calls: int, *, per: str | timedelta, burst: int = 1, by: str | None = None
    ) -> None:
        """Set the limit.

        Args:
            calls: how many calls are made in a time span at most; at least 1, and from one a day to
                10,000 a second.
            per: the time span, such as "1s" or "1m", or a `timedelta`.
            burst: how many calls may be made at once, if there were none for a while; 1 to make
                no call earlier than ``per / calls`` after the one before.
            by: the field of the message for each value of which the limit holds, such as
                "merchant_id"; None for all messages of the handler together.

        Raises:
            DeclarationError: one of them is out of its range, or not what it must be.
        """
        self.calls = whole_number("Rate: calls", calls, MOST_AT_ONCE, "5", _WAY_OUT)
        self.burst = whole_number("Rate: burst", burst, MOST_AT_ONCE, "10", _WAY_OUT)
        try:
            self.per = time_span(per)
        except ValueError as error:
            raise DeclarationError(f"Rate: per={error}") from None
        if not SHORTEST * calls <= self.per <= LONGEST * calls:
            raise DeclarationError(
                f"Rate: {calls} calls per={written(self.per)!r} are not from one a day to 10,000 a "
                f'second; write Rate(5, per="1s")'
            )
        if by is not None and not (isinstance(by, str) and by):
            raise DeclarationError(
                f"Rate: by={by!r} does not name a field of the message; write "
                f'by="merchant_id", or leave it out'
            )
        self.by = by

    def __repr__(self) -> str:
        burst = "" if self.burst == 1 else f", burst={self.burst}"
        by = "" if self.by is None else f", by={self.by!r}"
        return f"Rate({self.calls}, per={written(self.per)!r}{burst}{by})"

    @property
    def interval(self) -> timedelta:
        """The time between two calls, rounded up to microseconds."""
        return -(-(self.per // MICROSECOND) // self.calls) * MICROSECOND
