"""The page of a report in a real browser: what is where, and what a phone shows of it."""

import pytest

from spark_jobs.report import thresholds
from spark_jobs.report.page.html import render_html
from tests.console import browsing
from tests.spark import reports

# The figures of the tables of counts that are not within the width of the window.
_HIDDEN = """() => [...document.querySelectorAll('.counts tbody td')]
  .filter(cell => cell.getBoundingClientRect().right > innerWidth)
  .map(cell => cell.textContent)"""


@pytest.fixture(scope="module")
def browser():
    """Give a browser."""
    with browsing.started() as browser:
        yield browser


@pytest.fixture
def shown(browser, tmp_path):
    """Give a function that shows a report in a window of a size."""

    def show(report, viewport):
        page = browser.new_page(viewport=viewport)
        (tmp_path / "report.html").write_text(render_html(report, thresholds.reached(report)))
        page.goto((tmp_path / "report.html").as_uri())
        return page

    return show


def test_findings_come_second_and_are_linked(shown):
    """What is wrong follows the verdict, and a threshold leads to the rows of its finding."""
    page = shown(reports.everything(), browsing.DESKTOP)
    assert page.locator("h2").first.text_content() == "What was found"
    link = page.get_by_role("link", name="15 conflicts (allowed: 0)")
    link.click()
    article = page.locator("article:target")
    assert article.locator("h3").text_content().startswith("Conflicts 15")
    assert -1 < article.bounding_box()["y"] < browsing.DESKTOP["height"]
    assert "accountTransaction-123+Deposit300" in article.inner_text()
    in_order = shown(reports.in_order(), browsing.DESKTOP)
    assert in_order.locator("h2").last.text_content() == "What was found"


def test_a_phone_shows_every_figure(shown):
    """Nothing is wider than the window, and no count has to be scrolled to."""
    for report in (reports.everything(), reports.in_order(), reports.of_categories(5)):
        page = shown(report, browsing.PHONE)
        assert page.evaluate(_HIDDEN) == []
        assert page.evaluate("document.documentElement.scrollWidth") == browsing.PHONE["width"]
        assert browsing.violations(page) == []
