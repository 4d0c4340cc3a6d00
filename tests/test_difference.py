"""Where two JSON texts differ: by fields, by values or by digits, cut where they are long."""

import json

import pytest

from consumers.story.content.difference import (
    DEEPEST,
    LONGEST,
    MOST,
    differences,
    formatted,
    pretty,
)


def shown(before, after, **options):
    """Return the differences as texts: path, before and after."""
    return [
        (one.path, one.before and one.before.text, one.after and one.after.text)
        for one in differences(before, after, **options)
    ]


def test_contents_are_compared_field_by_field():
    """Nested values by their paths, with all the digits of numbers."""
    before = '{"a": 1.5, "b": {"c": [1, {"d": null}]}, "e": "x", "f.g": true}'
    after = '{"a": 1.6, "b": {"c": [1, {"d": 12345678901234567890.5}]}, "h": [], "f.g": 1}'
    assert shown(before, after) == [
        ("a", "1.5", "1.6"),
        ("b.c[1].d", "null", "12345678901234567890.5"),
        ("e", '"x"', None),
        ('["f.g"]', "true", "1"),
        ("h", None, "[]"),
    ]
    assert shown(before, before) == []


@pytest.mark.parametrize("text", ['{"a": %s}', '{"b": [0, %s]}', "[" * 60 + "%s" + "]" * 60])
def test_numbers_of_one_value_differ_only_if_their_digits_are_asked_for(text):
    """A correction from 1 to 1.0 is one; a reissue with 1.0 says the same as the first command."""
    for one, other in (("1", "1.0"), ("1.10", "1.1"), ("-0.0", "0.0")):
        before, after = text % one, text % other
        assert shown(before, after) == []
        (difference,) = differences(before, after, exact=True)
        assert (one in difference.before.text, other in difference.after.text) == (True, True)
        assert shown(before, before, exact=True) == []


def test_the_order_of_fields_is_no_difference_at_any_depth():
    """Objects that are compared as a whole have the same fields in whichever order."""
    outer = "[" * (DEEPEST + 5) + "%s" + "]" * (DEEPEST + 5)
    for options in ({}, {"exact": True}):
        assert shown(outer % '{"a": 1, "b": 2}', outer % '{"b": 2, "a": 1}', **options) == []


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("levels", [DEEPEST, 500, 100_000])
def test_what_is_nested_deeply_is_compared_too(levels, exact):
    """As a whole below so many levels; what cannot be decoded is compared as text."""
    before, after = ('{"a":' * levels + value + "}" * levels for value in ("1", "2"))
    assert len(differences(before, after, exact=exact)) == 1
    assert differences(before, before, exact=exact) == ()


def test_long_values_are_cut_and_many_differences_are_not_all_given():
    """What is left out of a value is counted."""
    (difference,) = differences('{"a": ""}', json.dumps({"a": "x" * 1_000}))
    assert (len(difference.after.text), difference.after.cut) == (LONGEST, 1_002 - LONGEST)
    (difference,) = differences('{"a": ""}', json.dumps({"a": "x" * 1_000}), longest=2_000)
    assert (difference.after.text, difference.after.cut) == (json.dumps("x" * 1_000), 0)
    assert len(differences("[]", json.dumps(list(range(1_000))))) == MOST


def test_json_is_shown_on_several_lines_with_its_digits():
    """What is no JSON, or is nested too deeply, is shown as it is."""
    assert formatted('{"a": 1.10}') == '{\n  "a": 1.10\n}'
    assert pretty('{"a": 1.10}', 5).text == '{\n  "'
    for text in ("", "no JSON", "[" * 100_000):
        assert formatted(text) == text
