"""Recordings in prompts: answered as mlx-vlm's own generate does, cached, beside texts, bounded, and over the wire."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from mlx_vlm.models.phi4mm.processing_phi4mm import Phi4MMAudioFeatureExtractor
from mlx_vlm.utils import load_processor
from transformers import WhisperFeatureExtractor

from pippin.core.conversation import Audio, Inline
from pippin.core.errors import ServerError
from pippin.engines import sound
from pippin.engines.language.vision.preprocessor import hearing_part, settings_in, unprepared
from tests.engines.language.vision.any_family import shrink, write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench
from tests.engines.speech.recordings import wav
from tests.running_server import running_server

QUESTION = "What is said here?"
OF_PHI = SimpleNamespace(audio_processor=Phi4MMAudioFeatureExtractor())
OF_NEMOTRON = SimpleNamespace(audio_sampling_rate=16000, audio_hop_length=160)


def recording(data: bytes) -> Audio:
    return Audio(Inline(data))


SHORT, LONG, COARSE = wav(0.5, 1), wav(1.3, 2), wav(0.7, 3, rate=8000)


@pytest.fixture(scope="module", params=["gemma4_unified", pytest.param("gemma4", marks=pytest.mark.long)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision_model(request.param, tmp_path_factory.mktemp("models") / request.param, hears=True)


@pytest.fixture(scope="module")
def bench(folder: Path) -> VisionBench:
    return VisionBench(folder)


def decoded(heard: bytes, rate: int = 16000) -> sound.Samples:
    return sound.decode(heard, rate, param="sound")


def judged(bench: VisionBench, heard: bytes) -> list[int]:
    return bench.judged(QUESTION, [], sound=decoded(heard))


def test_a_recording_is_answered_as_mlx_vlm_does(bench: VisionBench) -> None:
    answers = [bench.alone(bench.job("a", recording(heard), QUESTION)) for heard in (SHORT, LONG, COARSE)]
    assert answers == [judged(bench, heard) for heard in (SHORT, LONG, COARSE)]
    # It hears them, though random weights may say the same of two.
    assert any(answer != answers[0] for answer in answers)


@pytest.mark.parametrize(
    ("processor", "said", "told"),
    [
        (OF_PHI, {"audio_compression_rate": 8, "audio_feat_stride": 1, "sampling_rate": 16000}, []),
        (OF_PHI, {"audio_compression_rate": 4}, ["audio_compression_rate"]),
        (OF_PHI, {"audio_downsample_rate": 2}, ["audio_downsample_rate"]),
        (OF_PHI, {"sampling_rate": 8000}, ["sampling_rate"]),
        (OF_PHI, {"feature_size": 64, "hop_length": 160}, ["feature_size"]),
        (OF_NEMOTRON, {"sampling_rate": 16000, "hop_length": 80}, ["hop_length"]),
    ],
)
def test_what_prepares_sound_is_held_against_the_folder(
    processor: Any, said: dict[str, Any], told: list[str], tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert unprepared(settings_in(tmp_path), processor)["audio"] == told


@pytest.mark.parametrize(
    ("said", "sound", "told"),
    [
        ({"n_fft": 512, "feature_size": 128, "hop_length": 160}, {}, []),
        ({"n_fft": 400, "feature_size": 80}, {}, ["n_fft", "feature_size"]),
        ({"n_fft": 400, "feature_size": 80}, {"n_fft": 400, "num_mel_bins": 80}, []),
        ({}, {"hop_length": 80}, ["hop_length"]),
        ({"hop_length": 80}, {"sampling_rate": 8000}, ["hop_length", "sampling_rate"]),
    ],
)
def test_sound_of_nemotron_is_held_against_its_encoder(
    said: dict[str, Any], sound: dict[str, Any], told: list[str], tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    found = unprepared(settings_in(tmp_path), OF_NEMOTRON, {"sound_config": sound})
    assert found["audio"] == told


def test_how_long_a_sound_is_is_told_whatever_the_files_say() -> None:
    """As in transformers' processors; mlx-vlm's of Qwen3-Omni fails without it."""
    for name in ("feature_extractor", "audio_processor"):
        own = WhisperFeatureExtractor(return_attention_mask=False)
        assert hearing_part(SimpleNamespace(**{name: own})) is own
        assert own.return_attention_mask
    assert hearing_part(SimpleNamespace()) is None


def test_recordings_and_texts_answer_together_as_alone(bench: VisionBench) -> None:
    jobs = {
        "short": bench.job("short", recording(SHORT), QUESTION, tokens=20),
        "text": bench.job("text", "No sound here, only a text of some length.", tokens=9),
        "two": bench.job("two", recording(LONG), recording(SHORT), "Which is longer?", tokens=14),
    }
    together, _ = bench.run(*jobs.values(), engine=bench.new_engine())
    assert together == {name: bench.alone(job) for name, job in jobs.items()}


def test_another_question_on_a_recording_hears_it_once(bench: VisionBench) -> None:
    engine = bench.new_engine()
    bench.run(bench.job("a", recording(LONG), QUESTION), engine=engine)
    other = bench.job("b", recording(LONG), "Who speaks?")
    followed, ends = bench.run(other, engine=engine)
    assert followed["b"] == bench.alone(other)
    assert ends["b"].usage.cached_tokens >= 32
    assert engine.vision.encoded == 1


def test_sound_costs_tokens_by_its_length(bench: VisionBench) -> None:
    words = len(bench.job("a", QUESTION).prompt)
    short, long = (len(bench.job("a", recording(heard), QUESTION).prompt) - words for heard in (SHORT, LONG))
    assert (short, long) == (13 + 2, 33 + 2)  # one for 40 ms begun, and one before and after


def test_a_picture_beside_a_recording_is_answered_as_mlx_vlm_does(bench: VisionBench) -> None:
    shown = picture(32, 32)
    job = bench.job("a", shown, recording(SHORT), QUESTION)
    # There sound comes first.
    heard = decoded(SHORT)
    first = bench.job("b", recording(SHORT), shown, QUESTION)
    assert bench.alone(first) == bench.judged(QUESTION, [shown], sound=heard)
    together, _ = bench.run(job, first, bench.job("c", "Hello"), engine=bench.new_engine())
    assert together == {each.id: bench.alone(each) for each in (job, first, bench.job("c", "Hello"))}


@pytest.mark.parametrize("data", [b"", b"RIFF", SHORT[:30], picture(8, 8), wav(0, 1)])
def test_what_is_no_sound_is_refused_by_name(bench: VisionBench, data: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        bench.job("a", recording(data), QUESTION)
    assert caught.value.report.param == "messages[0].content[0]"
    assert caught.value.report.status == 400


@pytest.mark.timeout(600)  # a server of its own on a machine that is shared
def test_input_audio_is_heard_over_the_wire(bench: VisionBench, folder: Path, tmp_path: Path) -> None:
    with (
        running_server(tmp_path, str(folder)) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=500) as client,
    ):
        asked = {"model": folder.name, "temperature": 0, "max_tokens": 12}
        for heard in (SHORT, LONG):
            content: list[Any] = [
                {
                    "type": "input_audio",
                    "input_audio": {"data": base64.b64encode(heard).decode(), "format": "wav"},
                },
                {"type": "text", "text": QUESTION},
            ]
            answer = client.chat.completions.create(messages=[{"role": "user", "content": content}], **asked)
            expected = bench.preparer.tokenizer.decode(judged(bench, heard))
            assert answer.choices[0].message.content == expected.removesuffix("<|end|>")
        content[0]["input_audio"]["data"] = base64.b64encode(b"no sound").decode()
        with pytest.raises(openai.BadRequestError, match=r"messages\[0\].content\[0\]"):
            client.chat.completions.create(messages=[{"role": "user", "content": content}], **asked)


QUICK_FAMILY = "nemotron_h_nano_omni"
HEARING = (
    *("gemma3n", "inkling", "mimo_v2", "minicpmo", "muse_spark", "nemotron_h_nano_omni", "phi4mm"),
    "qwen3_omni_moe",
)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name == QUICK_FAMILY else pytest.mark.long) for name in HEARING]
)
def test_a_recording_is_answered_as_by_mlx_vlm(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(FAMILIES[family], monkeypatch)
    bench = VisionBench(write(family, FAMILIES[family], tmp_path / family))
    assert bench.preparer.info.capabilities.audio
    processor = load_processor(bench.folder, eos_token_ids=256, trust_remote_code=False)
    rate = getattr(getattr(processor, "feature_extractor", None), "sampling_rate", 16000)
    expected = [bench.judged("What?", [], sound=decoded(each, rate)) for each in (SHORT, LONG, COARSE)]
    assert len(set(map(tuple, expected))) > 1
    seen, text = bench.judged("What?", [picture(60, 28, 1)]), bench.judged("No sound.", [])
    if family == "inkling":  # the one whose pictures and recordings mlx-vlm takes together in this order
        both = bench.job("both", picture(60, 28, 1), recording(SHORT), "What?")
        heard = decoded(SHORT, rate)
        assert bench.alone(both) == bench.judged("What?", [picture(60, 28, 1)], sound=heard)
    # Together where the family runs in batches, else one after the other; then once more, from caches if there are any.
    engine = bench.new_engine()
    for _ in range(2):
        jobs = [bench.job(str(n), recording(each), "What?") for n, each in enumerate((SHORT, LONG, COARSE))]
        others = [bench.job("seen", picture(60, 28, 1), "What?"), bench.job("text", "No sound.")]
        found, _ = bench.run(jobs[0], *others, *jobs[1:], engine=engine)
        assert [found[job.id] for job in jobs] == expected
        assert (found["seen"], found["text"]) == (seen, text)
