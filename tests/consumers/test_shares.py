"""How the processes of a consumer share the partitions of all the categories that they read.

Each process is a worker, with a member in the group of each of its categories; a member's turn is
that of a consumer. The sessions of the members are those of the test, which holds their locks.
"""

import random

import pytest

CONSUMER = "account"
JOIN = "SELECT member FROM reservation.join_group('account', %s, %s, %s, %s, '1 hour', NULL)"
REBALANCE = "SELECT held, epochs FROM reservation.rebalance('account', %s, %s, '1 hour')"


class Fleet:
    """Workers of a consumer, and the partitions of each category that they read."""

    def __init__(self, connection, sizes, chance=None):
        self._connection = connection
        self._sizes = sizes
        self._chance = chance or random.Random(0)
        self.workers = {}  # the members of each by category
        self.moved = 0

    def join(self, worker, categories):
        """Let a worker read these categories too."""
        self.workers.setdefault(worker, {})
        self.workers[worker] |= {
            category: self._connection.execute(
                JOIN, [category, self._sizes[category], f"host:{worker}", worker]
            ).fetchone()[0]
            for category in categories
        }

    def leave(self, worker):
        """Stop a worker."""
        for member in self.workers.pop(worker).values():
            self._connection.execute("SELECT reservation.leave_group(%s)", [member])

    def die(self, worker):
        """End a worker's sessions without a word."""
        for member in self.workers.pop(worker).values():
            self._connection.execute(
                "SELECT pg_advisory_unlock(-1201006963, %s::integer)", [member]
            )

    def round(self):
        """Give every member a turn, in any order; return whether anything has changed."""
        before = self.held()
        turns = [
            (category, member)
            for members in self.workers.values()
            for category, member in members.items()
        ]
        self._chance.shuffle(turns)
        for turn in turns:
            self._connection.execute(REBALANCE, turn)
        after = self.held()
        self.moved += len(after.items() - before.items())
        return before != after

    def settle(self, most):
        """Let so many rounds at most pass until nothing changes any more; return how many."""
        for n in range(most):
            if not self.round():
                assert not self.round(), "a change after a round without one"
                return n
        raise AssertionError(f"no rest after {most} rounds: {self.loads()}")

    def held(self):
        """Return the holder of each partition, None for nobody."""
        of = {member: name for name, own in self.workers.items() for member in own.values()}
        rows = self._connection.execute(
            "SELECT category, partition, holder FROM reservation.leases"
        ).fetchall()
        return {(category, partition): of.get(holder) for category, partition, holder in rows}

    def loads(self):
        """Return how many partitions each worker holds."""
        holders = list(self.held().values())
        return {worker: holders.count(worker) for worker in self.workers}

    def unbalanced(self):
        """Return what the rule would still change."""
        loads, found = self.loads(), []
        for (category, partition), holder in self.held().items():
            may_hold = [name for name, own in self.workers.items() if category in own]
            if holder is None and may_hold:
                found.append(f"{category}/{partition} is free")
            elif holder is not None:
                assert holder in may_hold
                fewer = [name for name in may_hold if loads[name] + 2 <= loads[holder]]
                found += [f"{category}/{partition} of {holder} for {name}" for name in fewer]
        return found


@pytest.fixture
def fleet(connection):
    """Give a function that makes a fleet of workers for categories of so many partitions."""

    def make(chance=None, **sizes):
        connection.execute(
            "TRUNCATE reservation.groups, reservation.leases, reservation.moves,"
            " reservation.members CASCADE"
        )
        return Fleet(connection, sizes, chance)

    return make


def test_two_workers_of_two_categories_hold_one_partition_each(fleet):
    """Whatever the first one held before the second came."""
    found = fleet(commands=1, copies=1)
    found.join("a", ["commands", "copies"])
    found.settle(2)
    assert found.loads() == {"a": 2}
    found.join("b", ["commands", "copies"])
    found.settle(3)
    assert found.loads() == {"a": 1, "b": 1}


def test_a_member_that_searches_gives_nothing_back(fleet, connection):
    """Who took it would not know that one of its messages may have ended a process."""
    found = fleet(commands=4)
    found.join("a", ["commands"])
    found.settle(2)
    found.join("b", ["commands"])
    member = found.workers["a"]["commands"]
    turn = (
        "SELECT held FROM reservation.rebalance("
        "'account', 'commands', %s, '1 hour', may_release => %s)"
    )
    assert connection.execute(turn, [member, False]).fetchone() == ([0, 1, 2, 3],)
    assert connection.execute(turn, [member, True]).fetchone() == ([0, 1],)


def test_workers_of_the_same_categories_share_each_of_them(fleet):
    """Not one of them all commands, and the other all copies, although each would hold as many."""
    found = fleet(commands=8, copies=7)
    found.join("a", ["commands"])
    found.round()
    found.join("b", ["copies"])
    found.round()
    assert found.loads() == {"a": 8, "b": 7}
    found.join("a", ["copies"])
    found.join("b", ["commands"])
    found.settle(12)
    held = list(found.held().items())
    for worker in "ab":
        of = [category for (category, _), holder in held if holder == worker]
        assert of.count("commands") == 4
        assert of.count("copies") in (3, 4)


def test_a_worker_without_a_partition_stands_by(fleet):
    """Nothing moves for it."""
    found = fleet(commands=1)
    found.join("a", ["commands"])
    found.join("b", ["commands"])
    found.settle(2)
    assert sorted(found.loads().values()) == [0, 1]
    assert found.moved == 1


def test_what_a_worker_reads_besides_counts(fleet):
    """One that reads two categories takes less of the one that it shares."""
    found = fleet(commands=4, copies=4)
    found.join("a", ["commands", "copies"])
    found.settle(2)
    found.join("b", ["commands"])
    found.settle(3)
    assert found.loads() == {"a": 4, "b": 4}
    assert [who for (name, _), who in found.held().items() if name == "copies"] == ["a"] * 4


def test_many_partitions_change_hands_in_one_turn(fleet):
    """So a process that joins, or one that dies, is not felt for longer than a few turns."""
    found = fleet(commands=256)
    found.join("a", ["commands"])
    assert found.settle(2) == 1
    found.join("b", ["commands"])
    assert found.settle(4) <= 2
    assert found.loads() == {"a": 128, "b": 128}
    assert found.moved <= 256 + 128 * 2  # free in between, or not
    found.join("c", ["commands"])
    found.settle(12)
    assert sorted(found.loads().values()) == [85, 85, 86]
    found.die("a")
    found.settle(4)
    assert found.loads() == {"b": 128, "c": 128}


@pytest.mark.parametrize("seed", range(40))
def test_any_fleet_comes_to_rest_in_balance(fleet, seed):
    """Workers of different categories join, leave and die; nothing flaps, nothing stays free."""
    chance = random.Random(seed)
    names = [f"category{n}" for n in range(chance.randint(1, 4))]
    found = fleet(chance, **{name: chance.choice([1, 1, 2, 3, 5, 8]) for name in names})
    for number in range(8):
        for _ in range(chance.randint(1, 3)):
            if found.workers and chance.random() < 0.4:
                chance.choice([found.leave, found.die])(chance.choice(list(found.workers)))
            else:
                read = chance.sample(names, chance.randint(1, len(names)))
                found.join(f"w{number}-{chance.random():.6f}", read)
        found.settle(12)
        assert found.unbalanced() == []
