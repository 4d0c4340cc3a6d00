"""The pages of dead letters and reconciliations in a real browser."""

import pytest
from playwright.sync_api import expect

from consumers.dead_letters import search
from consumers.dead_letters.search import Filter
from reservation.postgres.connection import connect
from tests.console import browsing
from tests.console.test_reconciliations import store

pytestmark = pytest.mark.slow

LINE = "/dead-letters?entity=payment-broken"


def check(page):
    """Make sure that a page is accessible and needs no scrolling sideways."""
    assert browsing.violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def states(url):
    """Return the states of the letters of one line."""
    with connect(url, autocommit=True) as connection:
        found = search.page(connection, Filter(entity="payment-broken"), 10)
    return [letter.state for letter in found[::-1]]


def test_letters_are_corrected_retried_and_discarded(acting, open_page, filled_url):
    """From the list to the result, on a wide screen in the dark, without an axe violation."""
    page = open_page(acting, color_scheme="dark")
    page.goto(acting.url + LINE)
    check(page)
    page.get_by_role("link", name="Capture").last.click()
    check(page)
    page.get_by_role("link", name="Correct…").click()
    data = page.get_by_label("Data")
    data.fill(data.input_value().replace("100", "250"))
    page.get_by_label("Reason").fill("the shop sent cents twice")
    check(page)
    page.get_by_role("button", name="Show what changes").click()
    expect(page.locator("ins")).to_have_text(["250"])
    check(page)
    page.get_by_role("button", name="Apply the correction").click()
    assert page.get_by_role("status").first.text_content().startswith("1 dead letter corrected")
    check(page)
    assert states(filled_url) == ["retry", "parked", "parked"]
    page.get_by_role("button", name="Discard the line…").click()
    check(page)
    page.get_by_label("Reason").fill("a test")
    page.get_by_role("button", name="Discard 3 dead letters").dblclick()
    page.get_by_text("3 dead letters discarded.").wait_for()
    assert states(filled_url) == ["discarded"] * 3


def test_a_phone_without_scripts_does_the_same(acting, open_page, filled_url):
    """Choosing letters, giving the reason and retrying need no JavaScript."""
    page = open_page(acting, viewport=browsing.PHONE, java_script_enabled=False)
    page.goto(acting.url + LINE)
    page.get_by_role("checkbox").last.check()
    page.get_by_role("button", name="Retry…", exact=True).click()
    page.get_by_role("button", name="Retry 1 dead letter").click()
    assert states(filled_url) == ["dead", "parked", "parked"]  # the reason is required
    page.get_by_label("Reason").fill("the provider is back")
    page.get_by_role("button", name="Retry 1 dead letter").click()
    page.get_by_text("1 dead letter will be retried.").wait_for()
    assert states(filled_url) == ["retry", "parked", "parked"]


def test_reports_are_read_on_a_phone(acting, open_page, filled_url):
    """The chart scrolls within its card, and each page is accessible."""
    for count in range(3):
        store(filled_url, findings={"conflict": count, "missing": 1})
    page = open_page(acting, viewport=browsing.PHONE)
    page.goto(acting.url + "/reconciliations")
    assert page.get_by_role("img", name="Findings over time").is_visible()
    check(page)
    page.locator("tbody a").first.click()
    check(page)
    page.get_by_role("link", name="conflict-60-9f8e7d6c").click()
    page.get_by_label("Reason").fill("the sender confirmed 20")
    page.get_by_role("button", name="Accept").click()
    page.get_by_role("button", name="Reopen").wait_for()
    check(page)
    page.get_by_role("link", name="Accepted findings").click()
    expect(page.get_by_text("the sender confirmed 20")).to_be_visible()
    check(page)
