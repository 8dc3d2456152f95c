"""The chat with a real model: tokens with their alternatives, progress of prompts; and pictures of the documents."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import PHONE, Opener, needs_browser, picture
from tests.page.chatting import done, parameters, ready, say
from tests.running_server import running_server

pytestmark = [needs_browser, pytest.mark.model, pytest.mark.long]

QUESTION = "Write a Python function that reverses a list, and say in one sentence how it works."


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("real"), str(demo_model)) as address:
        yield address


def steady(page: Any, tokens: int) -> None:
    """The likeliest answer, of at most so many tokens."""
    page.fill("[name=max_tokens]", str(tokens))
    page.fill("[name=temperature]", "0")
    page.locator("[name=temperature]").blur()


def test_tokens_are_shown_with_what_else_could_have_stood_there(real: str, opened: Opener) -> None:
    page = opened(real)
    page.set_default_timeout(120_000)
    parameters(page, more=True)
    page.select_option("[name=logprobs]", "true")
    steady(page, 24)
    page.click("[data-opens=chat-side]")
    say(page, "What is the capital of France?")
    page.click(".tokens-button")
    assert "Paris" in page.inner_text(".message.assistant .markdown >> nth=-1")
    assert page.locator(".token").count() > 5
    page.click(".token >> nth=0")
    page.keyboard.press("ArrowRight")
    assert page.locator(".alternatives tbody tr").count() == 8
    assert page.locator(".alternatives .chosen").count() == 1
    assert "tokens/s" in page.inner_text(".message.assistant .foot")
    picture(page, "tokens")


def test_a_long_prompt_says_how_far_it_is(real: str, opened: Opener) -> None:
    page = opened(real)
    ready(page)
    page.fill("#chat-input", " ".join(f"The {n}th apple is red." for n in range(600)))
    page.keyboard.press("Enter")
    told = page.locator(".message.assistant .progress")
    told.filter(has_text=re.compile(r"Reading the prompt: [1-9][\d,]* of [\d,]+ tokens")).wait_for()
    share = page.locator(".message.assistant progress")
    assert 0 < float(str(share.get_attribute("value"))) <= float(str(share.get_attribute("max")))
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Stopped.")


def test_each_part_is_pictured(real: str, opened: Opener) -> None:
    page = opened(real)
    page.set_default_timeout(120_000)
    parameters(page)
    steady(page, 160)
    page.evaluate("document.getElementById('chat-side').scrollTop = 0")
    picture(page, "parameters")
    page.click("[data-opens=chat-side]")
    say(page, QUESTION)
    page.evaluate("document.getElementById('chat-scroll').scrollTop = 0")
    picture(page, "chat")
    page.fill("#chat-input", "Tell me more about lists.")
    page.keyboard.press("Enter")
    page.click("#tab-console")
    page.wait_for_selector("#console button:text-is('Cancel')")
    page.wait_for_timeout(3000)
    picture(page, "console")
    page.click("#tab-settings")
    page.wait_for_selector("#setting-log_level")
    picture(page, "settings")


def test_a_phone_is_pictured(real: str, opened: Opener) -> None:
    page = opened(real, size=PHONE, dark=True)
    page.set_default_timeout(120_000)
    parameters(page)
    steady(page, 100)
    page.keyboard.press("Escape")
    say(page, QUESTION)
    done(page)
    picture(page, "phone")
