"""What the options of all commands share: paths to components, time spans, points in time."""

import sys
from datetime import UTC, datetime, timedelta

import click
import pytest

from cli.common.durations import DurationType, TimestampType, written
from cli.main import main
from cli.spark.reconcile import reconcile
from reservation.app_path import load_component
from reservation.errors import AppPathError
from spark_jobs.snapshot.snapshot import GRACE
from tests.support.commands import leaves

# Paths


APP = """
from dataclasses import dataclass
from reservation import Component

@dataclass
class Ping:
    id: str

ping = Component("ping", id="id")
ping.handle(Ping, once=None)(lambda command, entity, context: None)
class Holder:
    inner = ping
empty = Component("empty", id="id")
number = 3
"""


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch):
    """Forget what a test imports."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_component_is_found_in_the_app_folder(tmp_path):
    """A component is found in the app folder, also behind a dotted attribute."""
    (tmp_path / "found_app.py").write_text(APP)
    assert load_component("found_app:ping", tmp_path).name == "ping"
    assert load_component("found_app:Holder.inner", tmp_path).name == "ping"


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        ("broken_app", "write module:attribute"),
        (":x", "write module:attribute"),
        ("nowhere:x", "There is no module 'nowhere'"),
        ("some.nowhere:x", "There is no module 'some'"),
        ("some_app:nothing", "'nothing' is not in the module"),
        ("some_app:number", "is of type int, not a Component"),
        ("some_app:empty", "handles no command"),
        (
            "raising_app:x",
            r"ZeroDivisionError in <module> \(raising_app.py:1\): div",
        ),
        ("typo_app:x", "cannot be imported: SyntaxError"),
        ("exiting_app:x", "cannot be imported: SystemExit"),
        ("importing_app:x", "imports 'not_there', which is not installed"),
    ],
)
def test_a_path_that_leads_nowhere_is_explained(tmp_path, app, problem):
    """An app path that leads nowhere is an error of one line that names what is missing."""
    (tmp_path / "some_app.py").write_text(APP)
    (tmp_path / "raising_app.py").write_text("1 / 0")
    (tmp_path / "typo_app.py").write_text("def")
    (tmp_path / "exiting_app.py").write_text("raise SystemExit(3)")
    (tmp_path / "importing_app.py").write_text("import not_there")
    with pytest.raises(Exception, match=problem) as caught:
        load_component(app, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["consumers", "cli", "spark_jobs"])
def test_a_folder_with_a_package_named_like_ours_is_refused(tmp_path, name):
    """A folder with a package named like ours is refused, so the wrong code is not imported."""
    (tmp_path / "some_app.py").write_text(APP)
    (tmp_path / name).mkdir()
    load_component("some_app:ping", tmp_path)  # a folder without Python in it is no package
    (tmp_path / name / "__init__.py").touch()
    with pytest.raises(AppPathError, match=f"a package of its own named '{name}'"):
        load_component("some_app:ping", tmp_path)


def test_a_missing_app_folder_is_named(tmp_path):
    """The error for an app folder that does not exist names it and `--app-dir`."""
    with pytest.raises(AppPathError, match="--app-dir"):
        load_component("x:y", tmp_path / "nowhere")


# Time spans

DURATION = DurationType()


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("0.5s", timedelta(milliseconds=500)),
        (".5s", timedelta(milliseconds=500)),
        ("5m", timedelta(minutes=5)),
        ("1.5h", timedelta(minutes=90)),
        ("36h", timedelta(hours=36)),
        ("90d", timedelta(days=90)),
        (" 2m ", timedelta(minutes=2)),
        ("0s", timedelta(0)),
        ("0.000001s", timedelta(microseconds=1)),
    ],
)
def test_a_time_span_is_a_number_and_a_unit(text, span):
    """A time span is a number, which may have decimals, and a unit."""
    assert DURATION.convert(text, None, None) == span


@pytest.mark.parametrize(
    "text", ["", "5", "5 m", "-5m", "+5m", "m", "1e3s", "5min", "5M", "1.s", "५m", "5m30s"]
)
def test_anything_else_is_refused_with_the_grammar(text):
    """Anything else is refused in one line that shows what to write."""
    with pytest.raises(click.BadParameter, match=r"not a time span; write a number and ms, s, m"):
        DURATION.convert(text, None, None)


def test_a_time_span_out_of_the_limits_is_refused_with_the_limits():
    """A time span outside the limits is refused; the limits themselves are accepted."""
    limited = DurationType(at_least=timedelta(hours=1), at_most=timedelta(days=2))
    for text in ("1h", "60m", "48h", "2d"):
        limited.convert(text, None, None)
    for text in ("59m", "0d", "2.1d", "999999999999d"):
        with pytest.raises(click.BadParameter, match=r"out of range; write .* from 1h to 2d"):
            limited.convert(text, None, None)


def test_a_plain_number_is_in_seconds_where_the_option_accepts_one():
    """Options that took seconds before there were units still accept plain numbers."""
    plain = DurationType(plain_seconds=True)
    assert plain.convert("0.5", None, None) == timedelta(milliseconds=500)
    assert plain.convert("300", None, None) == timedelta(minutes=5)


@pytest.mark.parametrize("text", ["1500ms", "90s", "5m", "36h", "90d", "0s"])
def test_a_time_span_is_written_as_an_option_takes_it(text):
    """A time span is written in the largest unit that divides it, as options accept it."""
    span = DURATION.convert(text, None, None)
    assert DURATION.convert(written(span), None, None) == span
    assert len(written(span)) <= len(text)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:30", datetime(2026, 1, 31, 12, 30, tzinfo=UTC)),
        ("2026-01-31T12:30+02:00", datetime(2026, 1, 31, 10, 30, tzinfo=UTC)),
    ],
)
def test_a_date_is_in_utc(text, time):
    """A date without a time zone is in UTC."""
    assert TimestampType().convert(text, None, None) == time


def test_an_age_counts_from_now():
    """An age in any unit counts back from now; an age of nothing is refused."""
    before = datetime.now(UTC)
    time = TimestampType().convert("36h", None, None)
    assert before <= time + timedelta(hours=36) <= datetime.now(UTC)
    for text in ("yesterday", "d", "2026-02-30"):
        with pytest.raises(click.BadParameter, match="neither a date nor a time span"):
            TimestampType().convert(text, None, None)
    with pytest.raises(click.BadParameter, match="out of range"):
        TimestampType().convert("0d", None, None)


def test_every_option_that_takes_a_time_span_has_the_grammar():
    """Every option for a time span uses the common grammar, also in its metavar and help."""
    options = [param for _, command in leaves(main) for param in command.params]
    spans = {option.name for option in options if isinstance(option.type, DurationType)}
    assert spans == {
        *(
            "cancelled",
            "older_than",
            "grace",
            "stuck_after",
            "http_requests",
            "passes",
            "reservations",
            "watch",
        )
    }
    assert not [
        option.name for option in options if isinstance(option.type, click.types.FloatParamType)
    ]
    assert not [option.name for option in options if "SECONDS" in (option.metavar or "")]


def test_the_default_grace_period_is_that_of_the_jobs():
    """The option says it as a text."""
    (grace,) = (param for param in reconcile.params if param.name == "grace")
    assert DURATION.convert(grace.default, None, None) == GRACE
