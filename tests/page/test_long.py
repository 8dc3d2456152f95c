"""Long conversations and long code: no task of the page takes more than 100 ms."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import Opener, needs_browser
from tests.page.chatting import done, import_conversation, parameters, say
from tests.page.conftest import LINES

pytestmark = needs_browser

LONGEST = 100  # milliseconds of a processor, for a machine that is busy makes any task long by the clock
MESSAGES = 400
TASK = "ThreadControllerImpl::RunTask"


class Tasks:
    """What the main thread of a page does while the block runs."""

    def __init__(self, browser: Any, page: Any) -> None:
        self._browser = browser
        self._page = page

    def __enter__(self) -> "Tasks":
        self._browser.start_tracing(page=self._page, categories=["toplevel"])
        return self

    def __exit__(self, *_: object) -> None:
        events = json.loads(self._browser.stop_tracing())["traceEvents"]
        named = [each for each in events if each.get("name") == "thread_name"]
        main = {(each["pid"], each["tid"]) for each in named if each["args"].get("name") == "CrRendererMain"}
        tasks = [each for each in events if each["name"] == TASK and (each["pid"], each["tid"]) in main]
        assert tasks
        self.longest = max(each.get("tdur", 0) for each in tasks) / 1000


def conversation(path: Path) -> Path:
    """A file with a conversation of 400 messages, each with markdown of its kind."""
    text = "Some **words**, `code` and a list:\n\n- one\n- two\n\n```python\nx = 1\n```\n"
    messages: dict[str, Any] = {}
    for number in range(MESSAGES):
        messages[f"m{number}"] = {
            "id": f"m{number}",
            "parent": f"m{number - 1}" if number else None,
            "role": "assistant" if number % 2 else "user",
            "text": f"Text {number}. {text}",
            "finish": "stop",
        }
    kept = {"title": "Long", "system": "", "leaf": f"m{MESSAGES - 1}", "messages": messages}
    path.write_text(json.dumps({"format": "pippin-conversations", "version": 1, "conversations": [kept]}))
    return path


def test_four_hundred_messages_block_nothing(
    address: str, browser: Any, opened: Opener, tmp_path: Path
) -> None:
    page = opened(address)
    import_conversation(page, conversation(tmp_path / "long.json"))
    page.wait_for_selector(f".message >> nth={MESSAGES - 1}", state="attached")
    page.click("#chat-new")
    with Tasks(browser, page) as tasks:
        page.click("#chat-list .title")
        page.wait_for_selector(f".message >> nth={MESSAGES - 1}", state="attached")
        say(page, "think")
    assert page.locator(".message").count() == MESSAGES + 2
    assert tasks.longest <= LONGEST
    first = page.locator(".message >> nth=1")
    first.scroll_into_view_if_needed()
    first.locator(".hljs-number").wait_for()


def test_a_fence_of_28000_tokens_blocks_nothing(address: str, browser: Any, opened: Opener) -> None:
    page = opened(address)
    parameters(page)
    page.fill("[name=max_tokens]", "60000")
    page.set_default_timeout(60_000)
    with Tasks(browser, page) as tasks:
        page.fill("#chat-input", "fence please")
        page.keyboard.press("Enter")
        page.wait_for_selector(".message.assistant .code")
        done(page)
    assert tasks.longest <= LONGEST
    assert page.evaluate("document.querySelector('.code code').textContent.split('\\n').length") == LINES + 1
    tokens = page.inner_text(".message.assistant .foot").split(" out")[0].split()[-1]
    assert int(tokens.replace(",", "")) >= 28_000


@pytest.fixture(scope="module")
def reading(address: str, opened_once: Opener) -> Any:
    return opened_once(address)


@pytest.mark.parametrize(
    "text", ["_a__" * 5000, "[" * 60_000, "> " * 10_000 + "a", "$$a" * 20_000, "1. " * 8000]
)
def test_markdown_that_takes_long_to_read_freezes_nothing(reading: Any, text: str) -> None:
    shown = """async (text) => {
        const { GrowingMarkdown } = await import("/page/static/markdown.js");
        const place = document.createElement("div");
        const begun = performance.now();
        new GrowingMarkdown(place).show(text);
        return [performance.now() - begun, place.textContent.length];
    }"""
    took, length = reading.evaluate(shown, text)
    assert took < 3000  # milliseconds, on a machine that is shared; it was many seconds
    assert length >= len(text) // 3
