"""The pages of dead letters in a real browser."""

from psycopg import connect

from tests.console import browsing
from tests.console.filling import letters

LINE = "/dead-letters?entity=payment-broken"


def check(page):
    """Make sure that a page is accessible and needs no scrolling sideways."""
    assert browsing.violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def states(url):
    """Return the states of the letters of one line."""
    with connect(url, autocommit=True) as connection:
        return [letter.state for letter in letters(connection, entity="payment-broken")]


def test_letters_are_retried_and_discarded(acting, open_page, filled_url):
    """From the list to the result, on a wide screen in the dark, without an axe violation."""
    page = open_page(acting, color_scheme="dark")
    page.goto(acting.url + LINE)
    check(page)
    page.get_by_role("link", name="Capture").last.click()
    check(page)
    page.get_by_role("button", name="Discard…").click()
    page.get_by_label("Reason").fill("a test")
    check(page)
    page.get_by_role("button", name="Discard 1 dead letter").dblclick()
    page.get_by_text("1 dead letter discarded.").wait_for()
    check(page)
    assert states(filled_url) == ["discarded", "retry", "parked"]


def test_a_phone_without_scripts_does_the_same(acting, open_page, filled_url):
    """Searching, giving the reason and retrying need no JavaScript."""
    page = open_page(acting, viewport=browsing.PHONE, java_script_enabled=False)
    page.goto(acting.url + LINE)
    page.get_by_role("button", name="Retry…").click()
    page.get_by_role("button", name="Retry 1 dead letter").click()
    assert states(filled_url) == ["dead", "parked", "parked"]  # the reason is required
    page.get_by_label("Reason").fill("the provider is back")
    page.get_by_role("button", name="Retry 1 dead letter").click()
    page.get_by_text("1 dead letter will be retried.").wait_for()
    assert states(filled_url) == ["retry", "parked", "parked"]
