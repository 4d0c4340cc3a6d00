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
    """Add, for each message, an event whose id derives from it as that of another entity."""
    rows = connection.execute(
        "SELECT m.global_position, m.id, m.stream_name FROM message_store.messages m "
        "WHERE message_store.category(m.stream_name) IN ('thing:command', 'scale')"
    ).fetchall()
    for at, id_, stream in rows:
        forged = further_id(str(id_), "thing-somebody", "thing-other", 2)
        metadata = (
            f'{{"causationMessageGlobalPosition": {at}, "causationMessageStreamName": "{stream}"}}'
        )
        write(connection, "thing-other", "Noted", '{"of": "nobody"}', metadata, forged)


def test_the_effects_of_a_message_are_one_however_its_entity_is_written(connection, reconcile):
    """The ids of events are compared with those for the entity that the consumer has found."""
    for type_, (data, _) in IDS.items():
        stream = "scale-1" if type_ in ("Weighed", "Told") else "thing:command-1"
        write(connection, stream, type_, data)
    drain(connection, component)
    place = {"app": APP, "app_dir": ROOT}
    found = reconcile(**place)
    assert found.found == []
    assert found.counts[0] == {
        "events": 2 * len(IDS),
        "causes": len(IDS),
        "effect_twice": 0,
        "without_cause": 0,
    }
    forge(connection)
    assert reconcile(**place).found == ["effect-twice"] * len(IDS)


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


def test_an_event_follows_what_the_consumers_take_for_its_cause(connection, reconcile):
    """A whole number or a text of digits names a cause, and nothing else does."""
    events = {}
    for number in CAUSES:
        write(connection, "thing:command-1", "Plain", '{"thingId": "1"}')
        at = head(connection)
        metadata = f'{{"causationMessageGlobalPosition": {number.format(at=at)}}}'
        write(connection, "thing-1", "Noted", "{}", metadata)
        events[head(connection)] = number
    found = reconcile(app=APP, app_dir=ROOT).findings
    without = [events[at] for finding, at in found if finding == "without-cause"]
    assert without == [number for number, names in CAUSES.items() if not names]
    assert len(found) == len(without)
