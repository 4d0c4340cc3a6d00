"""Taking a log of message types to its end, batch by batch."""


class Letter:
    """Stands for a stored message, of which only the type counts."""

    def __init__(self, type_):
        self.type = type_


def take(batch_size, log, limit=100):
    """Take a log to its end, and return how much was read and how much taken of it."""
    read, taken = [], []
    while log:
        messages = [Letter(type_) for type_ in log[: batch_size.limit(limit)]]
        end = batch_size.cut(messages)
        read.append(len(messages))
        taken.append("".join(log[:end]))
        log = log[end:]
    return read, taken
