"""Nobody waits for long: running rows beside a long prompt, short prompts behind it, all of them in the end."""

from dataclasses import replace
from pathlib import Path

import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.events import Finished
from pippin.engines.language.step.scheduler import Step
from tests.engines.language.bench import Bench, watch
from tests.engines.tiny_models import TinyModels

LONG = tuple(place * 7 % 250 for place in range(1000))


@pytest.fixture(scope="module")
def folder(tiny_models: TinyModels) -> Path:
    return tiny_models("llama")


@pytest.fixture
def bench(folder: Path) -> Bench:
    """Its scheduler is told what each step does, and times that follow from that: those of a shared machine could turn
    any decision."""
    bench = Bench(folder, ModelOptions())
    costs = bench.engine.scheduler.step_cost
    observe = costs.observe

    def timed(step: Step) -> None:
        observe(replace(step, seconds=1e-3 + 2e-4 * step.sequences + 5e-5 * step.tokens + 1e-8 * step.pairs))

    costs.observe = timed  # type: ignore[method-assign]
    return bench


def test_a_running_sequence_has_a_token_in_every_step_and_no_step_computes_more_than_its_chunk(
    bench: Bench,
) -> None:
    engine = bench.engine
    watched = watch(engine)
    engine.submit(bench.job("running", LONG[:20], 400))
    while engine.stats().batch_size < 1:
        engine.step()
    engine.step()
    engine.submit(bench.job("long", LONG, 4))
    steps = 0
    while engine.stats().batch_size < 2:
        said, computed = len(watched["running", 0]), engine.counters.prompt_tokens
        allowed = engine.scheduler.chunk()
        engine.step()
        steps += 1
        assert len(watched["running", 0]) == said + 1, "it waited for more than a chunk"
        assert engine.counters.prompt_tokens - computed <= allowed
    assert steps >= len(LONG) // 32


def test_the_first_chunk_of_a_known_prompt_is_sized_by_what_is_known(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its tokens looks back at all that is known, though nothing was computed of it yet."""
    engine = bench.engine
    contexts: list[int] = []
    affordable = engine.scheduler.step_cost.affordable

    def watched(seconds: float, context: int) -> int | None:
        contexts.append(context)
        return affordable(seconds, context)

    engine.submit(bench.job("first", LONG[:800], 1))
    while engine.busy:
        engine.step()
    engine.submit(bench.job("running", LONG[500:520], 50))
    while engine.stats().batch_size < 1:
        engine.step()
    monkeypatch.setattr(engine.scheduler.step_cost, "affordable", watched)
    engine.submit(bench.job("again", LONG[:900], 1))
    engine.step()
    assert contexts == [800]


def test_short_prompts_behind_a_long_one_end_first_and_the_long_one_ends_too(bench: Bench) -> None:
    engine = bench.engine
    engine.submit(bench.job("long", LONG, 4))
    engine.step()
    ended, submitted = [], 0
    while engine.busy:
        if submitted < 60:
            engine.submit(bench.job(f"s{submitted}", (submitted, *LONG[:30]), 2))
            submitted += 1
        ended += [name for name, event in engine.step() if isinstance(event, Finished)]
    assert ended.index("s0") < ended.index("long") < len(ended) - 1, "short first, and yet not all of them"
