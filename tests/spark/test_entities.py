"""Entities whose ids are not the texts in the data of the messages that are for them."""

import uuid

from reservation.messages.message import further_id
from tests.apps.bank import drain
from tests.spark.builders import ROOT, head
from tests.spark.naming import IDS, component

APP = "tests.spark.naming:component"


def write(connection, stream, type_, data, metadata=None, id_=None):
    """Write a message as any client does."""
    connection.execute(
        "SELECT message_store.write_message(%s::varchar, %s::varchar, %s::varchar, %s, %s)",
        [str(id_ or uuid.uuid4()), stream, type_, data, metadata],
    )


def forge(connection):
    """Add, for each message, an event whose id derives from it as that of another entity.

    Return the type of the message by the position of its event.
    """
    rows = connection.execute(
        "SELECT m.global_position, m.id, m.stream_name, m.type FROM message_store.messages m "
        "WHERE message_store.category(m.stream_name) IN ('thing:command', 'scale')"
    ).fetchall()
    forged = {}
    for at, id_, stream, type_ in rows:
        id_ = further_id(str(id_), "thing-somebody", "thing-other", 2)
        metadata = (
            f'{{"causationMessageGlobalPosition": {at}, "causationMessageStreamName": "{stream}"}}'
        )
        write(connection, "thing-other", "Noted", '{"of": "nobody"}', metadata, id_)
        forged[head(connection)] = type_
    return forged


# How a cause may be written, and whether it names a message: a whole number or a text of digits.
CAUSES = {
    "{at}": True,
    '"{at}"': True,
    "{at}.0": False,
    "{at}.4": False,
    '"{at}.0"': False,
    "{at}0e-1": False,
    "-{at}": False,
    "1e18": False,
    "true": False,
}


def follow(connection):
    """Write a command for each way to write a cause, and an event; return them by its position."""
    events = {}
    for number in CAUSES:
        write(connection, "thing:command-1", "Plain", '{"thingId": "1"}')
        at = head(connection)
        metadata = f'{{"causationMessageGlobalPosition": {number.format(at=at)}}}'
        write(connection, "thing-1", "Noted", "{}", metadata)
        events[head(connection)] = number
    return events


def test_entities_and_causes_are_those_that_the_consumers_find(connection, reconcile):
    """The effects of a message are one, however its entity is written, unless an id is forged."""
    for type_, (data, _) in IDS.items():
        stream = "scale-1" if type_ in ("Weighed", "Told") else "thing:command-1"
        write(connection, stream, type_, data)
    drain(connection, component)
    forged, events = forge(connection), follow(connection)
    found = reconcile(app=APP, app_dir=ROOT)
    twice = [forged.get(at, at) for finding, at in found.findings if finding == "effect-twice"]
    without = [events.get(at, at) for finding, at in found.findings if finding == "without-cause"]
    nothing = [number for number, names in CAUSES.items() if not names]
    assert (twice, without) == ([*forged.values()], nothing)
    assert sorted(twice) == sorted(IDS)
    assert len(found.found) == len(IDS) + len(nothing)
    assert found.counts[0] == {
        "events": 3 * len(IDS) + len(CAUSES),
        "causes": len(IDS) + len(CAUSES) - len(nothing),
        "effect_twice": len(IDS),
        "without_cause": len(nothing),
    }
