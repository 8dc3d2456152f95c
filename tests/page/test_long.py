"""Long conversations and long code: the page answers within 100 ms all the while."""

import json
from pathlib import Path
from typing import Any

from tests.page.browser import Opener, needs_browser
from tests.page.chatting import done, import_conversation, parameters, say
from tests.page.conftest import LINES

pytestmark = needs_browser

LONGEST = 100  # milliseconds
MESSAGES = 400

WATCH = """() => {
  window.tasks = [];
  new PerformanceObserver((list) => tasks.push(...list.getEntries().map((each) => each.duration)))
    .observe({ type: "longtask" });
}"""


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


def longest(page: Any) -> float:
    page.wait_for_timeout(200)
    return float(page.evaluate("Math.max(0, ...window.tasks)"))


def test_four_hundred_messages_block_nothing(address: str, opened: Opener, tmp_path: Path) -> None:
    page = opened(address)
    import_conversation(page, conversation(tmp_path / "long.json"))
    page.wait_for_selector(f".message >> nth={MESSAGES - 1}", state="attached")
    page.click("#chat-new")
    page.evaluate(WATCH)
    page.click("#chat-list .title")
    page.wait_for_selector(f".message >> nth={MESSAGES - 1}", state="attached")
    assert "Text 0." in page.text_content(".message >> nth=0")
    say(page, "think")
    assert page.locator(".message").count() == MESSAGES + 2
    assert longest(page) <= LONGEST


def test_a_fence_of_28000_tokens_blocks_nothing(address: str, opened: Opener) -> None:
    page = opened(address)
    parameters(page)
    page.fill("[name=max_tokens]", "60000")
    page.evaluate(WATCH)
    page.fill("#chat-input", "fence please")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.assistant .code")
    page.set_default_timeout(60_000)
    done(page)
    assert page.evaluate("document.querySelector('.code code').textContent.split('\\n').length") == LINES
    tokens = page.inner_text(".message.assistant .foot").split(" out")[0].split()[-1]
    assert int(tokens.replace(",", "")) >= 28_000
    assert longest(page) <= LONGEST
