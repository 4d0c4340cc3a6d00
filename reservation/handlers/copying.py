"""Copies of entities: for handlers, which may change and keep them, and to go back to.

A copy shares only what cannot be changed. `copy.deepcopy` makes the same copies and takes ten times
as long, so it is used for rare cases alone: classes that define how they are copied, and classes
that are not written in Python.
"""

import copy
import copyreg
import enum
import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import MemberDescriptorType
from typing import Any, TypeVar

from reservation.serialization.struct_types import PLAIN

T = TypeVar("T")

# Copies by the ids of the originals: what an entity holds twice, its copy holds twice.
_Memo = dict[int, Any]

# Any: an entity holds values of any type.
_Copier = Callable[[Any, _Memo], Any]


def copied(entity: T) -> T:
    """Return a copy of an entity; a change of either does not show in the other.

    Args:
        entity: the entity.

    Raises:
        Exception: it holds something that cannot be copied, such as a lock.
    """
    copy_of: T = _copiers[type(entity)](entity, {})
    return copy_of


def equivalent_copy(entity: T) -> T | None:
    """Return a copy that can take the place of an entity, also for its projectors.

    That is one of an entity that holds plain values, and collections of them. Of any other None is
    returned: a class may copy itself as it suits its handlers, a function in an attribute may look
    at the original, and an object may be compared by its identity.

    Args:
        entity: the entity.
    """
    class_: Any = type(entity)
    parts = _attributes(entity) if _has_attributes_only(class_) else [entity]
    try:
        is_plain = _are_plain(parts) or all(map(_is_plain_throughout, parts))
        return copied(entity) if is_plain else None
    except RecursionError:  # a collection that holds itself
        return None


def _attributes(value: Any) -> list[Any]:
    """Return what an instance that is only attributes holds."""
    class_ = type(value)
    attributes = value.__dict__.values() if class_.__dictoffset__ else ()
    return [*attributes, *(part for _, part in _of_slots(value, _slots(class_)))]


def _is_plain_throughout(value: Any) -> bool:
    """Return whether a value is plain, or a collection of such values."""
    class_ = type(value)
    if class_ in PLAIN or issubclass(class_, enum.Enum):
        return True
    if class_ is dict and not all(map(_is_plain_throughout, value.values())):
        return False
    return class_ in _COLLECTIONS and all(map(_is_plain_throughout, value))


def _copy(value: Any, memo: _Memo) -> Any:
    class_ = type(value)
    if class_ in PLAIN:
        return value
    known = memo.get(id(value))
    return _copiers[class_](value, memo) if known is None else known


def _are_plain(values: Any) -> bool:
    return PLAIN.issuperset(map(type, values))


def _same(value: Any, memo: _Memo) -> Any:
    del memo
    return value


def _sequence(value: Any, memo: _Memo) -> Any:
    made = memo[id(value)] = value.copy()
    if not _are_plain(value):
        for n, part in enumerate(value):
            made[n] = _copy(part, memo)
    return made


def _set(value: Any, memo: _Memo) -> Any:
    made = memo[id(value)] = value.copy()
    if not _are_plain(value):
        made.clear()
        made.update([_copy(part, memo) for part in value])
    return made


def _mapping(value: Any, memo: _Memo) -> Any:
    made = memo[id(value)] = value.copy()
    if not _are_plain(value):
        made.clear()
        for key, part in value.items():
            made[_copy(key, memo)] = _copy(part, memo)
    elif not _are_plain(value.values()):
        for key, part in value.items():
            made[key] = _copy(part, memo)
    return made


def _fixed(value: Any, memo: _Memo) -> Any:
    """Copy a tuple or a frozenset; it is returned as it is if its parts are."""
    if _are_plain(value):
        return value
    parts = [_copy(part, memo) for part in value]
    if all(part is original for part, original in zip(parts, value, strict=True)):
        return value
    return memo.setdefault(id(value), type(value)(parts))  # a part may have led back here


def _of_attributes(class_: Any) -> _Copier:
    """Return the function that copies the instances of a class by their attributes."""
    new, has_dict, slots = object.__new__, bool(class_.__dictoffset__), _slots(class_)

    def copy_one(value: Any, memo: _Memo) -> Any:
        made = memo[id(value)] = new(class_)
        if has_dict:
            attributes: dict[str, Any] = value.__dict__
            if _are_plain(attributes.values()):
                made.__dict__.update(attributes)
            else:
                into = made.__dict__
                for name, part in attributes.items():
                    into[name] = _copy(part, memo)
        for slot, part in _of_slots(value, slots):
            slot.__set__(made, _copy(part, memo))
        return made

    return copy_one


def _slots(class_: Any) -> list[MemberDescriptorType]:
    """Return the slots of a class and of those that it derives from."""
    return [
        member
        for base in class_.__mro__
        for member in vars(base).values()
        if isinstance(member, MemberDescriptorType)
    ]


def _of_slots(
    value: Any, slots: list[MemberDescriptorType]
) -> Iterator[tuple[MemberDescriptorType, Any]]:
    """Yield the slots of an instance that have a value, with it."""
    for slot in slots:
        try:
            part = slot.__get__(value)
        except AttributeError:  # it has no value yet
            continue
        yield slot, part


@functools.cache
def _has_attributes_only(class_: Any) -> bool:
    """Return whether instances of a class are only attributes, copied as `object` copies them."""
    if class_.__new__ is not object.__new__ or class_ in copyreg.dispatch_table:
        return False
    try:
        object.__new__(class_)
    except TypeError:  # not written in Python, or abstract
        return False
    if hasattr(class_, "__deepcopy__"):
        return False
    names = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
    methods = [getattr(class_, name, None) for name in names]
    # Those of a dataclass with slots do the same.
    return all(getattr(method, "__module__", None) in (None, "dataclasses") for method in methods)


class _Copiers(dict[type, _Copier]):
    """The function that copies each class, chosen when its first instance is copied."""

    def __missing__(self, class_: Any) -> _Copier:
        chosen: _Copier
        if issubclass(class_, enum.Enum | type):
            chosen = _same
        elif _has_attributes_only(class_):
            chosen = _of_attributes(class_)
        else:
            chosen = copy.deepcopy
        self[class_] = chosen
        return chosen


_copiers = _Copiers(dict.fromkeys(PLAIN, _same))
_copiers |= dict.fromkeys([list, deque], _sequence)
_copiers |= dict.fromkeys([dict, defaultdict, OrderedDict, Counter], _mapping)
_COLLECTIONS = frozenset({list, deque, set, frozenset, tuple, dict})
_copiers |= {set: _set, tuple: _fixed, frozenset: _fixed}
