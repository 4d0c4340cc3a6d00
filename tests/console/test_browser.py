"""The console in a real browser, one for all of them: what is seen, updates, stories, letters."""

import json

import pytest
from playwright.sync_api import Page, expect
from psycopg import connect

from reservation import MessageStore
from tests.console import browsing
from tests.console.filling import letters, place


@pytest.mark.parametrize("path", ["/", "/consumers", "/nothing"])
def test_pages_are_accessible_and_fit(page, serving, path):
    """In light and dark, on a desktop and a phone."""
    browsing.check_look(page, serving.url + path)


def test_the_sign_in_is_accessible_and_works(browser, serving):
    """The token in the printed address is also accepted in the form."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{serving.url}/consumers")
    assert browsing.violations(page) == []
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    assert browsing.violations(page) == []
    page.get_by_label("Token").fill(serving.sign_in_url.partition("token=")[2])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Consumers", exact=True)).to_be_visible()
    assert "token" not in page.url
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    context.close()


def test_the_bar_can_be_skipped(page, serving):
    """With the first Tab."""
    page.goto(serving.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_the_overview_refreshes_itself(open_page, acting, filled_url):
    """A new command is counted without a reload; a pause holds until it is ended."""
    page = open_page(acting)
    page.clock.install()
    page.goto(acting.url)
    unread = page.locator("#component-1").get_by_text("unread", exact=False).first
    expect(unread).to_have_text("3 unread")
    with connect(filled_url, autocommit=True) as connection:
        store = MessageStore(connection)
        place(store, "o-100", "anna", 1)
        refresh(page)
        expect(unread).to_have_text("4 unread")
        assert browsing.violations(page) == []
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("status")).to_have_text("Updates are paused")
        place(store, "o-101", "anna", 1)
        with pytest.raises(AssertionError):
            refresh(page, patience=100)
        expect(unread).to_have_text("4 unread")
        page.get_by_role("button", name="Resume").click()
        expect(unread).to_have_text("5 unread")


def refresh(page: Page, patience: float = 5_000) -> None:
    """Let the time of an update pass and wait until it is done."""
    before = int(page.locator("html").get_attribute("data-refreshed") or 0)
    page.clock.run_for(6_000)
    expect(page.locator("html")).to_have_attribute(
        "data-refreshed", str(before + 1), timeout=patience
    )


def test_an_update_leaves_the_reader_at_work(open_page, acting, filled_url):
    """What has the focus stays as it is; the rest is new."""
    page = open_page(acting)
    page.clock.install()
    page.goto(acting.url)
    link = page.locator("#flows").get_by_role("link").first
    link.focus()
    with connect(filled_url, autocommit=True) as connection:
        place(MessageStore(connection), "o-100", "anna", 1)
    refresh(page)
    expect(link).to_be_focused()
    expect(page.locator("#totals").get_by_text("4", exact=True)).to_be_visible()
    expect(page.locator("#component-1").get_by_text("unread", exact=False).first).to_have_text(
        "3 unread"
    )


def test_a_console_that_is_gone_is_said_and_waited_for(page, serving):
    """The page stays, and says that it is old."""
    page.clock.install()
    page.goto(serving.url)
    page.route("**/*", lambda route: route.abort())
    refresh(page)
    expect(page.get_by_role("status")).to_have_text("The console does not answer; trying again")
    page.unroute("**/*")
    refresh(page)
    expect(page.get_by_role("status")).to_have_text("Updated every 5 s")


def test_the_pages_work_without_javascript(browser, serving):
    """Everything is there, but for what needs a script."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(serving.sign_in_url)
    expect(page.get_by_role("heading", name="payment")).to_be_visible()
    assert not page.get_by_role("button", name="Pause").is_visible()
    page.get_by_role("link", name="Consumers").click()
    expect(page.get_by_role("heading", name="Waiting for the next attempt")).to_be_visible()
    context.close()


# The story of a key


def test_a_story_is_accessible_and_fits(page, serving):
    """In light and dark, on a desktop and a phone, and with everything opened."""
    browsing.check_look(page, f"{serving.url}/story?q=o-2/1")
    page.goto(f"{serving.url}/story?q=o-waiting/1")
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browsing.violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_story_is_found_with_the_keyboard(page, serving):
    """Enter searches, and the address can be sent to somebody."""
    page.goto(f"{serving.url}/story")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("o-2/1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/story?q=o-2%2F1")
    assert page.locator("ol.story > li").count() > 4
    page.get_by_text("Metadata").first.click()
    assert json.loads(page.locator("details[open] pre").first.inner_text())


# Dead letters


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
    assert states(filled_url) == ["discarded", "parked", "parked"]


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
    assert states(filled_url) == ["waiting", "parked", "parked"]
