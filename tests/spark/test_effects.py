"""The verdict on each reserved command and on each event, on messages made by hand."""

from dataclasses import dataclass

import pytest

from reservation import Component, MessageIdInEvents, Processed
from reservation.messages.message import followed_id, further_id
from spark_jobs.analysis.effects import EffectsJob
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.snapshot.progress import Consumed, Progress
from tests.spark.messages import message, reading

pytestmark = pytest.mark.spark

POSITION = 100
CAUSE = "0f5ba3a5-3c5c-4d3c-9a55-2a5a0e3dbb5f"


@dataclass
class Deposit:
    a_id: str
    key: str


@dataclass
class Close:
    a_id: str


def component(once=None):
    """Return a component that reserves a command and handles another directly."""
    made = Component("a", id="a_id")
    made.reserve(Deposit, into="t", entity="a_id", key="key")
    made.handle(Deposit, once=once)(lambda command, entity, context: None)
    made.handle(Close)(lambda command, entity, context: None)
    return made


def copy(global_position, **columns):
    """Return a reserved command's row."""
    return message(global_position, f"t-1+k{global_position}", "Deposit", **columns)


def event(global_position, causation, type_="Deposited", stream="a-1", **columns):
    """Return an event's row."""
    return message(
        global_position,
        stream,
        type_,
        causation=causation,
        position=global_position,
        **columns,
    )


def derived(ordinal, stream="a-1"):
    """Return the id that the framework gives to an event."""
    return str(followed_id(CAUSE, stream, ordinal))


def further(ordinal, entity="a-1"):
    """Return the id of a message that a handler writes to another entity's stream."""
    return str(further_id(CAUSE, entity, "a-1", ordinal))


HANDLED = {"reserved": 1, "handled": 1}
CASES = {
    "nothing": ([], {}, {}),
    "handled": ([copy(1), event(2, 1)], HANDLED, {"events": 1, "causes": 1}),
    "handled though it was a dead letter once": (
        [copy(50), event(51, 50)],
        HANDLED,
        {"events": 1, "causes": 1},
    ),
    "pending": ([copy(101)], {"reserved": 1, "pending": 1}, {}),
    "unhandled, up to and including the position": (
        [copy(99), copy(100), copy(101)],
        {"reserved": 3, "unhandled": 2, "pending": 1},
        {},
    ),
    "dead": ([copy(50), copy(150)], {"reserved": 2, "dead": 2}, {}),
    "several events of other types, or in other streams, are one effect": (
        [copy(1), event(2, 1), event(3, 1, "Noted"), event(4, 1, stream="a-2")],
        HANDLED,
        {"events": 3, "causes": 1},
    ),
    "two events of one type in one stream are two effects": (
        [copy(1), event(2, 1), event(3, 1, "Noted"), event(4, 1), event(5, 1)],
        HANDLED,
        {"events": 4, "causes": 1, "effect_twice": 1},
    ),
    "unless their ids are the framework's": (
        [copy(1, id=CAUSE), event(2, 1, id=derived(0)), event(3, 1, id=derived(1))],
        HANDLED,
        {"events": 2, "causes": 1},
    ),
    "all of them": (
        [
            copy(1, id=CAUSE),
            event(2, 1, id="6a0f6b4e-5b1a-4e88-9d8b-0d7f3a3f9a11"),
            event(3, 1, id=derived(0)),
        ],
        HANDLED,
        {"events": 2, "causes": 1, "effect_twice": 1},
    ),
    "and those of the framework are another one together": (
        [
            copy(1, id=CAUSE),
            event(2, 1, id="6a0f6b4e-5b1a-4e88-9d8b-0d7f3a3f9a11"),
            event(3, 1, id=derived(0)),
            event(4, 1, id=derived(1)),
        ],
        HANDLED,
        {"events": 3, "causes": 1, "effect_twice": 1},
    ),
    "those of another stream are not": (
        [copy(1, id=CAUSE), event(2, 1, id=derived(0)), event(3, 1, id=derived(1, "a-2"))],
        HANDLED,
        {"events": 2, "causes": 1, "effect_twice": 1},
    ),
    "further messages to another entity are one effect": (
        [
            copy(1, id=CAUSE, entity_id="1"),
            event(2, 1, id=further(0)),
            event(3, 1, id=further(1)),
        ],
        HANDLED,
        {"events": 2, "causes": 1},
    ),
    "also of an entity whose id is written in another way": (
        [
            copy(1, id=CAUSE, entity_id="1A"),
            event(2, 1, id=further(0, "a-1a")),
            event(3, 1, id=further(1, "a-1a")),
            event(4, 1, id=derived(0, "a-1a"), stream="a-1a"),
        ],
        HANDLED,
        {"events": 3, "causes": 1},
    ),
    "those of the handling for another entity are not": (
        [
            copy(1, id=CAUSE, entity_id="1"),
            event(2, 1, id=further(0)),
            event(3, 1, id=further(1, "a-2")),
        ],
        HANDLED,
        {"events": 2, "causes": 1, "effect_twice": 1},
    ),
    "an event follows a message that is not there, or none": (
        [event(2, 1), event(3, None), event(4, None)],
        {},
        {"events": 3, "without_cause": 3},
    ),
    "a command that is handled directly is a cause, and needs no effect": (
        [
            message(1, "a:command-1", "Close"),
            message(2, "a:command-1", "Close"),
            event(3, 1, "Closed"),
        ],
        {},
        {"events": 1, "causes": 1},
    ),
    "a pseudo event is no event, but tells that its cause was handled": (
        [copy(1), event(2, 1, "PseudoEvent"), event(3, 1, "PseudoEvent")],
        HANDLED,
        {"causes": 1},
    ),
    "what is of a type that is not reserved there is nothing to be handled": (
        [message(1, "t-1+x", "Audit"), event(2, 1)],
        {},
        {"events": 1, "causes": 1},
    ),
}


def judged(spark, messages, once=None):
    """Return the findings for messages in the store."""
    progress = Progress(
        {"a:command": Consumed(POSITION), "t": Consumed(POSITION, letters=[50, 150])}
    )
    job = EffectsJob(component(once))
    whole = FullRun(reading(spark, messages), progress)
    (of_category,), events = job.results(whole.take(job))
    return of_category, events, whole.findings().collect()


def counts_of(result):
    """Return the counts that are not 0."""
    names = [name for name in result.__dataclass_fields__ if name != "category"]
    return {name: getattr(result, name) for name in names if getattr(result, name)}


@pytest.mark.parametrize("name", CASES)
def test_every_message_is_counted_under_its_verdict(spark, name):
    """Every message is counted under its verdict, alone and beside correct ones."""
    messages, of_commands, of_events = CASES[name]
    of_category, events, findings = judged(spark, messages)
    assert counts_of(of_category) == of_commands
    assert counts_of(events) == of_events
    counted = {**of_commands, **of_events}
    assert {row.finding for row in findings} == {
        name.replace("_", "-")
        for name in ("unhandled", "effect_twice", "without_cause")
        if name in counted
    }


def test_the_name_of_a_component_is_compared_as_it_is(spark):
    """The component's name is compared exactly; an entity's id may be written differently."""
    made = Component("fundsTransfer", id="a_id")
    made.reserve(Deposit, into="t", entity="a_id", key="key")
    made.handle(Deposit)(lambda command, entity, context: None)
    ids = [str(further_id(CAUSE, "fundsTransfer-1a", "fundsTransfer-9", n)) for n in (0, 1)]
    messages = [
        copy(1, id=CAUSE, entity_id="1A"),
        event(2, 1, id=ids[0], stream="fundsTransfer-9"),
        event(3, 1, id=ids[1], stream="fundsTransfer-9"),
    ]
    job = EffectsJob(made)
    progress = Progress({"fundsTransfer:command": Consumed(POSITION), "t": Consumed(POSITION)})
    whole = FullRun(reading(spark, messages), progress)
    _, events = job.results(whole.take(job))
    assert counts_of(events) == {"events": 2, "causes": 1}


@pytest.mark.parametrize(("once", "silent"), [(Processed(), 1), (MessageIdInEvents(), 0)])
def test_handling_may_leave_nothing_in_the_log_where_its_trace_is_elsewhere(spark, once, silent):
    """Without an event a command is handled if its strategy records that elsewhere."""
    of_category, _, findings = judged(spark, [copy(1)], once)
    assert (of_category.silent, of_category.unhandled) == (silent, 1 - silent)
    assert len(findings) == 1 - silent


def test_the_findings_name_the_messages_and_what_they_follow(spark):
    """Findings name repeated events, events without a cause and commands without effect."""
    _, _, findings = judged(
        spark, [copy(1), event(2, 1), event(3, 1), event(4, 1), event(6, 5), copy(7)]
    )
    found = [
        (row.finding, row.global_position, row.command_category, row.key_stream)
        for row in sorted(findings, key=lambda row: row.global_position)
    ]
    assert found == [
        ("effect-twice", 3, "t", "t-1+k1"),
        ("effect-twice", 4, "t", "t-1+k1"),
        ("without-cause", 6, None, None),
        ("unhandled", 7, "t", "t-1+k7"),
    ]
