"""Copies of entities: for handlers, which may change and keep them, and to go back to.

A copy shares only what cannot be changed. That is known by annotations without looking at each part
(`reservation.serialization.immutability`), or else by the parts. `copy.deepcopy` makes the same
copies and takes ten times as long, so it is used for rare cases alone: classes that define how they
are copied, and classes that are not written in Python.
"""

import copy
import copyreg
import enum
import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from types import MemberDescriptorType
from typing import Any, TypeVar

import msgspec

from reservation.serialization.adapters.adapter import PLAIN
from reservation.serialization.immutability import (
    is_frozen,
    is_immutable,
    is_map,
    never_changes,
    shareable_fields,
)

T = TypeVar("T")

# Copies by the ids of the originals: what an entity holds twice, its copy holds twice.
_Memo = dict[int, Any]

# Any: an entity holds values of any type.
_Copier = Callable[[Any, _Memo], Any]


def copied(entity: T) -> T:
    """Return a copy of an entity; a change of either does not show in the other."""
    if is_immutable(entity):
        return entity
    copy_of: T = _copiers[type(entity)](entity, {})
    return copy_of


def equivalent_copy(entity: T) -> T | None:
    """Return a copy that can take the place of an entity, also for its projectors.

    That is one of an entity that holds plain values, and collections of them. Of any other None is
    returned: a class may copy itself as it suits its handlers, a function in an attribute may look
    at the original, and an object may be compared by its identity.
    """
    if is_immutable(entity):
        return entity
    class_: Any = type(entity)
    parts = _attributes(entity) if _has_attributes_only(class_) else [entity]
    try:
        is_plain = _are_plain(parts) or all(map(_is_plain_throughout, parts))
        return copied(entity) if is_plain else None
    except RecursionError:  # a collection that holds itself
        return None


def _attributes(value: Any) -> list[Any]:
    """Return what an instance that is only attributes holds, without what cannot be changed."""
    class_: Any = type(value)
    shareable = shareable_fields(class_)
    named = list(value.__dict__.items()) if class_.__dictoffset__ else []
    named += [(slot.__name__, part) for slot, part in _of_slots(value, _slots(class_))]
    return [part for name, part in named if type(part) not in shareable.get(name, ())]


def _is_plain_throughout(value: Any) -> bool:
    """Return whether a value is plain, or a collection of such values."""
    class_ = type(value)
    if class_ in PLAIN or is_immutable(value):
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
    if _are_the_same(parts, value):
        return value
    class_ = type(value)
    made = class_._make(parts) if hasattr(class_, "_make") else class_(parts)
    return memo.setdefault(id(value), made)  # a part may have led back here


def _fixed_mapping(value: Any, memo: _Memo) -> Any:
    """Copy an `immutables.Map`; it is returned as it is if its parts are."""
    if _are_plain(value.keys()) and _are_plain(value.values()):
        return value
    parts = [(_copy(key, memo), _copy(part, memo)) for key, part in value.items()]
    originals = [one for item in value.items() for one in item]
    if _are_the_same([one for item in parts for one in item], originals):
        return value
    return memo.setdefault(id(value), type(value)(parts))


def _are_the_same(parts: Iterable[Any], originals: Iterable[Any]) -> bool:
    return all(part is original for part, original in zip(parts, originals, strict=True))


def _of_attributes(class_: Any) -> _Copier:
    """Return the function that copies the instances of a class by their attributes."""
    new, has_dict, slots = object.__new__, bool(class_.__dictoffset__), _slots(class_)
    shareable, frozen, fixed = shareable_fields(class_), is_frozen(class_), never_changes(class_)
    named_slots = [(slot, shareable.get(slot.__name__, ())) for slot in slots]

    def copy_one(value: Any, memo: _Memo) -> Any:
        if fixed and is_immutable(value):
            return value
        made = memo[id(value)] = new(class_)
        same = frozen
        if has_dict:
            attributes: dict[str, Any] = value.__dict__
            if _are_plain(attributes.values()):
                made.__dict__.update(attributes)
            else:
                into = made.__dict__
                for name, part in attributes.items():
                    if type(part) in shareable.get(name, ()):
                        into[name] = part
                    else:
                        into[name] = copy_of = _copy(part, memo)
                        same = same and copy_of is part
        for slot, classes in named_slots:
            try:
                part = slot.__get__(value)
            except AttributeError:  # it has no value yet
                continue
            copy_of = part if type(part) in classes else _copy(part, memo)
            slot.__set__(made, copy_of)
            same = same and copy_of is part
        if same:
            made = memo[id(value)] = value
        return made

    return copy_one


def _struct(value: Any, memo: _Memo) -> Any:
    """Copy a Struct without its `__post_init__`, which `copy.deepcopy` would run again."""
    if is_immutable(value):
        return value
    class_: Any = type(value)
    made = memo[id(value)] = copy.copy(value)
    shareable = shareable_fields(class_)
    for name in class_.__struct_fields__:
        part = getattr(value, name)
        if type(part) not in shareable.get(name, ()):
            msgspec.structs.force_setattr(made, name, _copy(part, memo))
    if class_.__dictoffset__:
        made.__dict__.update({name: _copy(part, memo) for name, part in value.__dict__.items()})
    return made


def _is_plain_struct(class_: Any) -> bool:
    """Return whether a class is a Struct that says nothing of how it is copied."""
    if not issubclass(class_, msgspec.Struct) or class_ in copyreg.dispatch_table:
        return False
    names = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__")
    return all(getattr(class_, n, None) is getattr(msgspec.Struct, n, None) for n in names)


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
        elif is_map(class_):
            chosen = _fixed_mapping
        elif issubclass(class_, tuple) and is_frozen(class_):
            chosen = _fixed
        elif _has_attributes_only(class_):
            chosen = _of_attributes(class_)
        elif _is_plain_struct(class_):
            chosen = _struct
        else:
            chosen = copy.deepcopy
        self[class_] = chosen
        return chosen


_copiers = _Copiers(dict.fromkeys(PLAIN, _same))
_copiers |= dict.fromkeys([list, deque], _sequence)
_copiers |= dict.fromkeys([dict, defaultdict, OrderedDict, Counter], _mapping)
_COLLECTIONS = frozenset({list, deque, set, frozenset, tuple, dict})
_copiers |= {set: _set, tuple: _fixed, frozenset: _fixed}
