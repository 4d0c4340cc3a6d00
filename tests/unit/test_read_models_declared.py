"""What a declaration of a read model accepts and refuses."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from reservation import Context, ReadContext, ReadModel, Recorded
from reservation.errors import DeclarationError, StreamNameError
from reservation.read_models.read_model import component_of


@dataclass(frozen=True)
class Booked:
    booking_id: str


@dataclass(frozen=True)
class Cancelled:
    booking_id: str


@pytest.fixture
def model():
    return ReadModel("occupancy", version=2)


def nothing(event, context):
    """Handle an event by doing nothing."""


def refused(pattern, call, *arguments, **options):
    with pytest.raises(DeclarationError, match=pattern):
        call(*arguments, **options)


@pytest.mark.parametrize("name", ["Occupancy", "", "2nd", "room-nights", "a" * 41, "öl", None])
def test_the_name_is_one_of_a_schema_without_quotes(name):
    """Readers write it before each view."""
    refused("cannot be named", ReadModel, name, version=1)


@pytest.mark.parametrize("name", ["public", "reservation", "message_store", "pg_nights"])
def test_schemas_of_others_are_refused(name):
    """Views would be mixed with what is there."""
    refused("schema of others", ReadModel, name, version=1)


def test_a_name_like_that_of_a_version_is_refused():
    """The tables of occupancy's version 2 are in that schema."""
    refused("give it as version=", ReadModel, "occupancy_2", version=1)


@pytest.mark.parametrize("version", [0, -1, "2", True, 1.0, None])
def test_the_version_is_a_number_from_1(version):
    """It is part of the name of a schema."""
    refused("not a number of a version", ReadModel, "occupancy", version=version)


def test_it_needs_tables_and_a_handler(model):
    """Nothing is run before."""
    refused("has no tables", component_of, model)
    model.tables(lambda connection: None)
    refused("handles no event", component_of, model)
    model.handle(Booked, category="booking")(nothing)
    assert component_of(model).name == "occupancy_2"


def test_each_is_declared_once(model):
    """Two functions for one thing would leave it open which is called."""
    model.tables(lambda connection: None)
    refused("two functions make the tables", model.tables, lambda connection: None)
    model.handle(Booked, category="booking")(nothing)
    refused("two handlers", model.handle_many(Booked, category="booking"), nothing)
    model.handle(Booked, category="archived")(nothing)


def test_handlers_are_plain_functions_of_two_arguments(model):
    """An async one has no connection, and a returned event would be written nowhere."""

    async def waits(event, context):
        """Wait."""

    def returns(event: Booked, context: ReadContext) -> Booked:
        return event

    def takes_an_entity(event, entity, context):
        """Take an entity."""

    def takes_another(event: Cancelled, context: ReadContext) -> None:
        """Take another event."""

    def takes_a_context(event: Booked, context: Context) -> None:
        """Take a context that writes."""

    handle = model.handle(Booked, category="booking")
    refused("is async", handle, waits)
    refused("returns None", handle, returns)
    refused("event, context", handle, takes_an_entity)
    refused("is annotated to take event", handle, takes_another)
    refused("is annotated to take context", handle, takes_a_context)
    refused("has no parentheses", model.handle, nothing, category="booking")


def test_a_handler_of_many_takes_recorded_events_of_the_class(model):
    """A handler of one event, or of other events, would fail at the first batch."""

    def one(event: Booked, context: ReadContext) -> None:
        """Take one."""

    def bare(events: Sequence[Booked], context: ReadContext) -> None:
        """Take them without their messages."""

    def others(events: Sequence[Recorded[Cancelled]], context: ReadContext) -> None:
        """Take others."""

    def right(events: Sequence[Recorded[Booked]], context: ReadContext) -> None:
        """Take these."""

    declare = model.handle_many(Booked, category="booking")
    refused("is annotated to take event", declare, one)
    refused(r"write Sequence\[Recorded\[Booked\]\]", declare, bare)
    refused(r"write Sequence\[Recorded\[Booked\]\]", declare, others)
    assert declare(right) is right


def test_the_tables_are_made_by_a_function_of_a_connection(model):
    """It is called when the version is run for the first time."""
    refused("cannot be called with connection", model.tables, lambda: None)


def test_a_category_is_one(model):
    """A stream has no consumers."""
    with pytest.raises(StreamNameError):
        model.handle(Booked, category="booking-1")


def test_a_read_context_writes_nothing():
    """The rows depend on the events alone."""
    for name in ("write", "send", "reply", "id", "random"):
        assert not hasattr(ReadContext, name)
