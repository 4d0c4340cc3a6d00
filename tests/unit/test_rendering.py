"""How values are shown on the console's pages."""

from cli.console.rendering import formatted, render, visible
from tests.console.filling import HOSTILE


def test_json_is_shown_on_several_lines_with_its_digits():
    """What is no JSON, or is nested too deeply, is shown as it is."""
    assert formatted('{"a": 1.10}') == '{\n  "a": 1.10\n}'
    for text in ("", "no JSON", "[" * 100_000):
        assert formatted(text) == text


def test_what_data_holds_is_never_markup():
    """It is escaped, and what cannot be seen is made visible."""
    shown = render("problem.html", title=HOSTILE, text=HOSTILE, retry=False, actor=None)
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202eevil\\u200b&amp;amp;&#39;&#34;" in shown
    assert "{{ 7 * 7 }}" in shown
    assert visible("a\tb\nc\x1b[1m\x85") == "a\tb\nc\\x1b[1m\\x85"
