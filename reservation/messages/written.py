"""Under which name and version messages of a class are written, as the class itself says.

Two attributes of a class hold for everybody who writes messages of it, senders included:

- ``__schema_version__ = 2``: the version of its shape, from 1. It is written to the metadata, as
  ``schemaVersion``, and a reader knows by it which upcasters a message needs.
- ``__stored_as__ = "MoneyDeposited"``: the type to write instead of the class's name, as long as
  there are readers that know no other.

A class without them is written under its name and without a version. Subclasses inherit neither. A
component may declare the version instead; then it holds for every writer of the process.
"""

from collections.abc import Callable
from typing import NamedTuple

from reservation.errors import DeclarationError, EncodeError

_VERSION = "__schema_version__"
_STORED_AS = "__stored_as__"


class Written(NamedTuple):
    """The written form of a class.

    Attributes:
        name: the type.
        version: the version of the shape, from 1; None if none is written.
    """

    name: str
    version: int | None = None


WrittenAs = Callable[[type], Written]


def written_as(class_: type) -> Written:
    """Return how messages of a class are written."""
    return _known[class_]


def declare_version(class_: type, version: object) -> None:
    """Let messages of a class be written with a version that a component declares."""
    name = class_.__name__
    if type(version) is not int or version < 1:
        raise DeclarationError(
            f"{name}: version={version!r} is not a version; a version is a whole number from 1"
        )
    known = written_as(class_)
    if known.version not in (None, version):
        raise DeclarationError(
            f"{name} cannot have version {version} and version {known.version}, which its "
            f"{_VERSION} or another component declares; declare only one of them"
        )
    _known[class_] = known._replace(version=version)


def _read(class_: type) -> Written:
    own = vars(class_)
    version, name = own.get(_VERSION), own.get(_STORED_AS)
    if version is not None and (type(version) is not int or version < 1):
        raise EncodeError(
            f"{class_.__name__}.{_VERSION} is {version!r}, not a version; a version is a whole "
            f"number from 1"
        )
    if name is not None and (not isinstance(name, str) or not name):
        raise EncodeError(
            f"{class_.__name__}.{_STORED_AS} is not a name; it is the type to write, as a string"
        )
    return Written(name or class_.__name__, version)


class _Known(dict[type, Written]):
    """Classes' written forms, read at first use; a dict is the fastest to look up."""

    def __missing__(self, class_: type) -> Written:
        written = self[class_] = _read(class_)
        return written


_known = _Known()
