"""What ``reservation.http`` decides without a store: keys, ids of requests, and its arguments."""

import pytest
from starlette.datastructures import Headers

from reservation.errors import DeclarationError
from reservation.http import Idempotency
from reservation.http.identity import RequestId
from reservation.http.wire.header import idempotency_key
from reservation.http.wire.problems import Problem
from tests.apps.http_app import fastapi_app, plain, principal


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ('"8e03978e"', "8e03978e"),
        ('  "a b"  ', "a b"),
        (r'"a\"b\\c"', r"a\"b\\c".replace("\\\\", "\0").replace("\\", "").replace("\0", "\\")),
        ('"a";b;c=1;d="x;y"', "a"),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("a/b+c=", "a/b+c="),
        ("x" * 255, "x" * 255),
    ],
)
def test_a_key_is_a_string_in_quotes_or_without(value, key):
    """A structured string and a bare key are taken, and parameters mean nothing."""
    assert idempotency_key(Headers({"idempotency-key": value})) == key


@pytest.mark.parametrize(
    "value",
    [
        *("", '""', '"a', 'a"', '"a"b', '"a" b', '"a", "b"', "a,b", "a b", "a;b", '"\\a"', '"é"'),
        *("é", "x" * 256, f'"{"x" * 256}"', '"a";', '"a";B', '"\x7f"', "\t"),
    ],
)
def test_what_is_no_key_is_refused(value):
    """Whatever is neither a structured string nor a bare key is a problem."""
    with pytest.raises(Problem) as caught:
        idempotency_key(Headers({"idempotency-key": value}))
    assert (caught.value.kind.status, caught.value.kind.name) == (400, "key-invalid")


def test_several_keys_are_refused():
    """Two headers with a key are a problem, even if they hold the same."""
    with pytest.raises(Problem):
        idempotency_key(Headers(raw=[(b"idempotency-key", b"a")] * 2))


def test_no_choice_of_a_key_makes_the_id_of_another_scope():
    """Ids of different scopes and keys differ, however separators are placed."""
    pairs = [
        (a, b) for a in ("a", "a:b", "a\0", "ab", "a+b", "a|b") for b in ("b", ":b", "\0b", "")
    ]
    ids = {RequestId.of(scope, key).uuid for scope, key in pairs}
    assert len(ids) == len(pairs)
    one = RequestId.of("a", "b")
    assert RequestId.linked("a", one.key_digest) == one
    assert RequestId.linked("b", one.key_digest) != one
    assert one.uuid.version == 8
    assert len({one.command_id(0), one.command_id(1), one.uuid}) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scope": "alice"}, "scope="),
        ({"required": "yes"}, "required="),
        ({"methods": "POST"}, "methods="),
        ({"methods": []}, "methods="),
        ({"methods": ["post"]}, "'post'"),
        ({"methods": ["GET"]}, "'GET'"),
        ({"timeout": -1}, "timeout="),
        ({"timeout": float("nan")}, "timeout="),
        ({"timeout": float("inf")}, "timeout="),
        ({"timeout": "1"}, "timeout="),
        ({"status_path": "asked"}, "status_path="),
        ({"status_path": "/"}, "status_path="),
        ({"status_path": "/a/"}, "status_path="),
        ({"max_connections": 0}, "max_connections="),
        ({"max_request_bytes": 1.5}, "max_request_bytes="),
        ({"max_answer_bytes": True}, "max_answer_bytes="),
    ],
)
def test_bad_arguments_are_refused(options, text):
    """An argument that cannot be what it is for is refused at once, in one line that names it."""
    with pytest.raises(DeclarationError, match=text) as caught:
        Idempotency(plain(), **{"database_url": "", "scope": principal, **options})
    assert "\n" not in str(caught.value)


def test_a_scope_has_to_be_given():
    """There is no scope by default."""
    with pytest.raises(TypeError, match="scope"):
        Idempotency(plain(), database_url="")


def test_the_header_is_in_the_schema_of_fastapi():
    """An endpoint that depends on its keyed request has the header as a parameter in OpenAPI."""
    schema = fastapi_app("").openapi()
    operation = schema["paths"]["/accounts/{account_id}/deposits"]["post"]
    (header,) = [one for one in operation["parameters"] if one["in"] == "header"]
    assert (header["name"], header["required"]) == ("Idempotency-Key", True)
    assert "the same whenever it is sent again" in header["description"]
