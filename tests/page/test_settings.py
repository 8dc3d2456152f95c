"""The settings of the server, from its table of options, and what is tried, in a browser."""

from typing import Any

import httpx
import pytest

from pippin.config.options.declaration import options
from tests.page.browser import Opener, needs_browser
from tests.page.chatting import agree

pytestmark = needs_browser


@pytest.fixture(scope="module")
def settings(address: str, opened_once: Opener) -> Any:
    """The settings as they are at first."""
    return opened_once(address, path="/#settings")


def test_settings_stand_in_groups_with_sentences_and_defaults(address: str, settings: Any) -> None:
    page = settings
    page.wait_for_selector("#setting-max_choices")
    current = httpx.get(f"{address}/v1/settings").json()["current"]
    shown = page.eval_on_selector_all(".setting", "all => all.map(each => each.dataset.name)")
    assert set(shown) == set(current) & set(options())
    groups = page.eval_on_selector_all("#settings .group h2", "all => all.map(each => each.textContent)")
    assert {"Address and log", "Memory and the pool", "Limits", "Scheduling"} <= set(groups)
    row = page.inner_text("[data-name=max_choices]")
    assert options()["max_choices"].help.rstrip(".") in row
    assert f"{options()['max_choices'].default} by default" in row
    fixed = page.locator("[data-name=host]")
    assert "needs a restart" in fixed.inner_text()
    assert fixed.locator("input").count() == 0


def test_settings_are_changed_and_refused_in_the_servers_words(address: str, opened: Opener) -> None:
    page = opened(address, path="/#settings")
    page.fill("#setting-max_choices", "3")
    page.keyboard.press("Tab")
    page.wait_for_selector("[data-name=max_choices].changed :text('Changed.')")
    assert httpx.get(f"{address}/v1/settings").json()["current"]["max_choices"] == 3
    page.fill("#setting-max_choices", "0")
    page.keyboard.press("Tab")
    page.wait_for_selector("#announcements .error, [data-name=max_choices] .error")
    page.fill("#setting-max_choices", "4")
    page.keyboard.press("Tab")
    page.click("[data-name=max_choices] button:text('Back to the default')")
    page.wait_for_selector("[data-name=max_choices]:not(.changed)")
    page.check("#setting-list_claude_names")
    page.wait_for_selector("[data-name=list_claude_names].changed")
    page.uncheck("#setting-list_claude_names")
    page.wait_for_selector("[data-name=list_claude_names]:not(.changed)")


def test_settings_are_found_by_their_words(settings: Any) -> None:
    page = settings
    page.wait_for_selector("#setting-max_choices")
    page.fill("[aria-label='Search the settings']", "severe")
    assert page.locator(".setting:visible").count() == 1
    page.fill("[aria-label='Search the settings']", "")
    page.check("#only-hot")
    visible = page.eval_on_selector_all(
        ".setting", "all => all.filter(each => each.checkVisibility()).map(each => each.dataset.name)"
    )
    assert visible
    assert all(options()[name].hot for name in visible)


def test_the_settings_are_shown_to_who_manages_the_server(keyed: str, opened: Opener) -> None:
    page = opened(keyed, path="/#settings")
    page.fill("dialog [name=key]", "sk-alice")
    agree(page)
    page.wait_for_selector("#settings :text('administrator')")
    assert page.locator(".setting").count() == 0
    page.fill("#settings [name=key]", "sk-root")
    page.keyboard.press("Enter")
    page.wait_for_selector("#setting-max_choices")


def test_embeddings_and_ranks_are_tried(address: str, opened: Opener) -> None:
    page = opened(address, path="/#try")
    form = page.locator("form[aria-label=Embeddings]")
    form.locator("option").first.wait_for(state="attached")
    form.locator("button:text('Run')").click()
    form.locator("text=16 dimensions").wait_for()
    assert form.locator("tbody tr").count() == 3
    page.click(".choices button:text('Rerank')")
    assert page.locator("#try button.main:visible").count() == 1
    ranks = page.locator("form[aria-label=Rerank]")
    ranks.locator("button:text('Run')").click()
    ranks.locator("tbody tr >> nth=2").wait_for()


def test_what_no_model_here_can_do_says_how_to_get_one(address: str, opened: Opener) -> None:
    page = opened(address)
    page.route("**/v1/models", lambda asked: asked.fulfill(json={"data": []}))
    page.click("#tab-try")
    page.click(".choices button:text('Images')")
    form = page.locator("form[aria-label=Images]")
    form.locator("a:text('Get one in the console')").wait_for()
    assert not form.locator("button").is_visible()
