"""Made-up reports: one with everything in it, and unusual ones."""

import dataclasses
import math
from datetime import UTC, datetime, timedelta

from spark_jobs.common.result import (
    VIOLATIONS,
    AcceptedFinding,
    Burst,
    CommandCounts,
    EffectCounts,
    Events,
    Finding,
    Latency,
    Reissues,
    Report,
    Sender,
    SubscriptionCounts,
    Volume,
)

TIME = datetime(2026, 3, 14, 15, 9, 26, tzinfo=UTC)
HOUR = timedelta(hours=1)
# What could steer a terminal, a page, a label or a parser.
NASTY = "<script>alert('x')</script>\u202egnp\x1b[31m&\"\\\n]]>\x00\ufffe{{ 7*7 }}[bold]x[/bold]"


def category(**counts: int) -> CommandCounts:
    """Return the counts of the bank's deposits, 0 unless given."""
    zeros = dict.fromkeys(
        (
            "commands",
            "keys",
            "keyless",
            "duplicates",
            "reserved",
            "missing",
            "pending",
            "dead",
            "orphans",
            "multiple",
            "conflicts",
            "wrong_type",
            "conflict_mismatches",
            "corrected",
        ),
        0,
    )
    return CommandCounts("account:command", "accountTransaction", False, **{**zeros, **counts})


def finding(name: str, number: int = 0, text: str = "Deposit") -> Finding:
    """Return a row that needs attention."""
    return Finding(
        id=f"{name}-{4242 + number}-{number:08x}",
        finding=name,
        command_category="account:command",
        reservation_category="accountTransaction",
        key_stream=f"accountTransaction-{text}",
        stream_name=f"accountTransaction-123+{text}{number}",
        position=0,
        global_position=4242 + number,
        type=text,
        message_id=f"{number:08x}-0000-4000-8000-{text}",
        time=TIME,
    )


def empty() -> Report:
    """Return the report of a store without a message."""
    events = Events("account", 0, 0, 0, 0)
    effects = [EffectCounts("accountTransaction", 0, 0, 0, 0, 0, 0)]
    return Report("account", TIME, [category()], effects, events, [])


def in_order(**more: object) -> Report:
    """Return a report in which all commands took effect once, and some were reissued."""
    return Report(
        "account",
        TIME,
        [category(commands=1040, keys=1000, duplicates=40, reserved=1000)],
        [EffectCounts("accountTransaction", 1000, 1000, 0, 0, 0, 0)],
        Events("account", 1000, 1000, 0, 0),
        [],
        **more,  # type: ignore[arg-type]
    )


def of_categories(number: int) -> Report:
    """Return a report of a component whose commands are in so many reservation categories."""
    names = [f"account{name}Transaction" for name in "ABCDEFGH"[:number]]
    counts = {"commands": 1_184_203, "keys": 1_176_020, "duplicates": 8_183, "reserved": 1_176_020}
    return dataclasses.replace(
        in_order(),
        categories=[
            dataclasses.replace(category(**counts), reservation_category=name) for name in names
        ],
        effects=[EffectCounts(name, 1_176_020, 1_176_020, 0, 0, 0, 0) for name in names],
    )


def subscribing(**counts: int) -> Report:
    """Return the report of a component of subscriptions alone, 0 unless given."""
    names = ("subscribed", "handled", "passed", "pending", "unhandled", "dead")
    of_payments = SubscriptionCounts("payment", **{**dict.fromkeys(names, 0), **counts})
    events = Events("order", of_payments.handled, of_payments.handled, 0, 0)
    return Report("order", TIME, [], [], events, [], subscriptions=[of_payments])


def everything(text: str = "Deposit") -> Report:
    """Return a report with something of every kind, in which a text is wherever one may be."""
    deposits = category(
        commands=184_203,
        keys=176_020,
        keyless=12,
        duplicates=8_154,
        reserved=175_810,
        missing=3,
        pending=190,
        dead=29,
        orphans=2,
        multiple=1,
        conflicts=17,
        wrong_type=4,
        conflict_mismatches=2,
        corrected=5,
    )
    openings = CommandCounts(
        "account:command", "account", True, 5_310, 5_200, 0, 110, 5_200, 0, 0, 0, 0, 0, 0, 0
    )
    return Report(
        component="account",
        time=TIME,
        categories=[deposits, openings],
        effects=[EffectCounts("accountTransaction", 175_813, 175_640, 31, 118, 6, 18)],
        events=Events("account", 181_002, 180_840, 5, 7),
        subscriptions=[SubscriptionCounts(text, 5_040, 4_000, 1_000, 17, 19, 4)],
        findings=[
            finding(name, 100 * n + m, text) for n, name in enumerate(VIOLATIONS) for m in range(3)
        ],
        accepted=[
            AcceptedFinding(finding("conflict", 900 + n, text), text, text, TIME) for n in range(2)
        ],
        accepted_counts={"conflict": 2},
        latency=[*over_time(14 * 24), *by_type(text)],
        volume=volume(14 * 24),
        reissues=reissues(text),
        snapshot_held=timedelta(seconds=4.2),
    )


def over_time(hours: int) -> list[Latency]:
    """Return latencies that go up by day and down by night, a gap in between, for every stage."""
    found = []
    for hour in range(hours):
        if hours > 100 and hours // 2 <= hour < hours // 2 + 9:
            continue
        busy = 1.4 - math.cos(hour / 24 * 2 * math.pi) + 0.3 * math.sin(hour * 1.7)
        for stage, slow in (("reserved", 0.006), ("handled", 0.004), ("whole", 0.011)):
            p50 = slow * busy
            p99 = p50 * (9 + 5 * math.sin(hour * 0.9)) * (30 if hour == 130 else 1)
            found.append(
                Latency(stage, None, TIME - (hours - hour) * HOUR, 500, p50, p50 * 3, p99, 3 * p99)
            )
    return found


def by_type(text: str = "Deposit") -> list[Latency]:
    """Return the latencies of all hours, of all commands and by type."""
    return [
        Latency(stage, type_, None, count, slow, 3 * slow, 9 * slow, 400 * slow)
        for stage, slow in (("whole", 0.011), ("reserved", 0.006), ("handled", 0.004))
        for type_, count in ((None, 180_000), (text, 120_000), ("Withdraw", 60_000))
    ]


def volume(hours: int) -> list[Volume]:
    """Return what was sent in each hour, more by day."""
    found = []
    for hour in range(hours):
        commands = int(550 * (1.2 - math.cos(hour / 24 * 2 * math.pi)))
        again = commands // 22 + (400 if hour == 130 else 0)
        left = commands // 2 if hour >= hours - 2 else 0
        found.append(Volume(TIME - (hours - hour) * HOUR, commands + again, again, commands - left))
    return found


def reissues(text: str = "Deposit") -> Reissues:
    """Return some senders, one of which is unnamed."""
    day = timedelta(days=1)
    return Reissues(
        senders=[
            Sender("mobileApp", "Deposit", 120_400, 114_400, 4_700, 6_000, 3 * day, 9),
            Sender("mobileApp", "Withdraw", 40_000, 39_300, 600, 700, 0.4 * day, 4),
            Sender("branchTerminal:nightly", "Deposit", 20_000, 18_800, 1_100, 1_200, HOUR, 31),
            Sender(None, "Withdraw", 8_000, 7_900, 90, 100, 11 * day, 3),
            Sender(text, text, 1_113, 1_100, 12, 13, None, 1),
        ],
        longest_gap=11.4 * day,
        longest_gap_key=f"accountTransaction-{text}",
        bursts=[
            Burst(f"accountTransaction-{text}{n}", 31 - n, TIME, TIME + timedelta(seconds=n))
            for n in range(4)
        ],
        longest_span=12.6 * day,
        longest_span_key=f"accountTransaction-{text}",
    )
