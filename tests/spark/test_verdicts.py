"""The verdict on each message, by cases in one store that is judged once."""

from collections import Counter

import pytest

from tests.spark.builders import ROOT
from tests.spark.shelf import (
    FOLLOWED,
    UNWATCHED,
    WATCHED,
    Message,
    Shelf,
    copy,
    derived,
    derived_elsewhere,
    event,
    further,
    letter,
    opens,
    sent,
    unread,
)

# What is stored for one entity, and what is found of it: the kind, and of which message.
OF_COMMANDS = {
    "reserved": ([sent(), copy()], []),
    "duplicates": ([sent(), copy(), sent(), unread(sent())], []),
    "missing": ([sent(), sent()], [("missing", 0)]),
    "pending": ([unread(sent())], []),
    "orphan": ([copy()], [("orphan", 0)]),
    "an orphan with more than one message": ([copy(), copy()], [("orphan", 0), ("multiple", 1)]),
    "more than one message": (
        [sent(), copy(), copy(), copy()],
        [("multiple", 2), ("multiple", 3)],
    ),
    "without a key": (
        [sent(None), sent(None), unread(sent(None))],
        [("missing", 0), ("missing", 1)],
    ),
    "a type that is not reserved there is neither a reservation nor an orphan": (
        [sent(), copy(type_="Audit"), copy(stream="t-{e}x", type_="Open")],
        [("missing", 0), ("wrong-type", 1), ("wrong-type", 2)],
    ),
    "a dead letter is not missing": ([letter(sent())], []),
    "a dead letter without a key is not missing": ([letter(sent(None))], []),
    "a dead letter is not pending": ([letter(unread(sent()))], []),
    "a dead letter whose key was reserved": ([letter(sent()), sent(), copy()], []),
    "an initiation that is lost": ([opens()], [("missing", 0)]),
    "a pseudo event starts no stream": ([opens(), event(0, "PseudoEvent")], [("missing", 0)]),
    "a start behind pseudo events": (
        [opens(), event(None, "PseudoEvent"), event(0, "Opened", first=1), event(0, "PseudoEvent")],
        [],
    ),
    "a conflict that is not recorded is a mismatch too": (
        [sent(), copy(), sent(says="other")],
        [("conflict", 2), ("conflict-mismatch", 2)],
    ),
    "a recorded conflict": (
        [sent(), copy(), letter(sent(says="other"), "conflict")],
        [("conflict", 2)],
    ),
    "a recorded conflict that is none": (
        [sent(), copy(), letter(sent(), "conflict")],
        [("conflict-mismatch", 2)],
    ),
    "a recorded conflict that is reserved": (
        [letter(sent(), "conflict"), copy()],
        [("conflict-mismatch", 0)],
    ),
    "a conflict that is a dead letter for another reason": (
        [sent(), copy(), letter(sent(says="other"))],
        [("conflict", 2)],
    ),
    "a record of what was not read": ([sent(), copy(), letter(unread(sent()), "conflict")], []),
}

# Of what others may have read nothing is recorded.
OF_CONFLICTS = {
    "with the reservation": ([sent(), copy(), sent(says="other"), sent()], [("conflict", 2)]),
    "the reserved command need not be the first": (
        [sent(says="other"), sent(), copy()],
        [("conflict", 0)],
    ),
    "another type": ([sent(), copy(), sent(type_="Withdraw")], [("conflict", 2)]),
    "before the reservation": (
        [unread(sent()), unread(sent(says="other")), unread(sent())],
        [("conflict", 1)],
    ),
    "a reservation that says something else": ([sent(), copy("tampered")], [("conflict", 0)]),
    "a record of none": ([sent(), copy(), letter(sent(), "conflict")], [("conflict-mismatch", 2)]),
    "with what the start of the stream follows": (
        [opens(), opens(), opens("other"), event(0, "Opened"), event(0, "Deposited")],
        [("conflict", 2)],
    ),
    "with a stream that something else started": (
        [opens(), event(10**6, "Deposited")],
        [("conflict", 0), ("without-cause", 1)],
    ),
}


def handled(*events: Message) -> list[Message]:
    """Return a command and its copy, which events follow."""
    return [sent(), copy(), *events]


OF_EFFECTS = {
    "handled": (handled(event(1)), []),
    "unhandled": (handled(), [("unhandled", 1)]),
    "a dead letter": ([sent(), letter(copy())], []),
    "handled though it was a dead letter once": ([sent(), letter(copy()), event(1)], []),
    "events of other types or in other streams are one effect": (
        handled(event(1), event(1, "Noted"), event(1, stream="a-{e}x")),
        [],
    ),
    "events of one type in one stream are several": (
        handled(event(1), event(1, "Noted"), event(1), event(1)),
        [("effect-twice", 4), ("effect-twice", 5)],
    ),
    "unless their ids are the framework's": (
        handled(event(1, derived=derived(0)), event(1, derived=derived(1))),
        [],
    ),
    "all of their ids": (
        handled(event(1), event(1, derived=derived(0))),
        [("effect-twice", 3)],
    ),
    "those of the framework are another effect together": (
        handled(event(1), event(1, derived=derived(0)), event(1, derived=derived(1))),
        [("effect-twice", 3), ("effect-twice", 4)],
    ),
    "an id of the framework for another stream": (
        handled(event(1, derived=derived(0)), event(1, derived=derived_elsewhere(1))),
        [("effect-twice", 3)],
    ),
    "events that are written to another entity are one effect": (
        handled(
            event(1, stream="a-{e}x", derived=further(0)),
            event(1, stream="a-{e}x", derived=further(1)),
        ),
        [],
    ),
    "an id of the framework for the handling of another entity": (
        handled(
            event(1, stream="a-{e}x", derived=further(0)),
            event(1, stream="a-{e}x", derived=further(1, "a-E")),
        ),
        [("effect-twice", 3)],
    ),
    "an event that follows nothing that is there": (
        [event(10**6), event(None)],
        [("without-cause", 0), ("without-cause", 1)],
    ),
    "a command that is handled directly": (
        [Message("a:command-{e}", "Close", {"aId": "{e}"})] * 2 + [event(0, "Closed")],
        [],
    ),
    "a pseudo event says that its cause was handled": (
        handled(event(1, "PseudoEvent"), event(1, "PseudoEvent")),
        [],
    ),
    "a type that is not reserved there is a cause only": (
        [copy(type_="Audit"), event(0)],
        [("wrong-type", 0)],
    ),
}


@pytest.fixture
def shelf(connection):
    """Give what writes the messages of cases."""
    return Shelf(connection)


def test_each_case_is_judged_as_the_docs_say(shelf, reconcile):
    """Every message of every case is found, or not, and the counts add up."""
    regions = {FOLLOWED: OF_EFFECTS, UNWATCHED: OF_CONFLICTS, WATCHED: OF_COMMANDS}
    put = {
        (region, name): shelf.put(region, messages)
        for region, cases in regions.items()
        for name, (messages, _) in cases.items()
    }
    shelf.consumers()
    found = reconcile(app="tests.spark.shelf:component", app_dir=ROOT)
    for (region, name), positions in put.items():
        of_case = [
            (finding, positions.index(at)) for finding, at in found.findings if at in positions
        ]
        assert sorted(of_case) == sorted(regions[region][name][1]), name

    kinds = Counter(found.found)
    reserved, initiated, effects, events = found.counts
    assert sum(kinds.values()) == sum(len(of) for _, of in all_cases(regions))
    for counts in (reserved, initiated):
        keys = counts["keyless"] + counts["keys"]
        assert keys == sum(counts[name] for name in ("reserved", "missing", "pending", "dead"))
    assert reserved["missing"] + initiated["missing"] == kinds["missing"]
    assert reserved["conflicts"] + initiated["conflicts"] == kinds["conflict"]
    assert reserved["conflict_mismatches"] == kinds["conflict-mismatch"]
    assert (reserved["orphans"], reserved["wrong_type"]) == (kinds["orphan"], kinds["wrong-type"])
    assert (reserved["multiple"], reserved["dead"]) == (2, 3)
    assert (effects["unhandled"], effects["dead"]) == (1, 1)
    assert effects["reserved"] == sum(
        effects[name] for name in ("handled", "pending", "unhandled", "dead")
    )
    assert (events["effect_twice"], events["without_cause"]) == (5, 3)


def all_cases(regions):
    return [case for cases in regions.values() for case in cases.values()]
