"""The templates, and how values appear in them.

Everything that a template prints is escaped. Control characters, and those that change the
direction of a text or have no width, are printed as ``\\u202e``, so that nothing looks like what it
is not. Where a value has to come back as it is, in a form, the filter ``exact`` keeps them.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from cli.common.durations import in_two_units

_HERE = Path(__file__).parent
STATIC = _HERE / "static"


def visible(value: object) -> object:
    """Return a text with its invisible characters escaped, and anything else as it is.

    Line breaks and tabs stay, because a template decides how they look.
    """
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in value
    )


def formatted(text: str) -> str:
    """Return a JSON text with a line for each field; what is no JSON as it is."""
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.MsgspecError, RecursionError):
        return text


def exact(value: object) -> Markup:
    """Return a text escaped for HTML and otherwise unchanged, for the fields of a form."""
    return escape(value)


def number(value: int) -> str:
    """Return a number with its thousands separated."""
    return f"{value:,}"


def rate(per_second: float) -> str:
    """Return a rate, in messages a second, with as many digits as mean something."""
    if per_second == 0:
        return "0"
    if per_second < 0.1:
        return "<0.1"
    return f"{per_second:,.1f}" if per_second < 10 else f"{per_second:,.0f}"


def when(moment: datetime | None) -> Markup:
    """Return a point in time in UTC, as an element that a browser can read; None is unreadable."""
    if moment is None:
        return Markup("no readable time")
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="milliseconds"), utc.strftime("%Y-%m-%d %H:%M:%S")
    )


def age(moment: datetime, now: datetime) -> Markup:
    """Return how long before or after now a point in time is, in an element."""
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="milliseconds"), in_two_units(abs((now - utc).total_seconds()))
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "age": age,
        "exact": exact,
        "json": formatted,
        "number": number,
        "rate": rate,
        "span": in_two_units,
        "when": when,
    }
    return environment


_ENVIRONMENT = _environment()


def render(template: str, **values: Any) -> str:
    """Return a template filled in."""
    return _ENVIRONMENT.get_template(template).render(values)
