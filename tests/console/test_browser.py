"""The console in a real browser: what is seen, and what updates do."""

import pytest
from playwright.sync_api import Page, expect
from psycopg import connect

from reservation import MessageStore
from tests.console import browsing
from tests.console.filling import place


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


def test_a_console_that_is_gone_is_said_and_waited_for(open_page, acting):
    """The page stays, and says that it is old."""
    page = open_page(acting)
    page.clock.install()
    page.goto(acting.url)
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
