"""The message types that a component knows: from the name in the store to a class, and back.

A name in a message is looked up here and nowhere else, so nothing is imported because a message
names it. A class has the name that it is declared under, its own, and perhaps former names, under
which messages of it are stored too. Decoding begins here as well: a class that has upcasters is
decoded through them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from reservation.errors import DeclarationError, EncodeError
from reservation.messages.message import StoredMessage
from reservation.messages.upcasting import Chain, Recognizer, Upcaster, code_of
from reservation.messages.written import Written, declare_version, written_as
from reservation.serialization import codec
from reservation.serialization.adapters.adapter import UnfitClassError, refusal


class MessageTypes:
    """Classes by the names that messages of them are stored under.

    Attributes:
        renamed: the names of those classes that have several, their own first.
    """

    def __init__(self, shared: "MessageTypes | None" = None) -> None:
        self._types: dict[str, type] = {}
        self._chain_of: dict[str, Chain] = {}  # by stored name
        self.renamed: dict[type, tuple[str, ...]] = {} if shared is None else shared.renamed
        self._names: dict[type, tuple[str, ...]] = {} if shared is None else shared._names
        self._stored_as: dict[type, str] = {} if shared is None else shared._stored_as
        self._chains: dict[type, Chain] = {} if shared is None else shared._chains

    def of_category(self) -> "MessageTypes":
        """Return an empty registry for another category: a name may be another class's there."""
        return MessageTypes(self)

    def has(self, type_: type) -> bool:
        """Return whether a class is registered."""
        return self._types.get(type_.__name__) is type_

    def add(
        self,
        type_: type,
        *,
        former_names: str | Iterable[str] = (),
        stored_as: str | None = None,
        version: int | None = None,
    ) -> str:
        """Register a class and return its name, under which all that is declared of it is.

        It may be called several times for a class; the former names are put together.
        """
        name = type_.__name__
        try:
            codec.prepare(type_)
        except UnfitClassError as error:
            raise DeclarationError(refusal(type_, error)) from error
        except (TypeError, ValueError, NameError, RecursionError) as error:
            raise DeclarationError(f"{name} cannot be a message: {error}") from error
        stored_as = self._to_be_written(type_, stored_as, version)
        former = (
            tuple(former_names)
            if isinstance(former_names, Iterable) and not isinstance(former_names, str)
            else (former_names,)
        )
        _check_names(name, former)
        claimed = dict.fromkeys((name, *self._names.get(type_, ()), *former, stored_as))
        for one in claimed:
            self._check_claim(one, type_)
        self._types |= dict.fromkeys(claimed, type_)
        self._names[type_] = tuple(claimed)
        if len(claimed) > 1:
            self.renamed[type_] = tuple(claimed)
        self._stored_as[type_] = stored_as
        self._spread_chain(type_)
        return name

    def forget(self, type_: type) -> None:
        """Take a class out; its names and shapes stay known, for the registries of others."""
        for name in [name for name, known in self._types.items() if known is type_]:
            del self._types[name]
            self._chain_of.pop(name, None)

    def add_upcaster(self, type_: type, upcast: Upcaster, when: Recognizer | None) -> None:
        """Register the next upcaster of a class."""
        chain = self.chain(type_)
        chain.add(upcast, when)
        self._chains[type_] = chain
        self._spread_chain(type_)

    def chain(self, type_: type) -> Chain:
        """Return the upcasters of a class, which may be none."""
        return self._chains.get(type_) or Chain(type_, self.written(type_))

    def names_of(self, type_: type) -> tuple[str, ...]:
        """Return the names that messages of a registered class are stored under."""
        return self._names[type_]

    def upcasters(self, name: str) -> list[Any]:
        """Return the identity of the upcasters of a stored type: their code."""
        type_ = self._types[name]
        steps = self._chains[type_].steps if type_ in self._chains else []
        return [[step.to, code_of(step.upcast), code_of(step.when)] for step in steps]

    def is_upcast(self, name: str) -> bool:
        """Return whether messages of a type may have to be decoded through upcasters."""
        return name in self._chain_of

    def written(self, type_: type) -> Written:
        """Return how messages of a class are written, registered or not."""
        written = written_as(type_)
        name = self._stored_as.get(type_, written.name)
        return written if name == written.name else Written(name, written.version)

    def decode(self, message: StoredMessage) -> object:
        """Return a message as an instance of its class, through the class's upcasters."""
        chain = self._chain_of.get(message.type)
        if chain is not None:
            return chain.decode(message)
        decoded: object = message.decode(self._types[message.type])
        return decoded

    def __getitem__(self, name: str) -> type:
        """Return the class of a type name; KeyError if there is none."""
        return self._types[name]

    def __contains__(self, name: str) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def _to_be_written(self, type_: type, stored_as: str | None, version: int | None) -> str:
        """Return the name to write messages of a class under, from all that says so."""
        try:
            if version is not None:
                declare_version(type_, version)
            own = written_as(type_).name
        except EncodeError as error:
            raise DeclarationError(str(error)) from error
        name = type_.__name__
        said = self._stored_as.get(type_, own)
        if stored_as is None:
            return said
        _check_names(name, (stored_as,), allowed=name)
        if said not in (name, stored_as):
            raise DeclarationError(
                f"{name} cannot be stored as {stored_as} and as {said}; declare only one of them"
            )
        return stored_as

    def _check_claim(self, name: str, type_: type) -> None:
        known = self._types.get(name, type_)
        if known is type_:
            return
        if known.__name__ == type_.__name__:
            raise DeclarationError(
                f"Two classes are named {name}: in {known.__module__} and in {type_.__module__}; "
                f"the name is the message type, so it must be one class's"
            )
        raise DeclarationError(
            f"{name} is the type of {known.__module__}.{known.__name__} and of "
            f"{type_.__module__}.{type_.__name__}; a name that is stored must lead to one class, "
            f"so leave it out of former_names= and stored_as= of the other"
        )

    def _spread_chain(self, type_: type) -> None:
        chain = self._chains.get(type_)
        if chain is not None:
            self._chain_of |= dict.fromkeys(self._names[type_], chain)


def _check_names(name: str, former: tuple[object, ...], allowed: str | None = None) -> None:
    """Make sure that names of stored types are texts, and not the name of the class itself."""
    for one in former:
        if not isinstance(one, str) or not one:
            shown = one.__name__ if isinstance(one, type) else repr(one)
            raise DeclarationError(
                f"{name}: former_names= and stored_as= take the names of types as strings, such as "
                f"former_names='Former', not {shown}"
            )
        if one == name and one != allowed:
            raise DeclarationError(
                f"{name}: former_names= has {name}, which is the name that the class has now; "
                f"leave it out"
            )
