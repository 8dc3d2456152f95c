"""Prompts beside streams on the kernels for CPUs: their passes rest between layers, and a stream waits for one part."""

from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.events import Finished
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.language.step.prefill import Prefill
from pippin.engines.language.step.scheduler import Scheduler
from pippin.engines.language.step.sequences import RestingChunk
from tests.engines.language.bench import PLAN, Bench, watch
from tests.engines.tiny_models import TinyModels

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

ON_KERNELS = msgspec.structs.replace(PLAN, kernels=True, overlaps=False, writes_in_place=True)
LAYERS = 4
PROMPT = tuple(place * 11 % 250 for place in range(160))


@pytest.fixture
def bench(tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A stream runs, and no step has time for more than one layer of a prompt."""
    folder = tiny_models("llama", num_hidden_layers=LAYERS)
    found = Bench(folder, ModelOptions(cache_block_tokens=8), ON_KERNELS)
    found.engine.submit(found.job("stream", PROMPT[:5], 400))
    for _ in range(12):
        found.engine.step()
    monkeypatch.setattr(found.engine.scheduler, "for_prompts", lambda decoding, rests: 0.0)
    return found


def answer(bench: Bench, name: str) -> list[int]:
    """The tokens of a request that was submitted, to its end."""
    found = watch(bench.engine)
    while not any(each == name and isinstance(event, Finished) for each, event in bench.engine.step()):
        pass
    return found[name, 0]


def test_a_stream_waits_for_a_layer_of_a_prompt_and_never_for_a_chunk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = 0
    go_on = Prefill._go_on

    def counted(own: Prefill, chunk: RestingChunk, until: float) -> Any:
        nonlocal parts
        parts += 1
        return go_on(own, chunk, until)

    monkeypatch.setattr(Prefill, "_go_on", counted)
    before = bench.engine.stats()
    bench.engine.submit(bench.job("long", PROMPT, 6))
    bench.judge(PROMPT, answer(bench, "long"))
    after = bench.engine.stats()
    assert parts >= (LAYERS + 1) * len(PROMPT) // 32
    assert after.completion_tokens - before.completion_tokens >= parts, "the stream has a token in each step"


def test_a_prompt_that_is_given_up_between_layers_is_computed_anew(bench: Bench) -> None:
    engine = bench.engine
    engine.submit(bench.job("given up", PROMPT, 4))
    while not any(prompt.chunk is not None and prompt.computed for prompt in engine.scheduler.prefilling):
        engine.step()
    engine.cancel("given up")
    engine.submit(bench.job("retry", PROMPT, 6))
    bench.judge(PROMPT, answer(bench, "retry"))


def test_a_prompt_beside_one_that_is_given_up_between_layers_says_the_same(bench: Bench) -> None:
    engine: Any = bench.engine
    first, second = PROMPT[20:28], PROMPT[40:47]
    engine.submit(bench.job("stays", first, 6))
    engine.submit(bench.job("goes", second, 6))
    engine.step()
    [chunk] = {prompt.chunk for prompt in engine.scheduler.prefilling}
    assert len(chunk.prompts) == 2
    engine.cancel("goes")
    bench.judge(first, answer(bench, "stays"))


def test_a_prompt_ends_at_once_when_no_stream_is_left(bench: Bench) -> None:
    engine = bench.engine
    engine.submit(bench.job("long", PROMPT, 6))
    engine.step()
    engine.cancel("stream")
    bench.judge(PROMPT, answer(bench, "long"))


def test_a_prompt_goes_on_when_the_last_stream_ends_while_it_is_checked(bench: Bench) -> None:
    engine: Any = bench.engine
    engine.scheduler.for_prompts = partial(Scheduler.for_prompts, engine.scheduler)
    engine.scheduler.limits.target_gap = 1e-6
    engine.submit(bench.job("long", PROMPT, 6))
    engine.step()
    begin = engine.decoding.begin

    def ends() -> Any:
        turn = begin()
        engine.cancel("stream")
        return replace(turn, checked=True, passes=False)

    engine.decoding.begin = ends
    engine.step()
    engine.decoding.begin = begin
    bench.judge(PROMPT, answer(bench, "long"))
