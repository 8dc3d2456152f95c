"""No word of a chat is lost: between tabs, in a reload, while another conversation is shown, and in long ones."""

import json
from pathlib import Path
from typing import Any

import httpx

from tests.page.browser import Opener, needs_browser
from tests.page.chatting import agree, ask, asked, done, import_conversation, last, ready, say

pytestmark = needs_browser

BEFORE = """() => new Promise((resolve) => {
  const request = indexedDB.open("pippin", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
  request.onsuccess = () => {
    const transaction = request.result.transaction("conversations", "readwrite");
    const message = { id: "m", parent: null, role: "user", created: 1, text: "From before", media: [], reasoning: "",
      calls: [], callId: null, tokens: [], model: null, finish: null, error: null, usage: null, timings: null };
    const kept = { id: "c", title: "Old", created: 1, changed: 1, system: "", leaf: "m", messages: { m: message } };
    transaction.objectStore("conversations").put(kept);
    transaction.oncomplete = () => { request.result.close(); resolve(); };
  };
})"""


def test_two_tabs_add_to_the_same_conversation(address: str, opened: Opener) -> None:
    one = opened(address)
    say(one, "from the first")
    other = one.context.new_page()
    other.goto(one.url)
    other.wait_for_selector(".message.user :text('from the first')")
    say(other, "from the second")
    one.wait_for_selector(".message.user :text('from the second')")
    say(one, "and again")
    other.wait_for_selector(".message.user :text('and again')")
    other.reload()
    other.wait_for_selector(".message.user :text('and again')")
    assert asked(other) == ["from the first", "from the second", "and again"]


def test_an_answer_goes_on_in_a_reload_and_the_place_is_found_again(address: str, opened: Opener) -> None:
    page = opened(address)
    ask(page, "brief please", "word3")
    page.reload()
    page.wait_for_selector("text=word29")
    done(page)
    assert last(page) == " ".join(f"word{number}" for number in range(30))
    assert page.title() == "brief please · Pippin"


def test_an_answer_is_there_when_the_page_was_closed_meanwhile(address: str, opened: Opener) -> None:
    page = opened(address)
    ask(page, "brief please", "word3")
    other = page.context.new_page()
    page.close()
    other.wait_for_timeout(2000)
    other.goto(address)
    other.click("#chat-list .title")
    other.wait_for_selector("text=word29")
    done(other)


def test_a_resumed_answer_is_stopped_on_the_server_too(address: str, opened: Opener) -> None:
    page = opened(address)
    ask(page, "slow please", "word3")
    page.reload()
    page.wait_for_selector("#chat-send[aria-label=Stop]")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Stopped.")
    for _ in range(100):
        if not page.request.get(f"{address}/v1/status").json()["requests"]:
            break
        page.wait_for_timeout(100)
    else:
        raise AssertionError("the request still runs")
    with page.expect_request("**/chat/completions") as sent:
        page.click("text=Continue")
    assert sent.value.post_data_json["continue_final_message"] is True
    page.keyboard.press("Escape")
    done(page)


def test_a_network_that_fails_costs_no_word(address: str, opened: Opener) -> None:
    page = opened(address)
    ready(page)

    def lose(route: Any) -> None:
        """The server hears the request, and the connection breaks."""
        headers = {
            name: route.request.headers[name] for name in ("x-keep-answer", "x-request-id", "content-type")
        }
        with httpx.stream(
            "POST", route.request.url, content=route.request.post_data, headers=headers
        ) as reply:
            next(reply.iter_raw())
        route.abort()

    page.route("**/chat/completions", lose, times=1)
    # The next answer of the server takes the banner away, perhaps before a look from here.
    page.evaluate("""() => {
      const banner = document.getElementById("away");
      new MutationObserver(() => { if (!banner.hidden) window.wasAway = true; })
        .observe(banner, { attributes: true });
    }""")
    page.fill("#chat-input", "brief please")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=word29")
    assert page.evaluate("window.wasAway")
    done(page)
    assert last(page) == " ".join(f"word{number}" for number in range(30))
    assert not page.is_visible("#away")
    assert page.locator("#announcements .error").count() == 0


def test_a_reload_before_the_first_word_keeps_the_question(address: str, opened: Opener) -> None:
    page = opened(address)
    ready(page)
    page.fill("#chat-input", "brief please")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-list .title:has-text('brief please')")
    page.reload()
    page.wait_for_selector("text=word29")
    assert asked(page) == ["brief please"]


def test_an_answer_goes_on_while_another_conversation_is_shown(address: str, opened: Opener) -> None:
    page = opened(address)
    ask(page, "brief please", "word3")
    page.click("#chat-new")
    assert page.is_visible("#chat-empty")
    assert page.get_attribute("#chat-send", "aria-label") == "Send"
    page.go_back()
    page.wait_for_selector("text=word29")
    done(page)
    assert page.inner_text(".foot >> nth=-1").startswith("2 tokens in") or "out" in page.inner_text(
        ".foot >> nth=-1"
    )


def test_a_question_beside_an_answer_is_sent_after_it(address: str, opened: Opener) -> None:
    page = opened(address)
    ask(page, "brief please", "word3")
    page.fill("#chat-input", "think")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-queue :text('Next: think')")
    page.wait_for_selector("text=It is 4.")
    done(page)
    assert asked(page) == ["brief please", "think"]


def test_only_what_changed_is_drawn(address: str, opened: Opener, tmp_path: Path) -> None:
    page = opened(address)
    ready(page)
    messages: dict[str, Any] = {}
    for number in range(400):
        role = "assistant" if number % 2 else "user"
        parent = f"m{number - 1}" if number else None
        messages[f"m{number}"] = {
            "id": f"m{number}",
            "parent": parent,
            "role": role,
            "text": f"Text {number}",
            "finish": "stop",
        }
    kept = {"title": "Long", "system": "", "leaf": "m399", "messages": messages}
    file = tmp_path / "long.json"
    file.write_text(json.dumps({"format": "pippin-conversations", "version": 1, "conversations": [kept]}))
    import_conversation(page, file)
    page.wait_for_selector("text=Text 399")
    page.wait_for_selector("text='Text 0'", state="attached")
    page.evaluate("document.querySelectorAll('.message').forEach((each) => { each.dataset.before = 'yes'; })")
    say(page, "think")
    assert page.locator(".message[data-before]").count() == 400
    assert page.locator(".message").count() == 402


def test_code_that_grows_is_added_to_and_coloured_at_its_end(address: str, opened: Opener) -> None:
    page = opened(address)
    ready(page)
    page.fill("#chat-input", "code please")
    page.keyboard.press("Enter")
    page.wait_for_selector(".code:has-text('one more line')")
    page.evaluate("document.querySelector('.code').dataset.before = 'yes'")
    while page.evaluate("document.querySelector('.code').textContent.length") < 600:
        page.wait_for_timeout(50)
    assert page.locator(".code[data-before]").count() == 1
    assert page.locator(".hljs-comment").count() == 0
    done(page)
    assert page.locator(".hljs-comment").count() == 60


def test_a_message_is_deleted_with_what_follows(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "keep this")
    say(page, "think")
    page.hover(".message.user >> nth=1")
    page.click(".message.user >> nth=1 >> button:text-is('Delete')")
    agree(page)
    page.wait_for_selector(".message.user :text('think')", state="detached")
    page.reload()
    page.wait_for_selector(".message.user :text('keep this')")
    assert asked(page) == ["keep this"]


def test_a_server_that_is_away_is_told_once(address: str, opened: Opener) -> None:
    page = opened(address)
    ready(page)
    page.route("**/v1/**", lambda route: route.abort())
    page.click("#tab-console")
    page.wait_for_selector("#away")
    page.wait_for_timeout(2500)
    assert page.locator("#announcements p").count() == 0
    page.unroute("**/v1/**")
    page.wait_for_selector("#away", state="hidden")


def test_a_long_text_is_pasted_as_a_file(address: str, opened: Opener) -> None:
    page = opened(address)
    ready(page)
    page.evaluate("text => navigator.clipboard.writeText(text)", "long " * 1000)
    page.focus("#chat-input")
    page.keyboard.press("Control+V")
    page.wait_for_selector("#chat-media :text('pasted.txt')")
    assert page.input_value("#chat-input") == ""


def test_conversations_of_the_version_before_are_still_there(address: str, opened: Opener) -> None:
    page = opened(address, path="/page/static/icon.svg")
    page.evaluate(BEFORE)
    page.goto(address)
    page.click("#chat-list .title:text-is('Old')")
    assert asked(page) == ["From before"]
