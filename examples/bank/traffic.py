"""What a bank's senders send, reissues included.

A sender that got no answer sends again: at once and several times (a burst), long after (late), or
the very same message (a retry with the same message id).
"""

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from bank.messages import Close, Deposit, Open, Withdraw
from reservation import Write, stream_name

ONE_IN = 10  # one send in ten is a reissue
OPENING_DEPOSIT = Decimal("100.00")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is to be sent.

    Attributes:
        accounts: the ids of the accounts.
        prompt: the sends of each account in order, with bursts and retries among them.
        late: reissues to be sent when everything before has been handled.
    """

    accounts: list[str]
    prompt: dict[str, list[Write]]
    late: list[Write]

    def __len__(self) -> int:
        """Return how many sends there are in all."""
        return sum(map(len, self.prompt.values())) + len(self.late)


def make_traffic(*, accounts: int, sends: int, seed: int) -> Traffic:
    """Make up what is sent; one in ten of it is a reissue.

    Args:
        accounts: how many accounts there are; one in ten of them is closed in the end.
        sends: how many commands are sent in all, reissues included; at least three an account.
        seed: the same seed gives the same amounts, order and ids.
    """
    chance = random.Random(seed)
    names = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(accounts)]
    closing = names[::10]
    reissues = sends // ONE_IN
    steps = sends - reissues - accounts - len(closing)
    now = datetime.now(UTC)

    prompt: dict[str, list[Write]] = {
        name: [_send(Open(name, f"customer-{n}", now), name, chance)]
        for n, name in enumerate(names)
    }
    for n in range(steps):
        name = names[n % accounts]
        prompt[name].append(_send(_transaction(name, n < accounts, chance, now), name, chance))
    for name in closing:
        prompt[name].append(_send(Close(name, now), name, chance))

    late = [
        _again(chance.choice(prompt[chance.choice(names)]), chance) for _ in range(reissues // 3)
    ]
    for n in range(reissues - len(late)):
        sent = prompt[chance.choice(names)]
        place = chance.randrange(len(sent))
        # A burst stands right behind its first issue, a retry keeps the id.
        sent.insert(place + 1, sent[place] if n % 2 else _again(sent[place], chance))
    return Traffic(names, prompt, late)


def in_batches(traffic: Traffic, names: list[str], size: int) -> Iterator[list[Write]]:
    """Give the prompt sends of some accounts, round by round, so that each keeps its order.

    A batch holds a message id once: a retry is a send of its own.
    """
    queues = [iter(traffic.prompt[name]) for name in names]
    batch: dict[uuid.UUID | None, Write] = {}
    while queues:
        waiting = []
        for queue in queues:
            write = next(queue, None)
            if write is None:
                continue
            waiting.append(queue)
            if write.id in batch or len(batch) == size:
                yield list(batch.values())
                batch = {}
            batch[write.id] = write
        queues = waiting
    if batch:
        yield list(batch.values())


def _transaction(
    name: str, opening: bool, chance: random.Random, now: datetime
) -> Deposit | Withdraw:
    key = str(uuid.UUID(int=chance.getrandbits(128), version=4))
    if opening:
        return Deposit(key, name, OPENING_DEPOSIT, now)
    amount = Decimal(chance.randrange(1, 10_000)) / 100
    if chance.random() < 0.5:
        return Deposit(key, name, amount, now)
    return Withdraw(key, name, amount, now)


def _send(command: object, name: str, chance: random.Random) -> Write:
    stream = stream_name.of("account:command", name)
    return Write(command, stream, id=uuid.UUID(int=chance.getrandbits(128), version=4))


def _again(write: Write, chance: random.Random) -> Write:
    return _send(write.message, stream_name.identifier(write.stream_name) or "", chance)
