"""The page with a hub to search and pull from, and with an MCP server whose tools it runs."""

import json
import os
import sys
from collections.abc import Iterator

import pytest

from tests.catalog.fake_hub import FakeHub, serving
from tests.catalog.folders import write_model
from tests.page.browser import Opener, needs_browser, picture
from tests.page.test_chat import done, say
from tests.running_server import ROOT, running_server

pytestmark = needs_browser

CALLING = {
    "rules": [
        {"when": {"tool_result": "42"}, "say": "It is forty-two."},
        {"when": {"user": "sum"}, "calls": [{"name": "example__add", "arguments": {"a": 20, "b": 22}}]},
    ]
}


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the tools of an MCP server, and with a hub that has one repository, whose bytes come slowly."""
    folder = tmp_path_factory.mktemp("connected")
    staged = write_model(folder / "staged")
    files = {path.name: path.read_bytes() for path in staged.iterdir()} | {
        "model-2.safetensors": os.urandom(3_000_000)
    }
    tools = {
        "mcpServers": {"example": {"command": sys.executable, "args": ["-m", "tests.mcp.example_server"]}}
    }
    tools["mcpServers"]["example"] |= {"env": {"PYTHONPATH": str(ROOT)}, "allowed_tools": ["add"]}
    (folder / "mcp.json").write_text(json.dumps(tools))
    (folder / "tools.script.json").write_text(json.dumps(CALLING))
    with serving(FakeHub(files, pace=0.25)) as hub:
        variables = {"HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        words = (str(folder / "tools.script.json"), "--mcp-config", str(folder / "mcp.json"))
        with running_server(folder, *words, variables=variables) as address:
            yield address


def test_a_model_is_found_on_the_hub_and_pulled_with_progress(connected: str, opened: Opener) -> None:
    page = opened(connected, path="/#models")
    page.fill("[name=words]", "tiny model")
    page.keyboard.press("Enter")
    page.wait_for_selector("td:text-is('12,345')")
    page.click("[aria-label='Get org/model']")
    said = page.locator("#models form p[role=status]")
    said.locator(":text(' left')").or_(said.filter(has_text="left")).first.wait_for()
    assert "/s, " in said.inner_text()
    picture(page, "pulling")
    page.wait_for_selector("#models form :text('It is here.')")
    page.locator(".card[aria-label='org/model']").wait_for()
    page.click("#models button:text('Find')")
    page.wait_for_selector("td:text-is('is here')")


def test_a_tool_of_an_mcp_server_is_run_when_the_person_says_so(connected: str, opened: Opener) -> None:
    page = opened(connected)
    page.click("text=Parameters")
    page.select_option("[name=server_tools]", "true")
    page.click("text=Parameters")
    say(page, "The sum, please")
    assert page.inner_text(".call summary") == "Calls example__add"
    page.click("button:text('Run it on the server')")
    page.wait_for_selector("text=It is forty-two.")
    done(page)
    assert page.locator(".message.tool").inner_text().count("42") == 1
