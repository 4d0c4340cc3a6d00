"""The ids of messages that follow another."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from reservation.messages.message import followed_id


@given(cause=st.uuids(), name=st.text(), ordinal=st.integers(0, 1000))
def test_the_ids_of_what_follows_are_those_of_the_standard(cause, name, ordinal):
    """Ids of events are UUIDs of version 5, which other clients can compute too."""
    assert followed_id(str(cause), name, ordinal) == uuid.uuid5(cause, f"{name} {ordinal}")
