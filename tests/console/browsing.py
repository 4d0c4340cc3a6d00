"""A real browser: Debian's Chromium, driven by Playwright, which downloads none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}

_NAMES = ("chromium", "chromium-browser", "google-chrome")

# What a page is checked against: what axe knows of WCAG 2.2, and its best practices.
_RUN = """only => axe.run(document, {
  resultTypes: ['violations'], ...(only && {runOnly: {type: 'rule', values: only}})
})"""


def executable() -> str | None:
    """Return the path of a browser, None if there is none."""
    named = os.environ.get("RESERVATION_TEST_BROWSER")
    if named:
        return named
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def started() -> Iterator[Browser]:
    """Give a browser; skip the test if there is none."""
    path = executable()
    if path is None:
        pytest.skip(
            "There is no Chromium on the PATH; install Debian's, or name one in "
            "RESERVATION_TEST_BROWSER"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


def violations(page: Page, *only: str) -> list[str]:
    """Return what axe finds on a page, each with the elements it is about."""
    page.wait_for_load_state()  # a click returns before the next page is there
    script = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    page.evaluate(script)  # through the debugger, since the policy allows no such script
    result: dict[str, Any] = page.evaluate(_RUN, list(only) or None)
    return [
        f"{found['id']}: {found['help']}: {[node['html'][:200] for node in found['nodes']]}"
        for found in result["violations"]
    ]


def check_look(page: Page, url: str) -> None:
    """Look at a page in light and dark, on a desktop and a phone.

    axe finds nothing to object to, nothing is wider than the window, and nothing is refused by the
    policy or raised by a script.
    """
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESKTOP)
    page.goto(url)
    assert violations(page) == [], url
    page.emulate_media(color_scheme="dark")
    assert violations(page, "color-contrast") == [], url
    page.set_viewport_size(PHONE)
    assert violations(page) == [], url
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], url
    page.emulate_media(color_scheme="light")
    assert violations(page, "color-contrast") == [], url
    assert [text for text in said if "404" not in text] == [], url
