"""Breakers as they are declared, and the attempts of messages that meet failures of a provider."""

from dataclasses import dataclass
from datetime import timedelta

import pytest

from consumers.failures.failure import HandlerRaisedError, ProviderFailure, Reason
from consumers.failures.retries import Retries
from consumers.limits.breakers import declared_breakers
from reservation import Breaker, Component, Key, Retry, RetryLater
from reservation.errors import DeclarationError
from reservation.messages.message import StoredMessage


@dataclass
class Capture:
    capture_id: str
    payment_id: str


@dataclass
class Refund:
    refund_id: str
    payment_id: str


def nothing(command, entity, context):
    return None


def declare(**options):
    """Return a component with one handler."""
    component = Component("payment", id="payment_id")
    component.handle(Capture, **{"once": None} | options)(nothing)
    return component


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"failures": 0}, "Breaker: failures=0 is not from 1 to 1000; write failures=20"),
        ({"failures": 1001}, "failures=1001 is not from 1 to 1000"),
        ({"failures": True}, "failures=True is not a whole number; write failures=20"),
        ({"failures": 2.0}, "failures=2.0 is not a whole number"),
        ({"within": "0s"}, "Breaker: within=0s is too short; give it at least 1ms"),
        ({"within": "a minute"}, "within='a minute' is not a time span; write a number and ms"),
        ({"open_for": 0}, "Breaker: open_for=0 is not a time span"),
        ({"open_for": "0s"}, "Breaker: open_for=0s is too short"),
        ({"open_for": "-1s"}, "open_for='-1s' is negative"),
        ({"on": ()}, r"Breaker: on=\(\) names no exception; name those of a provider that is down"),
        ({"on": BaseException}, "Breaker: on= names BaseException, which is not an exception"),
        ({"on": (OSError, "HTTPError")}, "on= names 'HTTPError', which is not an exception"),
        ({"on": 500}, "on= names 500, which is not an exception"),
    ],
)
def test_a_breaker_that_cannot_be_is_refused_in_one_line(options, problem):
    """The refusal names the way out."""
    with pytest.raises(DeclarationError, match=problem) as caught:
        Breaker(**{"on": OSError} | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "shown"), [(Breaker, "the class Breaker"), ("30s", "a str"), (True, "a bool")]
)
def test_what_is_no_breaker_is_refused_where_it_is_declared(given, shown):
    """The message is named in the error."""
    problem = f"payment: breaker= of Capture is {shown}; write breaker=Breaker"
    with pytest.raises(DeclarationError, match=problem):
        declare(breaker=given)
    with pytest.raises(DeclarationError, match=problem):
        Component("payment", id="payment_id").initiate(Capture, breaker=given)(
            lambda command, context: None
        )


def test_a_breaker_shows_what_it_was_given():
    """Time spans are as they are written, and the defaults are those of the documentation."""
    shown = "Breaker(failures=20, within='1m', open_for='30s', on=(OSError,))"
    assert repr(Breaker(on=OSError)) == shown
    assert repr(eval(shown)) == shown
    assert Breaker(on=OSError, within=timedelta(minutes=1)).within == timedelta(seconds=60)


def test_failures_of_the_provider_are_those_that_are_named():
    """Derived exceptions are named too; what the handler decides is no failure."""
    breaker = Breaker(on=(ConnectionError, TimeoutError))
    assert breaker.counts(ConnectionResetError())
    assert not breaker.counts(OSError())
    assert not breaker.counts(None)
    assert not Breaker(on=Exception).counts(RetryLater("1s"))


def test_a_breaker_is_of_the_category_that_its_handler_reads():
    """A reserved command is handled from its copy, and one with former names has one breaker."""
    breaker, other = Breaker(on=OSError), Breaker(on=ValueError)
    component = Component("payment", id="payment_id")
    component.handle(Capture, key=Key("capture_id"), breaker=breaker)(nothing)
    component.handle(Refund, once=None, breaker=other)(nothing)
    component.message(Capture, former_names=["Charge"])
    ((found, types),) = declared_breakers(component, "paymentTransaction")
    assert (found, types) == (breaker, ("Capture", "Charge"))
    assert declared_breakers(component, "payment:command") == [(other, ("Refund",))]


# Attempts

MESSAGE = StoredMessage("", "payment:command-1", "Capture", 0, 0, "{}", None, None)
BREAKER = Breaker(on=OSError)


def failure(of_provider, tried, *, attempts=3, cause=None):
    """Return what becomes of a message that was tried so often before."""
    component = declare(breaker=BREAKER, retry=Retry(attempts=attempts, first="8s", most="8s"))
    error = HandlerRaisedError("raised", MESSAGE)
    error.__cause__, error.of_provider = cause or OSError(), of_provider
    return Retries(component, "payment:command").failure("Capture", error, tried)


@pytest.mark.parametrize(
    ("of_provider", "tried", "attempts", "reason", "wait"),
    [
        # is_probe, is_alone, wait: a closed breaker
        ((False, False, None), 0, 1, Reason.HANDLER, (4, 8)),
        ((False, False, None), 1, 2, Reason.HANDLER, (4, 8)),
        ((False, False, None), 2, 2, Reason.HANDLER, (60, 60)),  # perhaps an outage has begun
        ((False, True, None), 2, 3, Reason.HANDLER, None),  # others succeed
        # an open one
        ((False, True, 30.0), 0, 1, Reason.BREAKER, (30, 30)),
        ((False, True, 30.0), 2, 2, Reason.BREAKER, (30, 30)),
        ((False, False, 0.0), 2, 2, Reason.BREAKER, (0, 0)),
        # a probe
        ((True, False, 30.0), 0, 0, Reason.BREAKER, (30, 30)),
        ((True, True, 30.0), 2, 2, Reason.BREAKER, (30, 30)),
        ((True, True, None), 2, 2, Reason.HANDLER, (60, 60)),  # closed by somebody else meanwhile
        # not of the provider
        (None, 1, 2, Reason.HANDLER, (4, 8)),
        (None, 2, 3, Reason.HANDLER, None),
    ],
)
def test_an_outage_takes_no_last_attempt(of_provider, tried, attempts, reason, wait):
    """A message that alone fails has the attempts of its policy, and a probe takes none."""
    found = failure(of_provider and ProviderFailure(*of_provider, 60.0), tried)
    assert (found.attempts, found.reason) == (attempts, reason)
    assert found.error_type == "builtins.OSError" or found.error_type == "OSError"
    if wait is None:
        assert found.wait is None
    else:
        assert wait[0] <= found.wait <= wait[1]


def test_a_single_attempt_is_followed_by_another_where_the_provider_fails():
    """Only a second failure can show that others succeed meanwhile; a process that dies has two."""
    closed = ProviderFailure(False, True, None, 60.0)
    assert (failure(closed, 0, attempts=1).attempts, failure(closed, 0, attempts=1).wait > 0) == (
        1,
        True,
    )
    assert failure(closed, 1, attempts=1).wait is None
    assert Retries(declare(breaker=BREAKER), "payment:command").most("Capture") == 3
    single = declare(breaker=BREAKER, retry=Retry(attempts=1))
    assert Retries(single, "payment:command").most("Capture") == 2
    assert Retries(declare(retry=Retry(attempts=1)), "payment:command").most("Capture") == 1
