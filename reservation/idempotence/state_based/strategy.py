"""State-based consistent messaging: a duplicate is handled again, on the state as it was before.

The state is stored as versions in a stream, each with the id of the message that made it, in the
transaction that writes the outputs. A message with a version has been handled. It is handled again
on the state before its first handling. The state is not stored again, and the same outputs are
written again under the same ids, which the store recognizes. So neither a redelivery nor a later
message changes an output. (Source: Tomek Masternak and Szymon Pobiega, *Exactly once*, "State-based
consistent messaging".)

Handlers have to be deterministic. Ids, random numbers and the time come from the `Context` and are
kept with the version. If a second handling has another result nevertheless, the first one stands,
and an error is logged.

A reissue under a new id is a new message. Side effects of a handler other than its state and its
outputs happen at every handling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from reservation.errors import DeclarationError
from reservation.idempotence.state_based.check import look
from reservation.idempotence.state_based.states import state_category
from reservation.idempotence.strategy import Check, Incoming, Strategy
from reservation.serialization import codec
from reservation.serialization.fields import is_message_class
from reservation.serialization.immutability import never_changes
from reservation.store.statements import Statement

Form = Literal["whole", "delta"]


@dataclass(frozen=True, slots=True)
class StateBased(Strategy):
    """Declares that a handler changes a state of which every version is kept.

    ``@component.handle(FireAt, once=StateBased())`` calls ``handler(command, state, context)``,
    where the state is an instance of the component's entity. What the handler changes in it is
    stored with what it returns, or writes with the context.

    Attributes:
        state: what a version holds: the "whole" state, or as a "delta" the fields that changed,
            with the whole every 50 versions.
        window: how long versions are kept at least, so that a repeated message is recognized;
            None keeps them for ever.
    """

    # All handlers of a component share its states, so all these strategies share one check.
    state: Form = field(default="whole", compare=False)
    window: timedelta | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.state not in get_args(Form):
            raise DeclarationError(
                f"StateBased: state={self.state!r} is neither 'whole' nor 'delta'"
            )
        if self.window is not None and not isinstance(self.window, timedelta):
            raise DeclarationError(f"StateBased: window={self.window!r} is not a timedelta")
        if self.window is not None and self.window <= timedelta(0):
            raise DeclarationError(f"StateBased: window={self.window} is not longer than 0")

    @property
    def keeps_state(self) -> bool:
        """Whether handlers change a state that is kept, and are called again for a duplicate."""
        return True

    @property
    def as_delta(self) -> bool:
        """Whether versions need hold only the fields that changed."""
        return self.state == "delta"

    def categories(self, consumer: str) -> Sequence[str]:
        """Return the category of the component's states."""
        return [state_category(consumer)]

    def declare(self, component: str, command: type, entity: type | None) -> None:
        """Make sure that the component's entity can be kept as a state.

        Raises:
            DeclarationError: there is none, or it cannot be stored, cannot be changed, or has no
                form in JSON.
        """
        del command
        if entity is None or not is_message_class(entity):
            name = "None" if entity is None else entity.__name__
            raise DeclarationError(
                f"{component}: StateBased keeps a dataclass, and the entity is {name}; decorate it "
                f"with @dataclass, make it a Struct, an attrs class or a Pydantic model, or choose "
                f"another strategy"
            )
        if never_changes(entity):
            raise DeclarationError(
                f"{component}: with StateBased a handler changes the entity, and a "
                f"{entity.__name__} cannot be changed; leave frozen=True out, or choose another "
                f"strategy"
            )
        try:
            codec.encode(entity())
        except Exception as error:
            raise DeclarationError(
                f"{component}: {entity.__name__} cannot be kept as a state: {codec.explain(error)}"
            ) from error

    def look(self, consumer: str, category: str, batch: Sequence[Incoming]) -> Statement[Check]:
        """Return what looks for the messages among the stored versions.

        Raises:
            IdempotenceKeyError: the stream of a message's state would have too long a name.
        """
        del consumer  # entity streams differ between components
        return look(category, batch)
