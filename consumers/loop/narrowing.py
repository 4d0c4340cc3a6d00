"""How many messages the next batch takes, once one has failed.

Where the error names a message, the messages before it make up a batch, and then it is handled by
itself. A refused statement or commit names none. Then the batch is halved, until it is committed or
has one message; of the messages that are left of the failed batch, half make up the next one. After
a death of the process each message is handled by itself, because an attempt at more than one could
not be counted for the message that is at fault.

Once the message is found, each batch is up to twice as large as the one before.

Where the database was lost meanwhile, no message is at fault, and none is searched for. The next
batch is half as large all the same, because it may be the batch that the server or the network did
not bear.
"""


class Narrowing:
    """The size of the next batch of one consumer.

    Attributes:
        limit: how many messages the next batch may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = most
        self._suspects = 0  # the next messages, among which is the one that failed
        self._counted = 0  # the next messages, one of which may end the process

    @property
    def searches(self) -> bool:
        """Whether a message that failed, or may have ended the process, was not yet found."""
        return self._suspects > 0 or self._counted > 0

    @property
    def singly(self) -> bool:
        """Whether the next message is handled by itself, and its attempts are counted."""
        return self._counted > 0 or (self._suspects > 0 and self.limit == 1)

    def died(self) -> None:
        """Note that a process died, which may have been due to one of the next messages.

        It may have been in its batch, or in the one after, which is decided on ahead.
        """
        self._counted = 2 * self._most

    def failed(self, size: int, before: int | None) -> None:
        """Note that a batch failed."""
        if before is None:
            self._suspects, self.limit = size, max(size // 2, 1)
        else:
            self._suspects, self.limit = before + 1, max(before, 1)

    def interrupted(self) -> None:
        """Note that a batch was rolled back because the database was lost."""
        self.limit = max(self.limit // 2, 1)

    def committed(self, size: int, *, ends_before_failed: bool, found: bool) -> None:
        """Note that a batch was committed."""
        self._counted = 0 if found else max(self._counted - size, 0)
        if ends_before_failed:
            self._suspects, self.limit = 1, 1
            return
        self._suspects = max(self._suspects - size, 0)
        if self._counted:
            self.limit = 1
        elif self._suspects:
            self.limit = max(self._suspects // 2, 1)
        else:
            self.limit = min(self.limit * 2, self._most)

    def ended(self) -> None:
        """Note that there are no further messages."""
        self._suspects = self._counted = 0
        self.limit = self._most
