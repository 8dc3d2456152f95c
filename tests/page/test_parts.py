"""Models, now, try and settings, in a browser; and accessibility of all parts, in light and dark, wide and narrow."""

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.page.browser import PHONE, WIDE, Opener, needs_browser, picture
from tests.page.conftest import scripted

pytestmark = needs_browser

PARTS = ("chat", "models", "now", "try", "settings")
MODEL = "demo"


def test_models_are_loaded_pinned_and_unloaded(address: str, opened: Opener) -> None:
    page = opened(address, path="/#models")
    card = page.locator(f"[aria-label='{MODEL}']")
    card.locator("button:text('Pin')").click()
    card.locator(".state:text('pinned')").wait_for()
    card.locator("button:text('Unpin')").click()
    card.locator("button:text('Unload')").click()
    card.locator(".state:text-is('unloaded')").wait_for()
    card.locator("button:text('Load')").click()
    card.locator(".state:text-is('loaded')").wait_for()
    picture(page, "models")


def test_a_model_that_can_not_be_got_is_said_in_the_servers_words(address: str, opened: Opener) -> None:
    page = opened(address, path="/#models")
    page.fill("[name=model]", "no/such/model/anywhere")
    page.click("text=Get it")
    said = page.locator("#models form p[role=status]")
    said.filter(has_text=re.compile(".{20}"), has_not_text="pulling").wait_for()
    assert page.inner_text("#models form button.main") == "Get it"


def slow_request(address: str, ended: list[Any]) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "slow"}]}
    ended.append(httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60))


def test_a_request_is_seen_as_it_runs_and_can_be_cancelled(address: str, opened: Opener) -> None:
    ended: list[Any] = []
    asking = threading.Thread(target=slow_request, args=(address, ended))
    asking.start()
    page = opened(address, path="/#now")
    cancel = page.locator("#now button:text('Cancel')")
    cancel.wait_for()
    gap = page.locator("[aria-label='Longest gap between tokens']")
    gap.locator(".figure:text-matches('^[1-9][0-9.]* ms')").wait_for()
    for plot in (gap, page.locator(f"[aria-label='Memory of {MODEL}']")):
        plot.locator(".plot path[d*=L]").wait_for(state="attached")
    picture(page, "now")
    cancel.click()
    page.wait_for_selector("text=No request is running.")
    asking.join(20)
    assert len(ended) == 1


def test_embeddings_and_ranks_are_tried(address: str, opened: Opener) -> None:
    page = opened(address, path="/#try")
    form = page.locator("form[aria-label=Embeddings]")
    form.locator("option").first.wait_for(state="attached")
    form.locator("button:text('Run')").click()
    form.locator("text=16 dimensions").wait_for()
    assert form.locator("tbody tr").count() == 3
    ranks = page.locator("form[aria-label=Rerank]")
    ranks.locator("button:text('Run')").click()
    ranks.locator("tbody tr >> nth=2").wait_for()
    picture(page, "try")


def test_settings_are_changed_and_refused_in_the_servers_words(address: str, opened: Opener) -> None:
    page = opened(address, path="/#settings")
    page.fill("#setting-max_choices", "3")
    page.keyboard.press("Tab")
    page.wait_for_selector("[data-name=max_choices] :text('Changed.')")
    assert httpx.get(f"{address}/v1/settings").json()["current"]["max_choices"] == 3
    page.fill("#setting-max_choices", "0")
    page.keyboard.press("Tab")
    page.wait_for_selector("#announcements .error, [data-name=max_choices] .error")
    page.fill("#setting-port", "1")
    page.keyboard.press("Tab")
    page.wait_for_selector("[data-name=port] :text('restart')")
    picture(page, "settings")


def test_an_administrator_sees_the_keys(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(
        "root: {key: sk-root, role: admin}\n"
        "alice: {key: sk-alice, rate_limit: 60, kinds: [language]}\n"
        "nightly: {key: sk-night, token_rate_limit: 100000, endpoints: [/v1/batches], mcp_tools: true}\n"
    )
    with scripted(tmp_path, "--api-key-file", str(tmp_path / "keys.yaml")) as address:
        page = opened(address, path="/#settings")
        page.fill("dialog input", "sk-alice")
        page.click("text=Use this key >> nth=-1")
        page.get_by_text("This API key is a user's").first.wait_for()
        page.click("text=Forget it")
        page.fill("form.card input", "sk-root")
        page.keyboard.press("Enter")
        page.wait_for_selector("#keys tbody tr >> nth=2")
        shown = page.inner_text("#keys")
        assert "60 of 60 a minute" in shown
        assert "addresses /batches, and MCP tools" in shown
        assert "sk-" not in page.inner_text("#settings")
        picture(page, "keys")


@pytest.mark.parametrize(
    ("size", "dark"),
    [
        pytest.param(WIDE, False, id="wide-light", marks=pytest.mark.long),
        pytest.param(WIDE, True, id="wide-dark", marks=pytest.mark.long),
        pytest.param(PHONE, False, id="phone-light"),
        pytest.param(PHONE, True, id="phone-dark", marks=pytest.mark.long),
    ],
)
def test_no_part_is_closed_to_anybody(
    address: str, opened: Opener, axe: str, size: dict[str, int], dark: bool
) -> None:
    page = opened(address, size=size, dark=dark)
    page.click("text=Parameters")
    page.fill("[name=temperature]", "1")
    page.select_option("[name=logprobs]", "true")
    page.keyboard.press("Escape")  # closes the side
    for text in ("markdown", "think"):
        page.fill("#chat-input", text)
        page.keyboard.press("Enter")
        page.wait_for_selector("#chat-send:text-is('Send')")
        page.wait_for_selector(".message:last-child[aria-busy=false]")
    page.wait_for_selector(".katex-display")
    for part in PARTS:
        page.click(f"#tab-{part}")
        page.wait_for_selector(f"#{part} :is(input, textarea, table)", state="attached")
        page.wait_for_timeout(300)
        page.evaluate(axe)
        found = page.evaluate("axe.run()")["violations"]
        assert not found, [(part, each["id"], each["nodes"][0]["html"][:200]) for each in found]
