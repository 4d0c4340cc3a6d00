"""The images of the page in the docs, which are made here.

With ``RESERVATION_TEST_IMAGES=update`` they are made anew; otherwise the test looks only whether
the page shows those that there are.
"""

import os
import re
from pathlib import Path

import pytest

from tests.console import browsing
from tests.console.conftest import FOLDER
from tests.support.started import Started

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = DOCS / "how-to" / "use-the-console.md"

# What each image shows: the address, and the height of the window.
IMAGES = {
    "console-overview.png": ("/", 880),
    "console-consumers.png": ("/consumers", 860),
    "console-dead-letters.png": ("/dead-letters", 700),
    "console-story.png": ("/story?q=o-2/1", 1150),
}

# Bytes of the largest image.
LARGEST = 180_000


def test_the_page_shows_every_image():
    """And says what is on it."""
    shown = dict(re.findall(r"!\[([^\]]+)\]\(\.\./images/(console-[^)]+)\)", PAGE.read_text()))
    assert set(shown.values()) == {path.name for path in (DOCS / "images").glob("console-*")}
    assert set(IMAGES) <= set(shown.values())
    assert all((DOCS / "images" / name).stat().st_size <= LARGEST for name in shown.values())


@pytest.fixture(scope="module")
def running(seen_url):
    """Run the consumers of one of the components."""
    with Started(seen_url, app="trade:payments", cwd=FOLDER) as started:
        started.wait_for("consumer_started")
        started.wait_for("consumer_started")
        yield
        started.stop()


@pytest.mark.skipif(
    os.environ.get("RESERVATION_TEST_IMAGES") != "update",
    reason="Images are made with RESERVATION_TEST_IMAGES=update",
)
@pytest.mark.parametrize("name", IMAGES)
def test_make_an_image(open_page, serving, running, name):
    """Of the filled store, in light, while a process handles the payments."""
    path, height = IMAGES[name]
    page = open_page(serving, color_scheme="light", viewport={"width": 1280, "height": height})
    page.goto(serving.url + path)
    assert browsing.violations(page) == []
    page.screenshot(path=DOCS / "images" / name)
