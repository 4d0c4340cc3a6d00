"""What verdicts depend on, by which a state knows that it has to judge anew."""

from dataclasses import dataclass
from pathlib import Path

from reservation import Component, Key, Upcast
from reservation.strategies import Processed
from spark_jobs.run import Run, judged_by


@dataclass
class Put:
    a_id: str
    key: str
    note: str = ""


@dataclass
class PutOnce:
    a_id: str
    key: str
    note: str = "none"


PutOnce.__name__ = "Put"


def made(command=Put, key=lambda command: command.key, former_key=None, once=None, **shapes):
    """Return what the verdicts on a component's messages depend on."""
    component = Component("a", id="a_id")
    key = Key(key, into="t", per=None, former_key=former_key)
    component.handle(command, key=key, once=once)(lambda command, entity, context: None)
    component.message(command, **shapes)
    return judged_by(Run(component, "", Path(), ""))


def upcast(function):
    return Upcast(function, when=lambda data: "old" in data)


def test_verdicts_depend_on_what_messages_mean():
    """On names, defaults, upcasters, keys and strategies; and on nothing that changes by itself."""
    others = [
        made(),
        made(former_names="Place"),
        made(command=PutOnce),
        made(key=lambda command: command.key.lower()),
        made(key="key"),
        made(former_key="key"),
        made(once=Processed()),
        made(upcast=upcast(lambda data: data | {"note": data["old"]})),
        made(upcast=upcast(lambda data: data | {"note": data["older"]})),
    ]
    assert len(set(others)) == len(others)
    assert made() == others[0]
