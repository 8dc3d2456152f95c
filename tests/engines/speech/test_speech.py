"""The speech engine over a model of mlx-audio's shape: what reaches it, and what comes out."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Failed, SpeechChunk, Spoken, Voices
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import ListVoices, Speak
from pippin.engines import sound
from pippin.engines.base import NeedsWeightsError
from pippin.engines.blocking import BlockingEngine, BlockingJob
from pippin.engines.speech.keywords import keywords_of
from pippin.engines.speech.speaking import SpeechModel, SpeechPreparer, voices_of
from tests.engines.driving import run
from tests.engines.speech.recordings import wav

RATE = 24000


class Speaker:
    """A tone for each word; knows voices, speed and seeds as mlx-audio's models do."""

    sample_rate = RATE

    def __init__(self, seconds: float = 0.0) -> None:
        self.asked: list[dict[str, Any]] = []
        self.pieces = 0
        self._seconds = seconds

    def generate(
        self,
        text: str,
        voice: str | None = None,
        speed: float = 1.0,
        ref_audio: Any = None,
        verbose: bool = True,
    ) -> Iterator[Any]:
        self.asked.append({"text": text, "voice": voice, "speed": speed, "ref_audio": ref_audio})
        for _ in text.split():
            time.sleep(self._seconds)
            self.pieces += 1
            noise = mx.random.normal((int(RATE * 0.1 / speed),)) * 0.1
            yield SimpleNamespace(audio=noise, sample_rate=RATE, token_count=5)


class Instructed(Speaker):
    def generate(self, text: str, instruct: str = "", seed: int = 0) -> Iterator[Any]:  # type: ignore[override]
        self.asked.append({"text": text, "instruct": instruct})
        yield SimpleNamespace(audio=mx.zeros((100,)), sample_rate=RATE, token_count=1)


class Imitator(Speaker):
    def generate(self, text: str, ref_audio: Any) -> Iterator[Any]:  # type: ignore[override]
        yield from super().generate(text)


class Sampled(Speaker):
    def generate(  # type: ignore[override]
        self, text: str, gender: str = "", pitch: float = 1.0, top_p: float = 1.0, top_k: int = 0
    ) -> Iterator[Any]:
        self.asked.append({"gender": gender, "pitch": pitch, "top_p": top_p, "top_k": top_k})
        yield SimpleNamespace(audio=mx.zeros((100,)), sample_rate=RATE, token_count=1)


class Careless(Speaker):
    """Names a voice and a speed, as all of the library's models do, and looks at neither; takes others by name."""

    def generate(  # type: ignore[override]
        self, text: str, voice: str = "", speed: float = 1.0, seed: int = 7, **kwargs: Any
    ) -> Iterator[Any]:
        del voice
        mx.random.seed(seed)
        self.asked.append({"top_k": kwargs.get("top_k", -1)})
        yield from self._handed(text, **kwargs)

    def _handed(self, text: str, **kwargs: Any) -> Iterator[Any]:
        self.asked.append({"max_new_tokens": kwargs.pop("max_new_tokens", 0)})
        noise = mx.random.normal((100,)) * 0.1
        yield SimpleNamespace(audio=noise, sample_rate=RATE, token_count=1)


class Particular(Speaker):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def generate(self, text: str) -> Iterator[Any]:  # type: ignore[override]
        raise self._error
        yield


class Wordless(Speaker):
    def generate(self, text: str) -> Iterator[Any]:  # type: ignore[override]
        yield from ()


class Hesitant(Speaker):
    """Ends at its first token before each word, as small models do: a piece without a sample."""

    def generate(self, text: str) -> Iterator[Any]:  # type: ignore[override]
        for piece in super().generate(text):
            yield SimpleNamespace(audio=mx.zeros((0,)), sample_rate=RATE, token_count=1)
            yield piece


class Silent(Speaker):
    def generate(self, text: str) -> Iterator[Any]:  # type: ignore[override]
        yield SimpleNamespace(audio=mx.zeros((0,)), sample_rate=RATE, token_count=1)


class Phonemes(Speaker):
    def generate(self, text: str) -> Iterator[Any]:  # type: ignore[override]
        raise ImportError("No module named 'misaki'", name="misaki")
        yield


@pytest.fixture
def preparer(tmp_path: Path) -> SpeechPreparer:
    (tmp_path / "voices").mkdir()
    for name in ("af_heart.safetensors", "bm_george.safetensors", "readme.txt"):
        (tmp_path / "voices" / name).touch()
    return SpeechPreparer(WorkerSpec(info=ModelInfo(id="speaker", kind="speech", path=str(tmp_path))))


def speak(preparer: SpeechPreparer, model: Speaker, **fields: Any) -> list[Event]:
    engine: BlockingEngine[Any] = BlockingEngine(lambda: SpeechModel(model, keywords_of(model)))
    preparer.rate = model.sample_rate
    job = preparer.prepare("one", Speak(**{"text": "one two three", "format": "pcm", **fields}))
    assert not isinstance(job, tuple)
    events = run(engine, job)["one"]
    engine.close()
    return events


def sound_of(events: list[Event]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, SpeechChunk))


def test_sound_comes_piece_by_piece_and_then_its_length(preparer: SpeechPreparer) -> None:
    model = Speaker()
    events = speak(preparer, model, voice="af_heart", speed=2.0)
    assert len([event for event in events if isinstance(event, SpeechChunk)]) == 3
    assert len(sound_of(events)) == 3 * 1200 * 2
    done = events[-1]
    assert isinstance(done, Spoken)
    assert (done.sample_rate, done.duration) == (RATE, pytest.approx(0.15))
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (13, 15)
    assert model.asked == [{"text": "one two three", "voice": "af_heart", "speed": 2.0, "ref_audio": None}]


def test_a_seed_gives_the_same_sound(preparer: SpeechPreparer) -> None:
    first, second = (sound_of(speak(preparer, Speaker(), seed=3)) for _ in range(2))
    assert first == second
    assert first != sound_of(speak(preparer, Speaker(), seed=4))


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav"])
def test_every_format_can_be_decoded_again(preparer: SpeechPreparer, format: Any) -> None:
    data = sound_of(speak(preparer, Speaker(), format=format))
    assert abs(sound.decode(data, RATE, param="file").size - 7200) < 4000


@pytest.mark.parametrize("format", ["pcm", "mp3", "opus", "wav"])
def test_a_piece_without_samples_is_passed_over(preparer: SpeechPreparer, format: Any) -> None:
    events = speak(preparer, Hesitant(), format=format)
    done = events[-1]
    assert isinstance(done, Spoken)
    assert (done.duration, done.usage.completion_tokens) == (pytest.approx(0.3), 18)


def test_instructions_reach_a_model_that_is_told(preparer: SpeechPreparer) -> None:
    model = Instructed()
    speak(preparer, model, instructions="whisper")
    assert model.asked == [{"text": "one two three", "instruct": "whisper"}]


def test_settings_of_mlx_vlm_reach_a_model_that_has_them(preparer: SpeechPreparer) -> None:
    model = Sampled()
    speak(preparer, model, gender="female", pitch=1.5, top_p=0.9, top_k=4)
    assert model.asked == [{"gender": "female", "pitch": 1.5, "top_p": 0.9, "top_k": 4}]


def test_settings_that_change_nothing_need_no_model_that_has_them(preparer: SpeechPreparer) -> None:
    neutral = {"pitch": 1.0, "speed": 1.0, "repetition_penalty": 1.0, "streaming_interval": 2.0}
    assert sound_of(speak(preparer, Speaker(), **neutral))


def test_a_recording_to_imitate_is_decoded_beside_the_model(preparer: SpeechPreparer) -> None:
    encoder = sound.SpeechEncoder("flac", 16000)
    recording = encoder.feed(np.zeros(16000, dtype=np.float32)) + encoder.finish()
    model = Speaker()
    speak(preparer, model, reference_audio=recording)
    assert model.asked[0]["ref_audio"].shape == (24000,)
    deep = Speaker()
    deep.sample_rate = (
        44100  # as Dia's and Fish's: mlx-audio reads recordings at the rate at which the model speaks
    )
    speak(preparer, deep, reference_audio=recording)
    assert deep.asked[0]["ref_audio"].shape == (44100,)
    preparer.rate = None  # as before the model is loaded
    with pytest.raises(NeedsWeightsError):
        preparer.prepare("one", Speak(text="one", format="pcm", reference_audio=recording))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "alloy"}, "voice"),
        ({"reference_audio": b"no sound"}, "ref_audio"),
    ],
)
def test_what_cannot_be_spoken_is_refused_by_name(
    preparer: SpeechPreparer, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ServerError) as caught:
        speak(preparer, Speaker(), **fields)
    assert (caught.value.report.status, caught.value.report.param) == (400, param)


@pytest.mark.parametrize(
    ("model", "fields", "sentence"),
    [
        (Speaker(), {"instructions": "whisper"}, "no `instructions`"),
        (Instructed(), {"voice": "af_heart"}, "no `voice`"),
        (Instructed(), {"speed": 1.5}, "no `speed`"),
        (Imitator(), {}, "needs `ref_audio`"),
        (Speaker(), {"gender": "male"}, "no `gender`"),
        (Speaker(), {"top_k": 4}, "no `top_k`"),
        (Speaker(), {"stream": True, "streaming_interval": 2.0}, "no `streaming_interval`"),
        (Wordless(), {}, "made no sound"),
        (Silent(), {"format": "wav"}, "made no sound"),
        (Phonemes(), {}, "misaki"),
    ],
)
def test_what_a_model_cannot_do_ends_the_request_with_a_sentence(
    preparer: SpeechPreparer, model: Speaker, fields: dict[str, Any], sentence: str
) -> None:
    [failed] = speak(preparer, model, **fields)
    assert isinstance(failed, Failed)
    assert sentence in failed.error.message


def test_a_cancelled_request_stops_before_its_next_piece(preparer: SpeechPreparer) -> None:
    model = Speaker(seconds=0.02)
    engine: BlockingEngine[Any] = BlockingEngine(lambda: SpeechModel(model, keywords_of(model)))
    job = preparer.prepare("one", Speak(text="word " * 500, format="pcm"))
    assert not isinstance(job, tuple)
    engine.submit(job)
    while not engine.step():
        pass
    engine.cancel("one")
    assert not engine.busy
    engine.close()
    assert model.pieces < 50


def test_voices_are_those_of_the_folder(preparer: SpeechPreparer) -> None:
    assert preparer.prepare("a", ListVoices()) == (Voices(("af_heart", "bm_george")),)


@pytest.mark.parametrize(
    "voice",
    [
        "/etc/passwd",
        "../other/voice",
        "~/speaker",
        "speaker.json",
        "voice.safetensors",
        "http://10.0.0.1/voice",
        "hf://org/name/file",
        "C:\\voice",
        ".hidden",
        "a\nb",
        "",
    ],
)
def test_a_voice_is_never_a_path_or_an_address(tmp_path: Path, voice: str) -> None:
    model = Speaker()
    with pytest.raises(ServerError, match="'voice' is"):
        speak(
            SpeechPreparer(WorkerSpec(info=ModelInfo(id="bare", kind="speech", path=str(tmp_path)))),
            model,
            voice=voice,
        )
    assert model.asked == []


def test_a_voice_may_be_written_in_other_letters_and_kokoro_s_may_be_mixed(
    preparer: SpeechPreparer, tmp_path: Path
) -> None:
    model = Speaker()
    speak(preparer, model, voice="AF_Heart")
    assert model.asked[-1]["voice"] == "af_heart"
    with pytest.raises(ServerError):
        speak(preparer, model, voice="af_heart,bm_george")
    (tmp_path / "config.json").write_text('{"istftnet": {}}')
    kokoro = SpeechPreparer(WorkerSpec(info=ModelInfo(id="kokoro", kind="speech", path=str(tmp_path))))
    speak(kokoro, model, voice="af_heart, bm_george")
    assert model.asked[-1]["voice"] == "af_heart,bm_george"
    with pytest.raises(ServerError, match="'voice' is"):
        speak(kokoro, model, voice="af_heart,../x")


def test_a_voice_that_is_a_recording_is_imitated(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "anna.wav").write_bytes(wav(0.5, 1))
    model = Speaker()
    speak(
        SpeechPreparer(WorkerSpec(info=ModelInfo(id="bare", kind="speech", path=str(tmp_path)))),
        model,
        voice="anna",
    )
    assert model.asked[0]["voice"] is None
    assert model.asked[0]["ref_audio"].shape == (12000,)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"model_type": "melotts", "spk2id": {"EN-US": 0, "EN-BR": 1}}, ("EN-BR", "EN-US")),
        ({"model_type": "rumik_oss", "speakers": ["a", 3, "b"]}, ("a", "b")),
        ({"model_type": "qwen3_tts", "talker_config": {"spk_id": {"vivian": [1]}}}, ("vivian",)),
        ({"model_type": "kitten_tts", "voice_aliases": {"Bella": "one"}}, ("Bella", "one", "two")),
        ({"model_type": "odd", "speakers": {"a": 1}, "spk2id": [], "talker_config": 3}, ()),
    ],
)
def test_voices_are_read_where_each_family_has_them(
    tmp_path: Path, config: dict[str, Any], names: tuple[str, ...]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if config["model_type"] == "kitten_tts":
        np.savez(tmp_path / "voices.npz", one=np.zeros(2), two=np.zeros(2))
    assert voices_of(tmp_path, "m").names == names


def test_an_argument_that_a_model_never_looks_at_is_refused(preparer: SpeechPreparer) -> None:
    for fields, name in (({"voice": "af_heart"}, "voice"), ({"speed": 2.0}, "speed")):
        [failed] = speak(preparer, Careless(), **fields)
        assert isinstance(failed, Failed)
        assert failed.error.param == name


def test_what_a_model_takes_out_of_its_keywords_reaches_it(preparer: SpeechPreparer) -> None:
    model = Careless()
    speak(preparer, model, top_k=4, max_tokens=9)
    assert model.asked == [{"top_k": 4}, {"max_new_tokens": 9}]


def test_a_model_with_a_seed_of_its_own_gets_the_client_s(preparer: SpeechPreparer) -> None:
    one, again, other = (sound_of(speak(preparer, Careless(), seed=seed)) for seed in (3, 3, 4))
    assert one == again != other


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ValueError("Voice design needs `instruct`."), "invalid_request", "Voice design needs `instruct`."),
        (KeyError("xx"), "invalid_request", "it does not know 'xx'."),
        (AssertionError(), "invalid_request", "AssertionError."),
        (ValueError("[broadcast_shapes] Shapes (1) and (2)"), "internal", "The model failed"),
        (RuntimeError("broken"), "internal", "The model failed"),
        (
            FileNotFoundError("Cannot find voices/alba"),
            "load_failed",
            "lacks a file for this request: Cannot find",
        ),
    ],
)
def test_what_a_library_refuses_or_lacks_is_no_failure_of_the_server(
    preparer: SpeechPreparer, error: BaseException, kind: str, words: str
) -> None:
    [failed] = speak(preparer, Particular(error))
    assert isinstance(failed, Failed)
    assert failed.error.kind == kind
    assert words in failed.error.message


def test_a_kokoro_without_voices_is_asked_for_none_because_it_would_fetch_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"istftnet": {}}')
    bare = SpeechPreparer(WorkerSpec(info=ModelInfo(id="kokoro", kind="speech", path=str(tmp_path))))
    model = Speaker()
    with pytest.raises(ServerError, match="no voice lies in the folder of kokoro"):
        speak(bare, model, voice="af_sky")
    assert model.asked == []
    assert sound_of(speak(bare, model))


def test_a_library_that_ends_the_process_ends_its_request_alone() -> None:
    engine: BlockingEngine[None] = BlockingEngine(lambda: None)
    for _ in range(2):
        [failed] = run(engine, BlockingJob[None]("one", Accepted(1), lambda _model, _call: sys.exit(1)))[
            "one"
        ]
        assert isinstance(failed, Failed)
    engine.close()
