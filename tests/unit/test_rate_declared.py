"""Rates as they are declared, and what cannot be one."""

from dataclasses import dataclass
from datetime import timedelta

import pytest

from reservation import Component, Rate
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError


@dataclass
class Capture:
    payment_id: str
    merchant_id: str | None = None
    amount: float = 0.0
    lines: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("rate", "interval"),
    [
        (Rate(5, per="1s"), timedelta(milliseconds=200)),
        (Rate(3, per="1s"), timedelta(microseconds=333_334)),
        (Rate(1, per=timedelta(days=1)), timedelta(days=1)),
        (Rate(10_000, per="1s", burst=5), timedelta(microseconds=100)),
    ],
)
def test_calls_are_evenly_spaced_and_never_closer_than_the_rate(rate, interval):
    """An interval that is no whole number of microseconds is rounded up."""
    assert rate.interval == interval


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"calls": 0}, "calls=0 is not from 1 to 1000000; to make no calls, stop"),
        ({"calls": -1}, "calls=-1 is not from 1"),
        ({"calls": 2.5}, "calls=2.5 is not a whole number; write calls=5"),
        ({"calls": True}, "calls=True is not a whole number"),
        ({"per": "0s"}, r"5 calls per='0s' are not from one a day to 10,000 a second; write Rate"),
        ({"per": "-1s"}, "per='-1s' is negative; write a number and ms"),
        ({"per": 1}, "per=1 is not a time span; write a number and ms"),
        ({"per": "6d"}, "5 calls per='6d' are not from one a day"),
        ({"calls": 10_001}, "10001 calls per='1s' are not from one a day to 10,000 a second"),
        ({"burst": 0}, "burst=0 is not from 1"),
        ({"burst": "2"}, "burst='2' is not a whole number; write burst=10"),
        ({"by": ""}, "by='' does not name a field of the message; write by="),
        ({"by": 5}, "by=5 does not name a field"),
    ],
)
def test_a_rate_that_cannot_be_is_refused_in_one_line(options, problem):
    """The refusal names the way out."""
    with pytest.raises(DeclarationError, match=f"^Rate: {problem}") as caught:
        Rate(**{"calls": 5, "per": "1s"} | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (Rate, "rate= of Capture is the class Rate; write rate=Rate"),
        ("5/s", "rate= of Capture is a str; write rate=Rate"),
        (
            Rate(5, per="1s", by="merchant"),
            "the rate of Capture is by 'merchant', and Capture has no such field; it has",
        ),
        (Rate(5, per="1s", by="amount"), "the rate of Capture is by 'amount', a float; use a"),
        (Rate(5, per="1s", by="lines"), "the rate of Capture is by 'lines', a tuple"),
    ],
)
@pytest.mark.parametrize(
    ("method", "options"),
    [("initiate", {}), ("handle", {"key": "payment_id"}), ("handle", {"category": "order"})],
)
def test_what_cannot_be_a_handlers_rate_is_refused_where_it_is_declared(
    given, problem, method, options
):
    """For commands and for messages of others, before the function is looked at."""
    declare = getattr(Component("payment", id="payment_id"), method)
    with pytest.raises(DeclarationError, match=f"^payment: {problem}") as caught:
        declare(Capture, rate=given, **options)
    assert "\n" not in str(caught.value)


def test_a_rate_may_be_by_an_optional_field():
    """Messages without a value share one limit."""
    component = Component("payment", id="payment_id")
    rate = Rate(5, per="1s", by="merchant_id")
    component.handle(Capture, once=None, rate=rate)(lambda command, entity, context: None)
    assert declarations(component).own.rates == {"Capture": rate}


def test_a_rate_is_shown_as_it_is_written():
    """With what differs from the defaults."""
    assert repr(Rate(5, per="1000ms")) == "Rate(5, per='1s')"
    rate = "Rate(100, per='1m', burst=10, by='merchant_id')"
    assert repr(eval(rate)) == rate
