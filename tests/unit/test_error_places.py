"""Where an exception was raised: its class, and the deepest line of the user's own code."""

import asyncio
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from reservation import raised
from reservation.raised import describe, note_own_code, place_of, type_of

HERE = "tests/unit/test_error_places.py"


@pytest.fixture(autouse=True)
def _own_packages(monkeypatch):
    monkeypatch.setattr(raised, "_own_packages", set())


def error_of(function, *arguments):
    """Return what a function raises."""
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001  that is what is looked at
        return error
    raise AssertionError("it raises nothing")


def module_in(folder, name, text):
    """Import a module from a folder."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line_of(text):
    """Return the number of the only line of this file that holds a text."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return number


def parse():
    return json.loads("{secret")  # parses


def test_the_place_is_the_deepest_line_of_own_code_and_not_the_one_in_a_library():
    """What the standard library raises is shown where own code called it."""
    error = error_of(parse)
    assert describe(error) == f"JSONDecodeError in parse ({HERE}:{line_of('parses')})"
    assert type_of(error) == "json.decoder.JSONDecodeError"


def test_an_installed_library_is_not_own_code(tmp_path):
    """Neither in site-packages nor in dist-packages, whichever folder these are in."""
    for folder in ("site-packages", "dist-packages"):
        library = module_in(tmp_path / folder, "client.calls", "def get(url):\n    raise OSError\n")
        assert place_of(error_of(lambda: library.get(1))).endswith(  # noqa: B023
            f"<lambda> ({HERE}:{line_of('noqa: B023')})"
        )


def test_the_package_of_a_component_is_own_code_also_where_it_is_installed(tmp_path):
    """An app may be installed like a library; its file is named from the package."""
    app = module_in(
        tmp_path / "site-packages",
        "shop.payments",
        "import json\n\ndef charge(text):\n    json.loads(text)\n",
    )
    assert "charge" not in place_of(error_of(app.charge, "{"))
    note_own_code("shop.components")
    assert describe(error_of(app.charge, "{")) == "JSONDecodeError in charge (shop/payments.py:4)"


@pytest.mark.parametrize("module", [None, "", "functools", "consumers.loop", "reservation"])
def test_neither_the_standard_library_nor_this_project_becomes_own_code(module):
    """A handler may be a partial application, whose module is that of `functools`."""
    note_own_code(module)
    assert raised._own_packages == set()


def test_an_exception_that_was_raised_from_another_names_it():
    """The place is where own code raised; the cause says what it was about."""

    def charge():
        try:
            parse()
        except ValueError as error:
            raise RuntimeError("secret") from error  # from

    assert describe(error_of(charge)).endswith(
        f"charge ({HERE}:{line_of('from')}), caused by JSONDecodeError"
    )


def test_where_own_code_is_only_in_the_cause_that_place_is_shown():
    """An exception that a library raised anew, in a place without own code."""
    error = OSError("secret")
    error.__cause__ = error_of(parse)
    assert (
        describe(error)
        == f"OSError in parse ({HERE}:{line_of('parses')}), caused by JSONDecodeError"
    )


def test_a_group_names_what_is_in_it_and_where_the_first_of_that_was_raised():
    """The group itself is raised where the tasks are awaited."""

    async def run():
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    async def fail():
        parse()

    error = error_of(asyncio.run, run())
    assert describe(error) == (
        f"ExceptionGroup of JSONDecodeError in parse ({HERE}:{line_of('parses')})"
    )
    nested = BaseExceptionGroup(
        "", [error, SystemExit(), *(type(c, (OSError,), {})() for c in "ABC")]
    )
    assert type_of(nested).startswith("BaseExceptionGroup of json.decoder.JSONDecodeError, SystemE")
    assert type_of(nested).endswith(" and more")


def test_the_place_of_an_async_function_is_in_the_coroutine():
    """The event loop's own frames are not own code."""

    async def awaited():
        await asyncio.wait_for(inner(), 1)

    async def inner():
        raise ValueError  # awaited

    assert f"inner ({HERE}:{line_of('awaited')})" in place_of(error_of(asyncio.run, awaited()))


def test_generated_code_is_passed_for_the_line_that_called_it():
    """A dataclass's constructor is no place to look at, nor is code that was compiled."""

    class Checked:
        def __set__(self, instance, value):
            json.loads(value)  # checks

    @dataclass
    class Amount:
        value: str

    Amount.value = Checked()
    assert place_of(error_of(Amount, "{")).endswith(f"({HERE}:{line_of('checks')})")
    assert place_of(error_of(exec, "import json\njson.loads('{')", {"__name__": "__main__"})) == (
        f"error_of ({HERE}:{line_of_call()})"
    )


def line_of_call():
    lines = Path(__file__).read_text().splitlines()
    return 1 + lines.index("        function(*arguments)")


def test_an_error_of_syntax_is_where_own_code_compiled():
    """Its own file and text are not shown."""
    error = error_of(compile, "secret(", "secret.py", "exec")
    assert describe(error) == f"SyntaxError in error_of ({HERE}:{line_of_call()})"


def test_an_exception_without_a_frame_is_its_class_alone():
    """As one that a handler in C raises, of which only our own frames are there."""
    assert describe(KeyError("secret")) == "KeyError"
    assert place_of(KeyError("secret")) is None


def test_where_there_is_no_own_code_the_deepest_line_of_others_is_shown():
    """It is better than nothing."""
    error = error_of(parse)
    while error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    assert describe(error).startswith("JSONDecodeError in JSONDecoder.raw_decode (json/decoder.py:")


def test_a_chain_that_bites_its_tail_ends():
    """As do long ones."""
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert describe(one) == "ValueError, caused by ValueError"
    long = first = ValueError()
    for _ in range(10_000):
        long.__cause__ = KeyError()
        long = long.__cause__
    assert describe(first) == "ValueError, caused by KeyError"


def test_names_are_made_such_that_any_database_and_any_log_takes_them():
    """A class may have any name, and a file one that is no UTF-8."""
    kind = type("Odd", (Exception,), {"__module__": "shop\0", "__qualname__": "O\ndd" * 200})
    shown = type_of(kind())
    assert shown.isprintable()
    assert len(shown) == raised.LONGEST + 1
    code = compile("def f():\n    raise OSError", "/srv/a\udcff.py", "exec")
    names = {"__name__": "a"}
    exec(code, names)
    assert place_of(error_of(names["f"])) == "f (a\\udcff.py:2)"
