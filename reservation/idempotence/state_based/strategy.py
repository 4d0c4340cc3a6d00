"""State-based consistent messaging: a duplicate is handled again, on the state as it was before.

The state is stored as versions in a stream, each naming the message that made it, before anything
is published. A message that is found among them was handled: it is handled again on the state as it
was before its first handling, the state is not stored again, and the same outputs with the same ids
are published once more, which the store takes as what it has already. So a crash between the two
commits loses no output, and neither a redelivery nor what came in between changes one. (Source:
Tomek Masternak and Szymon Pobiega, *Exactly once*, "State-based consistent messaging".)

What it asks for: handlers that do the same when they are given the same. Ids, random numbers and
the time come from the `Context` and are kept with the version. Where a handling comes out otherwise
all the same, what was stored is published, and an alarm is raised.

What it does not cover: a reissue under a new id is a new message, and what a handler does anywhere
but to its state and its outputs is done at every handling.
"""

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from reservation.errors import DeclarationError
from reservation.messages import stream_name
from reservation.serialization import codec

Form = Literal["whole", "delta"]

# Versions that may build on one that holds the whole state, so that none takes long to build.
MOST_DELTAS = 50


@dataclass(frozen=True, slots=True)
class StateBased:
    """Declares that a handler changes a state of which every version is kept.

    ``@component.handle(FireAt, once=StateBased())`` calls ``handler(command, state, context)``,
    where the state is an instance of the component's entity, a dataclass. What the handler changes
    in it is stored; what it returns, or writes with the context, is published after that.

    Attributes:
        state: what a version holds: the "whole" state, or as a "delta" the fields that changed,
            with the whole every 50 versions.
        window: how long versions are kept at least, so that a message that comes again is known;
            None keeps them for ever.
    """

    state: Form = "whole"
    window: timedelta | None = None

    def __post_init__(self) -> None:
        if self.state not in get_args(Form):
            raise DeclarationError(
                f"A version holds the 'whole' state or a 'delta', not {self.state!r}"
            )
        if self.window is not None and self.window <= timedelta(0):
            raise DeclarationError(f"The window of StateBased is longer than 0, not {self.window}")


def state_category(component: str) -> str:
    """Return the category of a component's states: ``range:state`` for ``range``."""
    return f"{component}{stream_name.TYPE_SEPARATOR}state"


def state_stream(entity_stream: str) -> str:
    """Return the stream of an entity's states: ``range:state-1`` for ``range-1``.

    Raises:
        StreamNameError: the name is longer than an index takes.
    """
    category = stream_name.category(entity_stream)
    return stream_name.check(state_category(category) + entity_stream[len(category) :])


def check_state(component: str, entity: type | None) -> None:
    """Make sure that a component's entity can be kept as a state.

    Raises:
        DeclarationError: it has none, or one that is no dataclass or has no form in JSON.
    """
    if entity is None or not dataclasses.is_dataclass(entity):
        name = "None" if entity is None else entity.__name__
        raise DeclarationError(
            f"{component}: StateBased keeps a dataclass, and the entity is {name}; decorate it "
            f"with @dataclass, or choose another way to be idempotent"
        )
    try:
        codec.encode(entity())
    except Exception as error:
        raise DeclarationError(
            f"{component}: {entity.__name__} can not be kept as a state: {codec.explain(error)}"
        ) from error
