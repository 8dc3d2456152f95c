"""The page with a hub to search and pull from, and with an MCP server whose tools it runs."""

import re

from tests.page.browser import Opener, needs_browser
from tests.page.chatting import agree, done, parameters, say

pytestmark = needs_browser


def test_a_model_is_found_on_the_hub_and_pulled_with_progress(address: str, opened: Opener) -> None:
    page = opened(address, path="/#console")
    page.click("text=Get a model")
    page.fill("[name=words]", "tiny model")
    page.keyboard.press("Enter")
    page.wait_for_selector("td:text-is('12,345')")
    page.click("[aria-label='Take org/model']")
    agree(page)
    told = page.locator("[aria-label=Download] [role=status]")
    told.filter(has_text=re.compile("/s, .* left")).wait_for()
    told.filter(has_text="org/model is here.").wait_for()
    page.wait_for_selector("[aria-label='Delete org/model']")
    page.click("text=Get a model")
    page.fill("[name=words]", "tiny model")
    page.keyboard.press("Enter")
    page.wait_for_selector("td:text-is('is here')")
    page.click("dialog button:text('Cancel')")
    page.click("[aria-label='Delete org/model']")
    agree(page)
    page.wait_for_selector("[aria-label='Delete org/model']", state="detached")


def test_what_fits_this_machine_is_offered_where_no_model_is(address: str, opened: Opener) -> None:
    page = opened(address, path="/#settings")
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": []}))
    page.click("#tab-chat")
    page.wait_for_selector("#chat-empty :text('No model to chat with yet')")
    page.wait_for_selector("#chat-empty tbody tr")
    page.click("#chat-empty a >> nth=0")
    page.wait_for_selector("dialog [name=model]")
    assert "/" in page.input_value("dialog [name=model]")


def test_a_tool_of_an_mcp_server_is_run_when_the_person_says_so(address: str, opened: Opener) -> None:
    page = opened(address)
    parameters(page, more=True)
    page.select_option("[name=server_tools]", "true")
    say(page, "The sum, please")
    assert page.inner_text(".call summary") == "Calls example__add"
    page.click("button:text('Run it on the server')")
    page.wait_for_selector("text=It is forty-two.")
    done(page)
    assert page.locator(".message.tool").inner_text().count("42") == 1
