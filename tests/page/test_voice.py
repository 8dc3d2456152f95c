"""The microphone and the reading voice, in a browser whose microphone beeps."""

import base64
import io
import wave
from typing import Any

import pytest

from tests.page.browser import Opener, needs_browser
from tests.page.chatting import done, ready, say

pytestmark = needs_browser

ALLOWED = ("microphone",)


def record(page: Any, place: str = "#chat-record") -> None:
    """Press the button, wait until something was recorded, press it again."""
    control = page.locator(f"{place} button")
    control.click()
    page.wait_for_selector(f"{place} button:has-text('Stop 0:01')")
    control.click()
    page.wait_for_selector(f"{place} button:has-text('Record')")


def test_a_model_that_hears_is_sent_what_was_recorded(address: str, opened: Opener) -> None:
    page = opened(address, allowed=ALLOWED)
    ready(page)
    record(page)
    page.wait_for_selector("#chat-media audio")
    with page.expect_request("**/chat/completions") as asked:
        say(page, "What is that?")
    sound, text = asked.value.post_data_json["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is that?"}
    assert sound["input_audio"]["format"] == "wav"
    with wave.open(io.BytesIO(base64.b64decode(sound["input_audio"]["data"]))) as heard:
        assert (heard.getframerate(), heard.getnchannels(), heard.getsampwidth()) == (16000, 1, 2)
        assert 0.7 < heard.getnframes() / 16000 < 30
        assert any(heard.readframes(heard.getnframes())), "nothing but silence was recorded"
    assert page.locator(".message.user audio").count() == 1


def test_what_was_said_is_written_down_for_a_model_that_does_not_hear(address: str, opened: Opener) -> None:
    page = opened(address, allowed=ALLOWED)
    ready(page)
    page.select_option("#chat-model", "deaf")
    page.fill("#chat-input", "Please note:")
    record(page)
    assert page.input_value("#chat-input").startswith("Please note: This is recording.wav.")
    assert page.evaluate("document.activeElement.id") == "chat-input"
    page.keyboard.press("Enter")
    done(page)
    page.wait_for_selector("text=I read it.")


def test_a_microphone_that_is_not_allowed_is_a_sentence(address: str, opened: Opener) -> None:
    page = opened(address)
    ready(page)
    page.click("#chat-record button")
    page.wait_for_selector("#announcements :text('may not use the microphone')")
    assert page.inner_text("#chat-record button").strip() == "Record"


def test_where_nobody_can_listen_it_is_said_before_anything_is_recorded(address: str, opened: Opener) -> None:
    page = opened(address, allowed=ALLOWED)
    model = page.request.get(f"{address}/v1/models").json()["data"][0]
    model |= {"kind": "language", "capabilities": {"chat": True}}
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [model]}))
    page.reload()
    ready(page)
    page.click("#chat-record button")
    page.wait_for_selector("#announcements :text('no model for transcription is here')")
    assert page.inner_text("#chat-record button").strip() == "Record"


@pytest.mark.long
def test_escape_throws_a_recording_away(address: str, opened: Opener) -> None:
    page = opened(address, allowed=ALLOWED)
    ready(page)
    page.click("#chat-record button")
    page.wait_for_selector("#chat-record button:has-text('Stop')")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=The recording is thrown away.")
    assert page.inner_text("#chat-record button").strip() == "Record"
    assert page.locator("#chat-media li").count() == 0


def test_an_answer_is_read_aloud(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "think")
    with page.expect_request("**/audio/speech") as asked:
        page.click("button:text('Read aloud')")
    assert asked.value.post_data_json["input"] == "It is 4."
    page.wait_for_selector("audio[aria-label='The answer, read aloud']")
    page.wait_for_function("() => document.querySelector('.message audio').currentTime > 0")


@pytest.mark.long
def test_a_recording_is_transcribed_where_models_are_tried(address: str, opened: Opener) -> None:
    page = opened(address, path="/#try", allowed=ALLOWED)
    form = "form[aria-label=Transcription]"
    page.click(".choices button:text('Transcription')")
    page.locator(f"{form} option").first.wait_for(state="attached")
    record(page, form + " .field")
    page.click(f"{form} button:text('Run')")
    page.wait_for_selector(f"{form} .output :text('recording.wav')")


@pytest.mark.long
def test_speech_and_images_are_tried(address: str, opened: Opener) -> None:
    page = opened(address, path="/#try")
    for title, shown in (("Speech", "audio"), ("Images", "img")):
        page.click(f".choices button:text('{title}')")
        form = page.locator(f"form[aria-label={title}]")
        form.locator("option").first.wait_for(state="attached")
        form.locator("button:text('Run')").click()
        form.locator(f".output {shown}").wait_for()


def test_a_page_of_another_address_gets_no_microphone(address: str, opened: Opener) -> None:
    """The policy allows it to this origin alone, and allows nothing else that a browser could ask for."""
    page = opened(address)
    policy = page.request.get(address, headers={"accept": "text/html"}).headers["permissions-policy"]
    assert "microphone=(self)" in policy
    assert {"camera=()", "geolocation=()", "display-capture=()"} <= set(policy.split(", "))
    assert page.evaluate("document.featurePolicy?.allowsFeature('camera') ?? false") is False
