"""A wrong declaration is refused when it is made, in one line that says what to do."""

import functools
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal, Protocol

import pytest

from reservation import Component, Context, Key
from reservation.errors import DeclarationError, StreamNameError
from reservation.strategies import Processed


@dataclass(frozen=True)
class Pay:
    account_id: str
    payment_id: str = ""


@dataclass(frozen=True)
class Refund:
    account_id: str


@dataclass(frozen=True)
class Paid:
    account_id: str


@dataclass
class Account:
    balance: int = 0


class Shape(Protocol):
    balance: int


def account(entity: type | None = Account) -> Component:
    return Component("account", entity=entity, id="account_id")


def refused(match: str, declare: Callable[[], object]) -> None:
    with pytest.raises(DeclarationError, match=match) as caught:
        declare()
    assert "\n" not in str(caught.value)


def nothing(command: Any, entity: Any, context: Any) -> None: ...


def test_a_component_needs_a_command_and_the_name_of_a_category():
    """One without commands would run for ever and do nothing."""
    refused("handles no command", lambda: account().check())
    with pytest.raises(StreamNameError):
        Component("account-1", id="account_id")


def test_two_classes_of_one_name_are_refused():
    """The name is the type in the store."""
    component = account()
    component.handle(Pay, once=None)(nothing)

    @dataclass
    class Pay2:
        account_id: str

    Pay2.__name__ = "Pay"
    refused("Two classes are named Pay", lambda: component.handle(Pay2, once=None)(nothing))


# Functions


async def asynchronous(command: Any, entity: Any, context: Any) -> None: ...


def generating(command: Any, entity: Any, context: Any) -> Iterator[Paid]:
    yield Paid("1")


async def generating_asynchronously(command: Any, entity: Any, context: Any) -> AsyncIterator[Paid]:
    yield Paid("1")


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (generating, "generating, is a generator; return a list instead of using yield"),
        (generating_asynchronously, "is a generator; return a list"),
        (lambda command, entity: None, "cannot be called with command, entity, context: too many"),
        (lambda a, b, c, d: None, "missing a required argument: 'd'; let it take these 3"),
        (lambda a, b, c, *, d: None, "let it take these 3 arguments"),
        ("handler", "is not a function"),
    ],
)
def test_a_handler_that_cannot_be_called_as_it_will_be_is_refused(handler, problem):
    """A handler with the wrong arguments is refused with its name and the right ones."""
    refused(problem, lambda: account().handle(Pay, once=None)(handler))


def test_initiations_and_projectors_with_wrong_arguments_are_refused():
    """Initiations and projectors with the wrong arguments are refused too."""
    refused(
        r"handler of Pay, .*cannot be called with command, context: .*these 2 arguments",
        lambda: account().initiate(Pay)(lambda command, entity, context: None),
    )
    refused(
        r"projector of Paid, .*cannot be called with entity, event",
        lambda: account().project(Paid)(lambda entity: None),
    )
    refused("projector of Paid, .*is async", lambda: account().project(Paid)(asynchronous))


def test_a_handler_may_take_more_than_it_is_given():
    """A handler may have further arguments with defaults, or take any number of them."""

    @functools.wraps(generating)
    def wrapper(*arguments: Any) -> list[Paid]:
        return list(generating(*arguments))

    for handler in (
        lambda *arguments: None,
        lambda command, entity, context, more=1: None,
        functools.partial(lambda more, command, entity, context: None, 1),
        wrapper,
    ):
        account().handle(Pay, once=None)(handler)


@pytest.mark.parametrize("first", ["initiate", "key", "once"])
@pytest.mark.parametrize("second", ["initiate", "key", "once"])
def test_a_command_has_one_handler(first, second):
    """A second handler of a command is refused, whatever either of them is."""
    component = account()

    def declare(way: str) -> None:
        if way == "initiate":
            component.initiate(Pay)(lambda command, context: Paid("1"))
        else:
            options = {"key": "payment_id"} if way == "key" else {"once": Processed()}
            component.handle(Pay, **options)(nothing)

    declare(first)
    refused("account: Pay has two handlers; keep one", lambda: declare(second))


# Annotations


def takes_other(command: Refund, entity: Account, context: Context) -> None: ...


def takes_no_account(command: Pay, entity: Refund | None, context: Context) -> None: ...


def takes_no_context(command: Pay, entity: Account, context: str) -> None: ...


def returns_text(command: Pay, entity: Account, context: Context) -> str: ...


def returns_texts(command: Pay, entity: Account, context: Context) -> list[str]: ...


def returns_dict(command: Pay, entity: Account, context: Context) -> dict[str, Paid]: ...


def returns_lazily(command: Pay, entity: Account, context: Context) -> Iterator[Paid]: ...


def returns_itself(command: Pay, entity: Account, context: Context) -> Paid | Pay | None: ...


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (takes_other, "to take command: Refund, and the command is Pay; correct the annotation"),
        (takes_no_account, "to take entity: .*Refund.*, and the entity is Account; correct"),
        (takes_no_context, "to take context: str, and the context is Context; correct"),
        (returns_text, "to return str; a handler returns an event, a list of events or None"),
        (returns_texts, r"to return list\[str\]; a handler returns"),
        (returns_dict, r"to return dict\[.*\]; a handler returns"),
        (returns_lazily, r"to return .*Iterator\[.*Paid\]; return a list of events"),
        (returns_itself, "to return the command Pay; return an event, and write commands with"),
    ],
)
def test_annotations_that_contradict_the_declaration_are_refused(handler, problem):
    """Annotations that contradict the declaration are refused."""
    name = handler.__name__
    refused(
        f"the handler of Pay, {name}, is annotated {problem}",
        lambda: account().handle(Pay, once=None)(handler),
    )


def test_an_annotation_of_another_command_of_the_component_is_refused():
    """Another command of the component is refused as annotation of argument and result."""

    def pay(command: Pay, entity: Account, context: Context) -> Refund: ...

    component = account()
    component.handle(Refund, once=None)(lambda command, entity, context: None)
    refused("to return the command Refund", lambda: component.handle(Pay, once=None)(pay))


def test_an_initiation_is_not_annotated_to_return_nothing():
    """An initiation annotated to return nothing is refused: it would start no stream."""

    def pay(command: Pay, context: Context) -> None: ...

    refused("must return the event that starts the stream", lambda: account().initiate(Pay)(pay))


def test_without_an_entity_a_handler_is_annotated_to_take_none():
    """A handler annotated with an entity needs a component that has one."""

    def pay(command: Pay, entity: Account, context: Context) -> None: ...
    def other(command: Pay, entity: None, context: Context) -> None: ...

    refused(
        "entity: Account, and the entity is None, because the component has no entity; correct",
        lambda: account(None).handle(Pay, once=None)(pay),
    )
    account(None).handle(Pay, once=None)(other)


def test_a_projector_is_annotated_to_take_its_event():
    """The annotations of a projector must agree with its event and its entity."""

    def paid(entity: Account, event: Pay) -> None: ...

    refused("to take event: Pay, and the event is Paid", lambda: account().project(Paid)(paid))


def test_undecidable_annotations_are_accepted():
    """Annotations that cannot be decided, such as undefined names or protocols, are accepted."""

    def unresolved(command: "NotYet", entity: "Account", context: Context) -> "Later": ...  # type: ignore[name-defined]  # noqa: F821
    def base(command: object, entity: Shape, context: Any) -> object: ...
    def union(command: Pay | Refund, entity: Account | None, context: Context) -> list[Paid]: ...
    def annotated(command: Annotated[Pay, 1], entity: Any, context: Context) -> Paid | None: ...
    def several(command: Pay, entity: Account, context: Context) -> tuple[Paid, ...]: ...
    def mapped(command: Pay, entity: Account, context: Context) -> "list[Paid] | None": ...

    for handler in (unresolved, base, union, annotated, several, mapped):
        account().handle(Pay, once=None)(handler)


# Decorators and options


def test_a_decorator_without_parentheses_is_refused():
    """A decorator that is used without parentheses is refused."""

    def pay(command: Pay, entity: Account, context: Context) -> None: ...

    for decorator in ("handle", "initiate", "project"):
        refused(
            rf"@account\.{decorator} above pay has no parentheses; write "
            rf"@account\.{decorator}\(",
            lambda name=decorator: getattr(account(), name)(pay),
        )


def test_a_strategy_is_given_and_not_its_class():
    """A strategy's class in place of an instance is refused."""
    refused(
        r"once=Processed of Pay is a class; write once=Processed\(\)",
        lambda: account().handle(Pay, once=Processed),  # type: ignore[arg-type]
    )
    refused(
        r"once= of Pay is a str; give it a strategy, such as Processed\(\)",
        lambda: account().handle(Pay, once="processed"),  # type: ignore[arg-type]
    )


def test_an_event_has_one_projector():
    """A second projector of an event is refused."""
    component = account()
    component.project(Paid)(lambda entity, event: None)
    refused(
        "Paid has two projectors; keep one",
        lambda: component.project(Paid)(lambda entity, event: None),
    )


def test_a_projector_needs_an_entity():
    """A projector is refused in a component without an entity."""
    refused(
        r"no entity for the projector of Paid to change; declare it with Component\('account', "
        r"entity=",
        lambda: account(None).project(Paid),
    )


def test_how_a_repeated_command_is_recognized_is_said():
    """Nothing is assumed where neither a key nor a strategy is given; `once=None` says none."""
    refused("nothing says how a repeated Pay is recognized", lambda: account().handle(Pay)(nothing))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "key"}, "no field 'key'; it has account_id, payment_id"),
        ({"key": ()}, "names no field"),
        ({"key": 5}, "key= of Pay is a int"),
        ({"key": Key}, "key= of Pay is the class Key"),
        ({"key": Key(())}, "names no field"),
        ({"key": Key(None)}, "names no field"),
        ({"key": Key(Key("payment_id"))}, "names no field"),
        ({"key": Key("payment_id", per=5)}, "per= of Pay is a int"),
        ({"key": Key("payment_id", per="owner")}, "no field 'owner'"),
        ({"key": Key("payment_id", ignoring="when")}, "no field 'when'"),
        ({"key": Key("payment_id", ignoring=None)}, "names no field"),
        ({"key": Key("payment_id", former_key=7)}, "names no field"),
        ({"key": Key("payment_id", former_key=lambda: "a")}, "let it take one argument"),
        ({"key": lambda: "a"}, "let it take one argument"),
        ({"key": lambda command, context: "a"}, "let it take one argument"),
        ({"once": None, "correlated": True}, "correlated= of Pay is for messages of other"),
        ({"once": None, "id": "payment_id"}, "id= of Pay is for messages of other"),
        ({"category": "bill", "key": "payment_id"}, "key= of Pay is for commands"),
        ({"category": "bill", "id": lambda: "a"}, "id= of Pay.*let it take one argument"),
        ({"category": "account"}, "cannot be read from 'account'"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    """Of keys, of messages of others, and what does not go together."""
    refused(message, lambda: account().handle(Pay, **options)(nothing))


def test_a_category_is_named_by_a_text():
    """Whichever option names it."""
    for options in ({"key": Key("payment_id", into=5)}, {"category": 5}):
        with pytest.raises(StreamNameError, match="name of a category is a str, not a int"):
            account().handle(Pay, **options)(nothing)


def test_a_message_is_named_by_its_class_and_a_type_to_ignore_by_its_name():
    """Each of the other's kind is refused with what to write."""
    refused(r"names no class; write account\.message\(", lambda: account().message())
    refused(
        r"takes classes, not a Paid; write account\.message\(", lambda: account().message(Paid("1"))
    )
    refused("takes classes, not a list", lambda: account().message([Paid]))
    refused(r"not the class Paid; write account\.ignore\('Paid'\)", lambda: account().ignore(Paid))
    for wrong in (["Paid"], "", None):
        refused("takes the names of types as strings", lambda wrong=wrong: account().ignore(wrong))


def test_completion_shows_what_a_user_calls():
    """All else is private."""
    shown = {name for name in dir(Component) if not name.startswith("_")}
    assert shown == {
        *("check", "command_stream", "decode", "entity_stream", "every", "handle", "ignore"),
        "initiate",
        *("message", "on_error", "project", "question"),
    }


# Entities and messages


@dataclass
class Needy:
    owner: str


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_an_entity_can_be_made_without_arguments():
    """An entity class that needs arguments is refused: a new stream has no events."""
    refused(
        "the entity Needy cannot be made without arguments: TypeError.*; give each of its fields",
        lambda: account(Needy),
    )
    refused("the entity is a class, not a Account", lambda: account(Account()))  # type: ignore[arg-type]


def test_an_entity_can_be_copied():
    """An entity that cannot be copied is refused: each handler gets a copy."""
    refused("the entity Locked cannot be copied for handlers: TypeError", lambda: account(Locked))


@pytest.mark.parametrize(
    "hint",
    [
        complex,
        Fraction,
        threading.Thread,
        list[Fraction],
        dict[str, tuple[int, Fraction]],
        Fraction | None,
        dict[tuple[int, int], str],
        dict[Decimal, str],
    ],
)
def test_a_field_without_a_form_in_json_is_refused(hint):
    """A field that JSON cannot express is refused when its class is declared."""

    @dataclass
    class Odd:
        account_id: str
        value: hint

    for declare in (
        lambda: account().handle(Odd, once=None)(lambda command, entity, context: None),
        lambda: account().project(Odd)(lambda entity, event: None),
    ):
        refused("Odd cannot be a message: its field value holds a ", declare)


@dataclass
class Nested:
    parts: list["Nested2"] = field(default_factory=list)


@dataclass
class Nested2:
    value: Fraction | None = None


def test_a_nested_field_without_a_form_is_found():
    """A nested field that JSON cannot express is named with the path to it."""

    @dataclass
    class Odd:
        account_id: str
        nested: Nested

    refused(
        "its field nested holds a Fraction",
        lambda: account().handle(Odd, once=None)(lambda command, entity, context: None),
    )


@pytest.mark.parametrize(
    "hint", [Any, object, list[Any], dict[str, int], dict[uuid.UUID, date], set[int], Literal["a"]]
)
def test_a_field_with_a_form_is_not_refused(hint):
    """A field is accepted if JSON can express it, or if that depends on the value."""

    @dataclass
    class Even:
        account_id: str
        value: hint

    account().handle(Even, once=None)(lambda command, entity, context: None)


@dataclass
class One:
    a: int


@dataclass
class Other:
    b: int


@dataclass
class Either:
    account_id: str
    value: One | Other


@pytest.mark.parametrize(
    ("class_", "problem"),
    [(int, "not a dataclass; decorate it"), (Either, "Either cannot be a message")],
)
def test_a_class_that_cannot_be_a_message_is_refused(class_, problem):
    """One that is no dataclass, and one whose JSON could not be told apart."""
    refused(problem, lambda: account().handle(class_, once=None)(nothing))
    refused(problem, lambda: account().handle(class_, key="account_id")(nothing))
