"""The chat, in a browser, against a model that plays a script."""

import base64
import json
from pathlib import Path

import httpx

from tests.page.browser import ELSEWHERE, PHONE, Opener, needs_browser, picture
from tests.page.chatting import agree, asked, done, import_conversation, last, parameters, ready, say

pytestmark = needs_browser

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAGUlEQVR4nGP8z0AaYCJR/aiGUQ1DSAMAJxwBH3VhUP0AAAAASUVORK5CYII="
)


def test_markdown_code_and_mathematics_are_drawn(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "Show markdown")
    page.wait_for_selector(".message.assistant .katex-display")
    assert page.inner_text(".markdown h3.d1") == "Sorting"
    assert page.locator(".markdown table .katex").count() == 1
    assert "It costs $5 or $6." in page.inner_text(".message.assistant")
    assert page.inner_text(".hljs-keyword >> nth=0") == "def"
    page.click(".code button")
    assert page.evaluate("navigator.clipboard.readText()").startswith("def halves(")
    assert page.get_attribute(".markdown a", "rel") == "noopener noreferrer"


def test_nothing_that_a_model_says_becomes_more_than_text(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "Be hostile")
    page.wait_for_selector(".message.assistant .katex")
    page.wait_for_timeout(200)
    assert page.evaluate("window.broken") is None
    answer = page.locator(".message.assistant")
    assert answer.locator("script, img, svg[onload], iframe, [onerror], [onload]").count() == 0
    assert answer.locator("a[href^=javascript]").count() == 0
    assert "<script>" in answer.inner_text()


def test_a_conversation_is_still_there_after_a_reload(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "Remember the apple")
    page.reload()
    page.click("#chat-list .title")
    assert page.inner_text(".message.user .plain") == "Remember the apple"
    page.hover("#chat-list .title")
    page.click("#chat-list [aria-label^=Delete]")
    agree(page)
    page.wait_for_selector("#chat-list li", state="detached")


def test_reasoning_is_folded(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "think")
    assert last(page) == "It is 4."
    assert not page.is_visible(".assistant .reasoning .markdown")
    page.click(".assistant .reasoning summary")
    assert page.inner_text(".assistant .reasoning .markdown") == "Twice two, carried over."


def test_a_tool_call_is_shown_and_its_result_given(address: str, opened: Opener) -> None:
    page = opened(address)
    parameters(page, more=True)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    page.fill("[name=tools]", json.dumps([tool]))
    say(page, "The weather?")
    assert page.inner_text(".call summary") == "Calls weather"
    assert '"city": "Oslo"' in page.inner_text(".call pre")
    page.fill(".call textarea", "rain")
    page.click("text=Give this result")
    page.wait_for_selector("text=Take an umbrella.")
    done(page)
    assert page.locator(".message.tool").inner_text().count("rain") == 1


def test_stop_ends_an_answer_and_keeps_what_came(address: str, opened: Opener) -> None:
    page = opened(address)
    ready(page)
    page.fill("#chat-input", "slow please")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=word3")
    page.keyboard.press("Escape")
    done(page)
    assert "Stopped." in page.inner_text(".foot >> nth=-1")
    assert "word3" in last(page)
    assert "word599" not in last(page)


def test_edits_and_retries_are_branches(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "first question")
    page.click(".message.user button:text('Edit')")
    page.fill(".edit textarea", "second question")
    page.click(".edit button:text('Send')")
    done(page)
    assert page.inner_text(".message.user .plain") == "second question"
    assert "2 of 2" in page.inner_text(".message.user .actions")
    page.click(".message.assistant button:text('Retry')")
    done(page)
    assert "2 of 2" in page.inner_text(".message.assistant .actions")
    page.click(".message.user [aria-label='Branch before']")
    page.wait_for_selector(".message.user .plain:text-is('first question')")


def test_parameters_are_those_of_the_server_and_are_sent(address: str, opened: Opener) -> None:
    page = opened(address)
    described = page.request.get(address + "/openapi.json").json()
    names = set(described["components"]["schemas"]["ChatRequest"]["properties"])
    parameters(page, more=True)
    page.wait_for_selector("[name=xtc_threshold]")
    shown = set(page.eval_on_selector_all("#chat-options [name]", "all => all.map(each => each.name)"))
    assert {
        "temperature",
        "top_p",
        "min_p",
        "xtc_threshold",
        "repetition_penalty",
        "seed",
        "stop",
        "logit_bias",
    } <= shown
    assert shown <= names | {"schema", "server_tools"}
    page.fill("#chat-system", "You are a pirate.")
    page.fill("[name=temperature]", "0.5")
    page.fill("[name=max_tokens]", "50")
    page.fill("[name=schema]", '{"type": "string"}')
    page.locator("[name=schema]").blur()
    with page.expect_request("**/chat/completions") as asked:
        say(page, "x")
    sent = asked.value.post_data_json
    assert sent["messages"][0] == {"role": "system", "content": "You are a pirate."}
    assert (sent["temperature"], sent["max_tokens"]) == (0.5, 50)
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "string"}
    assert sent["return_progress"] is True


def test_sliders_stand_where_the_server_does(address: str, opened: Opener) -> None:
    """What the operator set counts, under the names that Ollama's API has for it."""
    for name, value in (("temperature", 0.25), ("repetition_penalty", 1.5), ("max_tokens", 512)):
        httpx.patch(f"{address}/v1/settings", json={name: value}).raise_for_status()
    page = opened(address)
    parameters(page)
    page.wait_for_selector("[name=temperature][placeholder='0.25']")
    assert page.get_attribute("[name=repetition_penalty]", "placeholder") == "1.5"
    assert page.get_attribute("[name=max_tokens]", "placeholder") == "512"
    assert page.input_value("[aria-label='Repetition penalty, slider']") == "1.5"
    for name in ("temperature", "repetition_penalty", "max_tokens"):
        httpx.patch(f"{address}/v1/settings", json={name: None}).raise_for_status()


def test_a_refused_parameter_is_shown_in_the_servers_words(address: str, opened: Opener) -> None:
    page = opened(address)
    parameters(page)
    page.fill("[name=temperature]", "50")
    page.locator("[name=temperature]").blur()
    say(page, "x")
    assert "temperature" in page.inner_text(".foot.error")


def test_files_go_along(address: str, opened: Opener, tmp_path: Path) -> None:
    page = opened(address)
    (tmp_path / "red.png").write_bytes(PIXEL)
    (tmp_path / "notes.txt").write_text("Apples are red.")
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.4")
    (tmp_path / "blob.bin").write_bytes(b"\x00\xff\x00")
    page.set_input_files(
        "#chat-files", [tmp_path / name for name in ("red.png", "notes.txt", "paper.pdf", "blob.bin")]
    )
    page.wait_for_selector("text=blob.bin is neither text")
    page.wait_for_selector("#chat-media img")
    with page.expect_request("**/chat/completions") as asked:
        say(page, "What is this?")
    parts = asked.value.post_data_json["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text", "file", "text"]
    assert parts[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert parts[2]["file"]["filename"] == "paper.pdf"
    assert parts[1]["text"] == "notes.txt:\n\nApples are red."
    assert page.get_attribute(".message.user img", "alt") == "red.png"


def test_export_and_import_bring_a_conversation_over(address: str, opened: Opener, tmp_path: Path) -> None:
    page = opened(address)
    say(page, "Carry this over")
    page.click("#more summary")
    with page.expect_download() as saved:
        page.click("#chat-export")
    file = tmp_path / "conversation.json"
    saved.value.save_as(file)
    other = opened(address)
    import_conversation(other, file)
    other.wait_for_selector(".message.user :text('Carry this over')")
    damaged = json.loads(file.read_text())
    [messages] = [each["messages"] for each in damaged["conversations"]]
    for each in messages.values():
        each["parent"] = each["id"]
    file.write_text(json.dumps(damaged))
    other.set_input_files("#chat-import", file)
    other.wait_for_selector("text=in a circle")


def test_the_chat_works_on_a_phone_in_the_dark(address: str, opened: Opener) -> None:
    page = opened(address, size=PHONE, dark=True)
    assert not page.is_visible("#chat-new")
    say(page, "Show markdown")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("#open-menu")
    page.click("#chat-new")
    assert page.is_visible("#chat-empty")


def test_the_page_works_by_keyboard_alone(address: str, opened: Opener) -> None:
    page = opened(address)
    page.wait_for_selector("#chat-input:focus")
    page.keyboard.type("Typed")
    page.keyboard.press("Enter")
    done(page)
    page.focus("#tab-chat")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#console h2:text-is('Models')")
    page.keyboard.press("Control+Shift+O")
    page.wait_for_selector("#chat-empty h2")
    page.keyboard.press("Control+k")
    page.wait_for_selector("#chat-search:focus")
    page.keyboard.press("Control+b")
    assert not page.is_visible("#menu")
    page.keyboard.press("Control+.")
    assert page.is_visible("#chat-side")
    page.keyboard.press("Control+/")
    assert "Ctrl+Shift+O" in page.inner_text("dialog dl")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_the_key_is_asked_for_once_and_kept_in_the_tab(keyed: str, opened: Opener) -> None:
    page = opened(keyed)
    page.fill("dialog [name=key]", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=does not know this key")
    picture(page, "key")
    page.fill("dialog [name=key]", "sk-root")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-input:focus")
    say(page, "hello")
    page.reload()
    ready(page)
    assert page.locator("dialog").count() == 0
    assert page.evaluate("Object.values(localStorage).join().includes('sk-root')") is False


def test_who_goes_on_without_a_key_is_told_so_and_can_give_it_later(keyed: str, opened: Opener) -> None:
    page = opened(keyed)
    page.click("dialog button:text('Go on without')")
    page.wait_for_selector("#chat-empty :text('A key is needed')")
    page.click("#chat-empty button")
    page.fill("dialog [name=key]", "sk-root")
    page.check("dialog [name=keep]")
    agree(page)
    ready(page)
    again = page.context.new_page()
    again.goto(keyed)
    ready(again)
    assert again.locator("dialog").count() == 0


def test_a_conversation_is_renamed(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "think")
    page.hover("#chat-list .title")
    page.click("#chat-list button[aria-label^=Rename]")
    page.fill("dialog [name=text]", "Sums")
    agree(page)
    page.wait_for_selector("#chat-list button.title:text-is('Sums')")
    page.reload()
    page.wait_for_selector("#chat-list button.title:text-is('Sums')")


def test_a_phone_at_home_chats_and_copies_without_https(address: str, opened: Opener) -> None:
    """By plain HTTP from another machine, browsers give a page neither `crypto.randomUUID` nor a clipboard."""
    page = opened(address.replace("127.0.0.1", ELSEWHERE), size=PHONE)
    assert page.evaluate("[isSecureContext, crypto.randomUUID, navigator.clipboard].join()") == "false,,"
    say(page, "think")
    assert last(page).strip() == "It is 4."
    page.click(".message.assistant button:text-is('Copy')")
    page.wait_for_selector("#announcements :text('Copied.')")


def test_another_model_answers_the_same_question(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "think")
    page.select_option(".message.assistant [aria-label='Retry with another model']", "deaf")
    page.wait_for_selector("text=The other one answers.")
    done(page)
    assert "deaf" in page.inner_text(".message.assistant h2")
    assert "2 of 2" in page.inner_text(".message.assistant .actions")
    assert asked(page) == ["think"]


def test_a_preset_brings_its_prompt_and_parameters_back(address: str, opened: Opener) -> None:
    page = opened(address)
    parameters(page)
    page.fill("#chat-system", "You are a pirate.")
    page.fill("[name=temperature]", "0.3")
    page.click("#chat-presets button:text('Save')")
    page.fill("dialog [name=text]", "Pirate")
    agree(page)
    page.select_option("#chat-presets select", "")
    assert page.input_value("#chat-system") + page.input_value("[name=temperature]") == ""
    page.reload()
    parameters(page)
    page.select_option("#chat-presets select", "Pirate")
    with page.expect_request("**/chat/completions") as sent:
        say(page, "x")
    assert sent.value.post_data_json["temperature"] == 0.3
    assert last(page) == "Arr!"


def test_six_sliders_stand_before_the_rest(address: str, opened: Opener) -> None:
    page = opened(address)
    parameters(page)
    sliders = page.locator("#chat-options input[type=range]")
    assert sliders.count() == 6
    assert page.locator("#chat-options [name]:visible").count() == 6
    sliders.first.fill("0.4")
    assert page.input_value("[name=temperature]") == "0.4"
    page.click("[aria-label^='Temperature: back']")
    assert page.input_value("[name=temperature]") == ""


def test_tables_keep_their_words_and_their_alignment(address: str, opened: Opener) -> None:
    page = opened(address, size=PHONE)
    say(page, "table")
    cells = ".message.assistant td"
    styles = page.eval_on_selector_all(cells, "all => all.map(each => getComputedStyle(each).textAlign)")
    assert styles == ["start", "right", "center"]
    widths = page.eval_on_selector_all(
        cells, "all => all.map(each => [each.scrollWidth, each.clientWidth].join())"
    )
    assert all(len(set(pair.split(","))) == 1 for pair in widths)
    assert page.eval_on_selector(cells, "each => getComputedStyle(each).overflowWrap") == "normal"


def test_conversations_stand_under_their_dates(address: str, opened: Opener, tmp_path: Path) -> None:
    page = opened(address)
    message = {"id": "m", "parent": None, "role": "user", "text": "Old", "created": 1}
    kept = {"title": "Old", "system": "", "leaf": "m", "changed": 1, "messages": {"m": message}}
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"format": "pippin-conversations", "version": 1, "conversations": [kept]}))
    import_conversation(page, file)
    say(page, "think")
    assert page.inner_text("#chat-list .date >> nth=0") == "Today"
