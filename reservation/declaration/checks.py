"""Checks of what is declared of a message, and of a component as a whole."""

from typing import Any

from reservation.declaration.records import EntityId
from reservation.declaration.table import Declarations
from reservation.errors import DeclarationError
from reservation.handlers.checks.declaration_checks import check_taken
from reservation.handlers.checks.returned_checks import check_events
from reservation.handlers.rate import Rate
from reservation.idempotence.key import can_be_key, check_fields, key_fields
from reservation.idempotence.reserve import Reservation, check_keys
from reservation.messages import stream_name
from reservation.serialization.fields import hints_of
from reservation.serialization.struct_types import shown


def check_recognized(component: str, command: type, key: Any, once: Any) -> None:
    """Make sure that a command has a key, a strategy, or neither in so many words."""
    name = command.__name__
    if key is None and once is ...:
        raise DeclarationError(
            f"{component}: nothing says how a repeated {name} is recognized; declare "
            f"@{component}.handle({name}, key=…) with the field that a reissue has in common with "
            f"it, once=Processed() or another strategy, or once=None if its handler does so itself"
        )


def check_own(component: str, command: type, id_: Any, from_position: Any, correlated: Any) -> None:
    """Make sure that a command has none of the options for messages of other categories."""
    given = {"id": id_ is not None, "from_position": from_position != 0, "correlated": correlated}
    for option, is_given in given.items():
        if is_given:
            raise DeclarationError(
                f"{component}: {option}= of {command.__name__} is for messages of other "
                f"categories; name one with category=, or leave it out"
            )


def check_other(component: str, message: type, key: Any) -> None:
    """Make sure that a message of another category has no key."""
    if key is not None:
        raise DeclarationError(
            f"{component}: key= of {message.__name__} is for commands of the component; a repeated "
            f"message of another category is recognized by what followed from it, or with once="
        )


def check_source(declared: Declarations, message: type, category: Any) -> None:
    """Refuse a category that a component reads or writes as its own."""
    stream_name.check_category(category)
    component = declared.name
    own = {
        component: "has its events; change the entity with @{0}.project",
        declared.command_category: "has its commands; handle them with @{0}.handle, without "
        "category=",
    }
    own |= dict.fromkeys(
        declared.reservation_categories,
        "has its reservations; handle them with @{0}.handle, without category=",
    )
    if category in own:
        raise DeclarationError(
            f"{component}: {message.__name__} cannot be read from {category!r}, the component's "
            f"own category, which {own[category].format(component)}"
        )


def check_selection(component: str, message: type, position: Any, correlated: Any) -> None:
    """Make sure that it is clear which messages of another category are handled."""
    if not isinstance(position, int) or isinstance(position, bool) or position < 0:
        raise DeclarationError(
            f"{component}: from_position={position!r} of {message.__name__} is not a global "
            f"position; give that of the first message to handle, or leave it out for all"
        )
    if not isinstance(correlated, bool):
        raise DeclarationError(
            f"{component}: correlated={correlated!r} of {message.__name__} is neither True nor "
            f"False; the correlation is always that of the component's own category"
        )


def entity_id(declared: Declarations, message: type, id_: Any) -> EntityId:
    """Return the field or the function that gives the entity's id of a message of others."""
    if callable(id_):
        check_fields(message, ())
        check_taken(declared.name, "id=", message, id_)
        return id_  # type: ignore[no-any-return]
    if id_ is not None and not isinstance(id_, str):
        raise DeclarationError(
            f"{declared.name}: id= of {message.__name__} is a {type(id_).__name__}; give it the "
            f"name of a field, or a function of the message"
        )
    if id_ is None:
        fields = check_fields(message, ())
        if declared.id not in fields:
            raise DeclarationError(
                f"{declared.name}: {message.__name__} has no field {declared.id!r} to find its "
                f"{declared.name} by; name one with id=, or a function of the message; it has "
                f"{', '.join(fields)}"
            )
    field = id_ or declared.id
    key_fields(message, field)
    return field


def check_reservation(declared: Declarations, reservation: Reservation) -> None:
    """Make sure that commands can be reserved beside those that are declared."""
    component, into = declared.name, reservation.into
    if into in (component, declared.command_category, *declared.others):
        raise DeclarationError(
            f"{component}: the reservation category {into!r} is in use for the component's "
            f"commands, events or subscriptions; name another with Key(…, into=…)"
        )
    stream_name.check_category(into)
    check_keys(component, reservation, declared.own.reservations.values())


def check_rate(component: str, message: type, rate: Any) -> None:
    """Make sure that what was given as the rate of a handler is one, by a field of its message."""
    name = message.__name__
    if rate is None:
        return
    if not isinstance(rate, Rate):
        given = "the class Rate" if rate is Rate else f"a {type(rate).__name__}"
        raise DeclarationError(
            f'{component}: rate= of {name} is {given}; write rate=Rate(5, per="1s")'
        )
    if rate.by is None:
        return
    fields = check_fields(message, ())
    if rate.by not in fields:
        raise DeclarationError(
            f"{component}: the rate of {name} is by {rate.by!r}, and {name} has no such field; it "
            f"has {', '.join(fields)}"
        )
    hint = hints_of(message)[rate.by]
    if not can_be_key(hint):
        raise DeclarationError(
            f"{component}: the rate of {name} is by {rate.by!r}, a {shown(hint)}; use a field "
            f"that is a string, a whole number, a UUID, a date, a Decimal or a member of an enum"
        )


def check_complete(declared: Declarations) -> None:
    """Make sure that a component can be run as it is declared."""
    name = declared.name
    if not declared.own.handled and not declared.others:
        raise DeclarationError(
            f"The component {name!r} handles no command; declare one with @{name}.handle or "
            f"@{name}.initiate, or messages of others with @{name}.handle(…, category=…)"
        )
    for message in declared.waiting:
        other = declared.types[message.__name__]
        raise DeclarationError(
            f"{name}: {name}.message says how {message.__module__}.{message.__name__} is stored, "
            f"and no handler takes it, while {other.__module__}.{other.__name__} has its name; "
            f"handle it with @{name}.handle({message.__name__}, category=…), or rename one"
        )
    for category in declared.all():
        for one in category.records.values():
            if one.handler is not None or one.projector is not None:  # it is read
                category.types.chain(one.message).check_complete()
    if declared.loads_entities:
        for category in declared.all():
            handlers = {type_: one.handler for type_, one in category.handled.items()}
            check_events(name, handlers, declared.projection.knows_class)
