"""Policies of retries: their intervals, and what cannot be one."""

from dataclasses import dataclass
from datetime import timedelta

import pytest

from reservation import Component, Retry, RetryLater
from reservation.errors import DeclarationError
from reservation.handlers.retry import MOST_ATTEMPTS


@dataclass
class Refund:
    payment_id: str


def test_the_interval_doubles_up_to_the_longest_and_is_shortened_at_random():
    """Each is shortened by up to a half."""
    retry = Retry(attempts=10, first="1s", most="10s")
    for attempt, longest in enumerate([1, 2, 4, 8, 10, 10], start=1):
        drawn = [retry.interval(attempt) for _ in range(200)]
        assert longest / 2 <= min(drawn) < longest * 0.6 < longest * 0.9 < max(drawn) <= longest
    assert retry.interval(MOST_ATTEMPTS) <= 10


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"attempts": 0}, r"attempts=0 is not from 1 to 1000000"),
        ({"attempts": True}, "attempts=True is not a whole number; write attempts=10"),
        ({"attempts": "3"}, "attempts='3' is not a whole number"),
        ({"attempts": 3, "first": "-1s"}, "first='-1s' is negative; write a number and ms"),
        ({"attempts": 3, "first": timedelta(-1)}, "first=-1d is negative"),
        ({"attempts": 3, "first": "0s"}, "first=0s is too short; give it at least 1ms"),
        ({"attempts": 3, "first": "2h"}, "most=1h is shorter than first=2h; exchange them"),
        ({"attempts": 3, "most": 5}, "most=5 is not a time span"),
        ({"attempts": 3, "on": KeyboardInterrupt}, "on= names KeyboardInterrupt, which is not"),
        ({"attempts": 3, "on": [ValueError("x")]}, r"on= names ValueError\('x'\), which is not"),
        ({"attempts": 3, "on": ()}, "names no exception; leave it out for every Exception"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_in_one_line(options, problem):
    """The refusal names the way out."""
    with pytest.raises(DeclarationError, match=problem) as caught:
        Retry(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "shown"), [(Retry, "the class Retry"), ("1s", "a str")])
def test_what_is_no_policy_is_refused_where_it_is_declared(given, shown):
    """A handler's policy is a `Retry`, and its message is named in the error."""
    component = Component("refund", id="payment_id")
    problem = f"retry= of Refund is {shown}; write retry="
    with pytest.raises(DeclarationError, match=problem):
        component.handle(Refund, once=None, retry=given)(lambda command, entity, context: None)
    with pytest.raises(DeclarationError, match=problem):
        component.initiate(Refund, retry=given)(lambda command, context: None)


@pytest.mark.parametrize("after", ["soon", "-5s", 90, timedelta(seconds=-1)])
def test_a_wait_that_cannot_be_is_refused_where_it_is_asked_for(after):
    """`RetryLater` takes a time span, and says so."""
    with pytest.raises(ValueError, match=r"^RetryLater: .*write a number and ms"):
        RetryLater(after)
