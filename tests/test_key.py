"""Idempotence keys, and the streams that they name."""

import tracemalloc
from dataclasses import dataclass
from decimal import Decimal

import pytest

from reservation import Component
from reservation.errors import DeclarationError, IdempotenceKeyError, StreamNameError
from tests.controls import deposit


@dataclass(frozen=True)
class Pay:
    payment_id: str | int | None
    account_id: str
    bank: str = "b"


def reservation(into="paymentTransaction", **options):
    component = Component("payment", id="payment_id")
    component.reserve(Pay, into=into, **options)
    return component.reservations["Pay"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"key": "payment_id"}, "paymentTransaction-p1"),
        ({"key": "payment_id", "entity": "account_id"}, "paymentTransaction-a1+p1"),
        ({"key": ("bank", "payment_id")}, "paymentTransaction-b+p1"),
        ({"key": lambda pay: pay.payment_id.upper()}, "paymentTransaction-P1"),
        ({"key": lambda pay: (pay.bank, 7), "entity": "account_id"}, "paymentTransaction-a1+b+7"),
    ],
)
def test_the_declaration_decides_how_a_reservation_stream_is_named(options, name):
    """A reservation stream is named by the key alone or behind the entity's id, as declared."""
    assert reservation(**options).stream_name(Pay("p1", "a1")) == name


def test_a_whole_number_serves_as_a_key():
    """A whole number is a valid key, as clients in other languages often use them."""
    assert reservation(key="payment_id").stream_name(Pay(12, "a")) == "paymentTransaction-12"


@pytest.mark.parametrize(
    ("number", "text"),
    [("1.50", "1.5"), ("-2.0", "-2"), ("15E1", "150"), ("1E-3", "0.001"), ("-0.0", "0")]
    + [(zero, "0") for zero in ("0E5", "0E-5", "0E999999999", "0E-999999999")]
    + [(f"1.{'0' * 5000}", "1")],
)
def test_equal_numbers_are_the_same_key(number, text):
    """Equal numbers are the same key, however they are written."""
    name = reservation(key="payment_id").stream_name(Pay(Decimal(number), "a"))
    assert name == f"paymentTransaction-{text}"


@pytest.mark.parametrize("number", ["1E999999999", "1E-999999999", "-1.5E-999999999", "1E-5000"])
def test_a_number_whose_digits_no_name_takes_is_refused_without_writing_them_out(number):
    """A number with too many digits is refused as key or id without writing it out."""
    pay = Pay(Decimal(number), "a")
    component = Component("payment", id="payment_id")
    tracemalloc.start()
    try:
        with pytest.raises(IdempotenceKeyError):
            reservation(key="payment_id").stream_name(pay)
        with pytest.raises(StreamNameError):
            component.entity_stream(pay)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", [None, "", True, Decimal("NaN"), 1.5, "a\nb"])
def test_a_command_without_a_usable_key_is_refused(key):
    """A command without a usable key is refused: it cannot be distinguished from others."""
    with pytest.raises(IdempotenceKeyError):
        reservation(key="payment_id").stream_name(Pay(key, "a1"))


def test_parts_that_could_be_mistaken_for_others_are_refused():
    """Ambiguous parts are refused: (a+b, c) and (a, b+c) would share a stream."""
    by_entity = reservation(key="payment_id", entity="account_id")
    assert by_entity.stream_name(Pay("b+c", "a")) == "paymentTransaction-a+b+c"
    with pytest.raises(IdempotenceKeyError, match=r"\+"):
        by_entity.stream_name(Pay("c", "a+b"))


@pytest.mark.parametrize("into", ["paymentTransaction", None])
@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (None, "returned is empty; an"),
        ((), "the key function returned nothing"),
        ([], "the key function returned nothing"),
        (("a", None), "part 1 of what the key function returned is empty; an"),
        (1.5, "is a float; an"),
    ],
)
def test_a_key_function_that_returns_no_key_is_refused(returned, problem, into):
    """A key function must return a text, a whole number or several of them."""
    declared = reservation(key=lambda _: returned, into=into)
    with pytest.raises(IdempotenceKeyError, match=problem):
        declared.stream_name(Pay("p", "a"), "payment:command-1")


def test_a_command_that_is_in_no_stream_has_no_copy_beside_it():
    """A command without a stream cannot be reserved within its category."""
    with pytest.raises(IdempotenceKeyError):
        reservation(key="payment_id", into=None).stream_name(Pay("p", "a"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"into": "t", "key": "nothing"}, "no field 'nothing'; it has deposit_id, account_id"),
        ({"into": "t", "key": ()}, "names no field"),
        ({"into": "t", "key": "deposit_id", "entity": "owner"}, "no field 'owner'"),
        ({"into": "t", "key": "deposit_id", "volatile": "when"}, "no field 'when'"),
        ({"into": "account", "key": "deposit_id"}, "in use"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_when_it_is_made(options, problem):
    """A mistake in a declaration is an error at import, not at the first command."""
    with pytest.raises(DeclarationError, match=problem):
        Component("account", id="account_id").reserve(type(deposit()), **options)


def test_a_command_is_a_dataclass():
    """A command class that is no dataclass has no fields for a key and is refused."""
    with pytest.raises(DeclarationError, match="Decimal is not a dataclass; decorate it"):
        Component("account", id="account_id").reserve(Decimal, into="t", key="real")


def test_a_field_that_is_named_twice_counts_twice():
    """A key field that is named twice counts twice, in Python as in the server."""
    assert reservation(key=("bank", "bank")).stream_name(Pay("p", "a")) == "paymentTransaction-b+b"
