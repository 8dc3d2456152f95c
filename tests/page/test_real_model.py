"""The chat with a real model: tokens with their alternatives, prompt progress, figures."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page.browser import Opener, needs_browser, picture
from tests.running_server import ROOT, running_server

pytestmark = [needs_browser, pytest.mark.model, pytest.mark.long]


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    folder = next((ROOT / ".cache" / "models").glob("*/smollm2-135m-instruct"))
    with (
        tempfile.TemporaryDirectory() as home,
        running_server(Path(home), str(folder)) as address,
    ):
        yield address


def test_tokens_are_shown_with_what_else_could_have_stood_there(real: str, opened: Opener) -> None:
    page = opened(real)
    page.click("text=Parameters")
    page.select_option("[name=logprobs]", "true")
    page.fill("[name=max_tokens]", "24")
    page.fill("[name=temperature]", "0")
    page.locator("[name=temperature]").blur()
    page.click("text=Parameters")
    page.fill("#chat-input", "What is the capital of France?")
    page.keyboard.press("Enter")
    page.click(".tokens-button")
    assert "Paris" in page.inner_text(".message.assistant .markdown >> nth=-1")
    assert page.locator(".token").count() == page.locator(".token").evaluate_all("all => all.length") > 5
    page.click(".token >> nth=0")
    page.keyboard.press("ArrowRight")
    assert page.locator(".alternatives tbody tr").count() == 8
    assert page.locator(".alternatives .chosen").count() == 1
    assert "tokens/s" in page.inner_text(".message.assistant .foot")
    picture(page, "tokens")


def test_a_long_prompt_says_how_far_it_is(real: str, opened: Opener) -> None:
    page = opened(real)
    page.wait_for_selector("#chat-model option", state="attached")
    page.fill("#chat-input", " ".join(f"The {n}th apple is red." for n in range(600)))
    page.keyboard.press("Enter")
    told = page.locator(".message.assistant .progress")
    told.filter(has_text=re.compile(r"Reading the prompt: [1-9][\d,]* of [\d,]+ tokens")).wait_for()
    share = page.locator(".message.assistant progress")
    assert 0 < float(str(share.get_attribute("value"))) <= float(str(share.get_attribute("max")))
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Stopped.")
