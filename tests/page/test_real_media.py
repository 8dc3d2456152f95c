"""Real models in the page: speech into the microphone is written down, an answer is read aloud, a picture is seen.

Whisper base and SmolLM2 are the real ones. No weights that speak or see are to be had as packages: those are of random
weights in the real formats, and what is shown of them is that sound and words come.
"""

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.engines.language.vision.tiny_vision_models import picture as painted
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.speech.test_speech_models import write_model
from tests.page.browser import Opener, needs_browser, opening, running_browser
from tests.page.chatting import done
from tests.running_server import ROOT, running_server

pytestmark = [needs_browser, pytest.mark.model, pytest.mark.long]

SPEECH = ROOT / "tests" / "data" / "speech.flac"
"""espeak-ng says: The quick brown fox jumps over the lazy dog. Pippin serves many models on one machine."""


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The speech as Chromium's microphone takes it: samples of 16 bits, with silence behind, for it begins anew."""
    path = tmp_path_factory.mktemp("spoken") / "speech.wav"
    with av.open(SPEECH) as file:
        frames = [frame.to_ndarray() for frame in file.decode(audio=0)]
        rate = file.streams.audio[0].rate
    samples = np.concatenate([frame.reshape(-1) for frame in frames])
    assert samples.dtype == np.int16
    with wave.open(str(path), "wb") as written:
        written.setparams((1, 2, rate, 0, "NONE", ""))
        written.writeframes(samples.tobytes() + bytes(2 * rate * 3))
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, demo_model: Path, whisper_base: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("media")
    write_model(folder / "soprano-tiny")
    tiny_vision_model("qwen2_5_vl", folder / "seeing-tiny")
    models = (str(demo_model), str(whisper_base), str(folder / "soprano-tiny"), str(folder / "seeing-tiny"))
    home = tmp_path_factory.mktemp("home")
    with running_server(home, *models, ready=r"seeing-tiny is ready after") as address:
        yield address


@pytest.fixture(scope="module")
def browser(playwright: Any, spoken: Path) -> Iterator[Any]:
    with running_browser(playwright, f"--use-file-for-fake-audio-capture={spoken}") as browser:
        yield browser


@pytest.fixture
def opened(browser: Any) -> Iterator[Opener]:
    with opening(browser) as opener:
        yield opener


def chosen(page: Any, model: str) -> None:
    page.locator(f"#chat-model option[value='{model}']").wait_for(state="attached")
    page.select_option("#chat-model", model)


def test_what_is_said_into_the_microphone_is_written_down_and_answered(
    served: str, opened: Opener, demo_model: Path
) -> None:
    page = opened(served, allowed=("microphone",))
    page.set_default_timeout(120_000)
    chosen(page, demo_model.name)
    page.click("#chat-record button")
    page.wait_for_selector("#chat-record button:has-text('Stop 0:09')")
    page.click("#chat-record button")
    page.wait_for_selector("#chat-record button:has-text('Record')")
    heard = page.input_value("#chat-input")
    assert "quick brown fox" in heard.lower()
    page.focus("#chat-input")
    page.keyboard.press("Enter")
    done(page)
    assert page.inner_text(".message.assistant .markdown >> nth=-1").strip()


def test_an_answer_is_read_aloud_by_a_speech_model(served: str, opened: Opener, demo_model: Path) -> None:
    page = opened(served)
    page.set_default_timeout(120_000)
    chosen(page, demo_model.name)
    page.fill("#chat-input", "What is the capital of France?")
    page.keyboard.press("Enter")
    done(page)
    with page.expect_response("**/audio/speech") as answered:
        page.click("button:text('Read aloud')")
    assert answered.value.status == 200
    page.wait_for_function("() => document.querySelector('.message audio').duration > 0")


def test_a_picture_reaches_a_model_that_sees(served: str, opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "spots.png").write_bytes(painted(64, 64))
    page = opened(served)
    page.set_default_timeout(120_000)
    chosen(page, "seeing-tiny")
    page.set_input_files("#chat-files", str(tmp_path / "spots.png"))
    page.wait_for_selector("#chat-media img")
    page.fill("#chat-input", "a b")
    with page.expect_response("**/chat/completions") as answered:
        page.keyboard.press("Enter")
    assert answered.value.status == 200
    done(page)
    assert page.locator(".message.user img").count() == 1
