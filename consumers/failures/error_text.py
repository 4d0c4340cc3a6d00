"""The text and the traceback of an exception, as they are kept with a dead letter on request."""

import traceback

# Characters of each that are kept. Of a longer traceback the beginning is left out, because the
# frames that raised are at its end.
LONGEST_TEXT = 2_000
LONGEST_TRACEBACK = 16_000


def text_of(error: BaseException) -> str:
    """Return the text of an exception, which may be long, and may fail to be made."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  a class may raise anything when it is to show itself
        return ""
    return _storable(text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…")


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception with what it was raised from, as Python prints it."""
    try:
        lines = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  the same
        return ""
    if len(lines) > LONGEST_TRACEBACK:
        lines = f"…{lines[-LONGEST_TRACEBACK + 1 :]}"
    return _storable(lines)


def _storable(text: str) -> str:
    """Return a text without what PostgreSQL does not store in one."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
