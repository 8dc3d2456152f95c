"""Tiny models of more families of mlx-audio that hear, from disk: the same text as by mlx-audio alone, and what becomes
of a request's fields."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_audio.stt.utils import load_model

from pippin.core.events import Event, Failed, Transcribed
from tests.engines.speech import hearing
from tests.engines.speech.hearing import Loaded, opened
from tests.engines.speech.recordings import wav
from tests.engines.speech.tiny_hearing import FAMILIES, write_hearing_model

SHORT, LONG = wav(0.6, 1), wav(1.7, 2)
SLOW = ("voxtral_realtime", "qwen3_asr")


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=[pytest.mark.long] if each in SLOW else []) for each in FAMILIES],
)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder = write_hearing_model(request.param, tmp_path_factory.mktemp("models") / f"{request.param}-tiny")
    with opened(folder) as found:
        yield found


def hear(loaded: Loaded, data: bytes, **fields: Any) -> list[Event]:
    # Random weights may never end an answer; SenseVoice writes no tokens one by one, and has no such limit.
    if not loaded[2].name.startswith("sensevoice"):
        fields = {"max_tokens": 12, **fields}
    return hearing.hear(loaded, data, **fields)


def text_of(loaded: Loaded, data: bytes, **fields: Any) -> str:
    done = hear(loaded, data, **fields)[-1]
    assert isinstance(done, Transcribed), done
    return done.text


def by_itself(loaded: Loaded, file: Path, **arguments: Any) -> str:
    model = load_model(loaded[2])
    for part in (getattr(model, "_model", model),):
        part.set_dtype(mx.float32)
    if not loaded[2].name.startswith("sensevoice"):
        arguments = {"max_tokens": 12, **arguments}
    return str(model.generate(str(file), **arguments).text).strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "speech.wav"
    path.write_bytes(SHORT)
    return path


def test_a_model_hears_through_pippin_as_by_itself(loaded: Loaded, file: Path) -> None:
    short = text_of(loaded, SHORT)
    assert short == by_itself(loaded, file)
    file.write_bytes(LONG)
    long = text_of(loaded, LONG)
    assert long == by_itself(loaded, file)
    assert short != long


@pytest.mark.parametrize("loaded", ["canary"], indirect=True)
def test_canary_writes_down_the_language_that_is_spoken(loaded: Loaded, file: Path) -> None:
    german = text_of(loaded, SHORT, language="de")
    assert german == by_itself(loaded, file, source_lang="de", target_lang="de")
    assert german != by_itself(loaded, file, source_lang="de", target_lang="en")


@pytest.mark.parametrize("loaded", ["canary"], indirect=True)
def test_canary_translates_from_the_language_that_is_named(loaded: Loaded, file: Path) -> None:
    translated = text_of(loaded, SHORT, language="de", translate=True)
    assert translated == by_itself(loaded, file, source_lang="de", target_lang="en")
    [failed] = hear(loaded, SHORT, translate=True)
    assert isinstance(failed, Failed)
    assert failed.error.param == "language"


@pytest.mark.parametrize("loaded", ["granite_speech"], indirect=True)
def test_granite_takes_the_language_for_the_one_that_is_spoken(loaded: Loaded, file: Path) -> None:
    assert text_of(loaded, SHORT, language="de") == by_itself(loaded, file, source_language="de")
    assert text_of(loaded, SHORT, translate=True) == by_itself(loaded, file, language="en")


@pytest.mark.long
@pytest.mark.parametrize("loaded", ["qwen3_asr"], indirect=True)
def test_qwen_is_told_a_language_by_its_name_and_words_that_may_be_heard(loaded: Loaded, file: Path) -> None:
    german = by_itself(loaded, file, language="German")
    assert [text_of(loaded, SHORT, language=each) for each in ("de", "de-AT", "german")] == [german] * 3
    assert german != by_itself(loaded, file, language="de")
    names = text_of(loaded, SHORT, prompt="pippin, mlx")
    assert names == by_itself(loaded, file, system_prompt="pippin, mlx")


@pytest.mark.parametrize(
    "loaded", ["sensevoice", "canary", pytest.param("qwen3_asr", marks=pytest.mark.long)], indirect=True
)
def test_a_language_that_a_model_does_not_know_is_refused_with_its_list(loaded: Loaded) -> None:
    [failed] = hear(loaded, SHORT, language="tlh")
    assert isinstance(failed, Failed)
    assert (failed.error.kind, failed.error.param) == ("invalid_request", "language")
    assert "this model knows" in failed.error.message


def test_a_recording_of_a_few_samples_is_heard(loaded: Loaded) -> None:
    for count in (1, 10, 160):
        assert isinstance(hear(loaded, wav(count / 16000, 1))[-1], Transcribed), count
