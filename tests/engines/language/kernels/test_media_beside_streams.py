"""Pictures beside streams on a CPU: encoders rest between their modules, and a stream waits for a part."""

from typing import Any

import msgspec
import pytest

from pippin.core.events import Failed
from pippin.engines.language.vision.pacing import Paced
from tests.engines.language.bench import PLAN
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

ON_A_CPU = msgspec.structs.replace(PLAN, overlaps=False, writes_in_place=True)


@pytest.fixture(scope="module", params=["qwen2_vl", "gemma3", "idefics3"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionBench:
    family = request.param
    return VisionBench(tiny_vision_model(family, tmp_path_factory.mktemp("paced") / family), ON_A_CPU)


@pytest.fixture
def engine(bench: VisionBench, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stream runs, and no step has time for more than one module of an encoder."""
    found = bench.new_engine()
    found.submit(bench.job("stream", "Tell a story.", tokens=600, ignore_eos=True))
    for _ in range(8):
        found.step()
    monkeypatch.setattr(found.scheduler, "for_prompts", lambda decoding, rests: 0.0)
    return found


def answer(bench: VisionBench, engine: Any, shown: bytes) -> tuple[list[int], int]:
    """What is said of a picture, and how many steps it took."""
    job, steps = bench.job("asks", shown, "What is this?"), 0
    before = engine.stats().steps
    engine.submit(job)
    watched: list[int] = []
    accept = engine.lifecycle.accept

    def noting(running: Any, sampled: Any) -> None:
        if running.sequence.request.job.id == "asks":
            watched.append(sampled.token)
        accept(running, sampled)

    engine.lifecycle.accept = noting
    while any(request.job.id == "asks" for request in engine.lifecycle.live):
        assert not any(isinstance(event, Failed) for _, event in engine.step())
    steps = engine.stats().steps - before
    return watched, steps


def test_a_stream_has_tokens_while_a_picture_is_encoded(bench: VisionBench, engine: Any) -> None:
    shown = picture(60, 40, 3)
    found, steps = answer(bench, engine, shown)
    assert found == bench.alone(bench.job("asks", shown, "What is this?"))
    assert steps > 12 + 8, "a token of the answer each, and parts of the encoder"
    assert engine.vision.encoded == 1


def test_a_picture_that_is_given_up_leaves_nothing_behind(bench: VisionBench, engine: Any) -> None:
    shown = picture(60, 40, 4)
    engine.submit(bench.job("gone", shown, "What is this?"))
    for _ in range(3):
        engine.step()
    [prompt] = engine.scheduler.prefilling
    call = prompt.request.media._under_way
    assert call.thread.is_alive()
    engine.cancel("gone")
    call.thread.join(10)
    assert not call.thread.is_alive()
    assert engine.vision.encoded == 0
    assert answer(bench, engine, shown)[0] == bench.alone(bench.job("asks", shown, "What is this?"))


def test_an_encoder_that_cannot_run_on_a_thread_of_its_own_runs_with_the_steps(
    bench: VisionBench, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Paced, seconds: float) -> None:
        raise RuntimeError("There is no Stream(cpu, 0) in current thread.")

    monkeypatch.setattr(Paced, "ask", fail)
    shown = picture(60, 40, 5)
    assert answer(bench, engine, shown)[0] == bench.alone(bench.job("asks", shown, "What is this?"))


def test_pictures_of_two_prompts_are_encoded_beside_each_other() -> None:
    calls: list[str] = []
    first, second = (Paced(lambda name=name: calls.append(name)) for name in "ab")  # type: ignore[misc]
    assert first.advance(0.0)
    assert second.advance(0.0)
    assert calls == ["a", "b"]
