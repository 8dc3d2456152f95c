"""The console, in a browser: models, fit, speed, memory, requests, the log, bench, verify and usage on one screen."""

import re
import threading
from typing import Any

import httpx
import pytest

from tests.page.browser import PHONE, WIDE, Opener, needs_browser
from tests.page.chatting import agree

pytestmark = needs_browser

MODEL = "demo"


@pytest.fixture(scope="module")
def console(address: str, opened_once: Opener) -> Any:
    """The console, which shows what is so now, whoever looked before."""
    return opened_once(address, path="/#console", size=WIDE)


def test_models_are_loaded_pinned_and_unloaded(console: Any) -> None:
    row = console.locator("#console tr", has=console.locator(f".model-name:text-is('{MODEL}')"))
    row.locator("button:text-is('Pin')").click()
    row.locator(".state:text('pinned')").wait_for()
    row.locator("button:text-is('Unpin')").click()
    row.locator("button:text-is('Unload')").click()
    row.locator(".state:text-is('unloaded')").wait_for()
    row.locator("button:text-is('Load')").click()
    row.locator(".state:text-is('loaded')").wait_for()


def test_one_screen_shows_what_an_operator_asks(console: Any) -> None:
    page = console
    page.wait_for_selector(f"#console .model-name:text-is('{MODEL}')")
    for name in ("Models", "Requests", "Log", "Usage"):
        assert page.is_visible(f"#console section[aria-label='{name}']")
    for name in ("Tokens/s", "Running requests", "Models in memory", "KV cache", "Longest gap"):
        assert page.is_visible(f"#console article[aria-label='{name}'] .figure")
    row = page.locator("#console tr", has=page.locator(f".model-name:text-is('{MODEL}')"))
    # For how many tokens there is memory, which a worker tells a moment after it has loaded.
    row.get_by_text("tokens").wait_for()
    assert "of" in page.inner_text("[aria-label='Models in memory'] small")
    row.locator("button:text-is('not yet')").click()
    assert f"pippin verify {MODEL}" in page.inner_text("dialog code")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="hidden")


def test_a_bench_says_how_fast_a_model_is(console: Any) -> None:
    console.click(f"[aria-label='Bench {MODEL}']")
    told = console.locator("#console td", has_text=re.compile("tokens/s alone, .* with 4; first after .* ms"))
    told.wait_for()


def test_a_report_of_a_verification_is_shown_with_its_findings(address: str, opened: Opener) -> None:
    page = opened(address, path="/#settings")
    finding = {"code": "x", "severity": "fault", "text": "Ends are lost.", "meaning": "It goes on."}
    report = {"verdict": "1 fault", "faults": 1, "warnings": 0, "at": 1700000000, "findings": [finding]}
    model = page.request.get(f"{address}/v1/models/{MODEL}").json() | {"verification": report}
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [model]}))
    page.route(f"**/v1/models/{MODEL}", lambda route: route.fulfill(json=model))
    page.click("#tab-console")
    page.click(f"[aria-label='Report on {MODEL}: 1 fault']")
    assert "Ends are lost. It goes on." in page.inner_text("dialog .findings")


def slow_request(address: str, ended: list[Any]) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "slow"}]}
    ended.append(httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60))


def test_a_request_is_seen_as_it_runs_and_can_be_cancelled(address: str, opened: Opener) -> None:
    ended: list[Any] = []
    asking = threading.Thread(target=slow_request, args=(address, ended))
    asking.start()
    page = opened(address, path="/#console")
    cancel = page.locator("#console button:text-is('Cancel')")
    cancel.wait_for()
    gap = page.locator("[aria-label='Longest gap']")
    gap.locator(".figure:text-matches('^[1-9][0-9.]* ms')").wait_for()
    gap.locator(".plot path[d*=L]").wait_for(state="attached")
    cancel.click()
    page.wait_for_selector("text=No request is running.")
    asking.join(20)
    assert len(ended) == 1


def test_the_log_grows_and_is_searched_and_the_pages_own_requests_are_not_in_it(
    address: str, console: Any
) -> None:
    page = console
    page.wait_for_selector(".log li:has-text('Loaded demo')")
    httpx.get(f"{address}/v1/nowhere")
    page.wait_for_selector(".log li:has-text('/v1/nowhere')")
    page.fill("[aria-label='Search the log']", "nowhere")
    assert not page.is_visible(".log li:has-text('Loaded demo')")
    page.fill("[aria-label='Search the log']", "")
    assert "/v1/status" not in page.inner_text(".log")
    assert "/page/" not in page.inner_text(".log")


def test_usage_is_told_by_key_and_model(address: str, console: Any) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "think"}]}
    httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)
    row = console.locator("[aria-label=Usage] tr", has_text=MODEL).first
    row.wait_for()
    assert "without a key" in row.inner_text()


def test_a_users_key_sees_no_log(keyed: str, opened: Opener) -> None:
    page = opened(keyed, path="/#console")
    page.fill("dialog [name=key]", "sk-alice")
    agree(page)
    page.wait_for_selector(".log li:has-text('administrator')")


def test_the_console_fits_a_phone(address: str, opened: Opener) -> None:
    page = opened(address, path="/#console", size=PHONE)
    page.wait_for_selector(f"#console .model-name:text-is('{MODEL}')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wide = page.eval_on_selector_all(
        "#console .wide", "all => all.map(each => each.scrollWidth - each.clientWidth)"
    )
    assert max(wide) <= 0
