"""What the engine does with jobs: order, ends, limits, and what it tells of them."""

import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import pytest
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Event, Failed, Finished, PartDelta, Progress, PromptEcho
from pippin.core.requests import Sampling
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.kinds.attention import BatchedAttention
from pippin.engines.language.kv_cache.kinds.base import Slot, SlotRequest
from pippin.engines.language.kv_cache.layout import CacheLayout, computed_prompt
from pippin.engines.language.kv_cache.solo_group import SoloGroup
from tests.engines.language.bench import PLAN, Bench, run_all, run_one_at_a_time, watch
from tests.engines.tiny_models import TinyModels

PROMPT = tuple(place * 11 % 250 for place in range(100))


@pytest.fixture(scope="module")
def folder(tiny_models: TinyModels) -> Path:
    return tiny_models("llama")


@pytest.fixture
def bench(folder: Path) -> Bench:
    return Bench(folder, ModelOptions(cache_block_tokens=8))


def shapes_of_passes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Of the tokens that the model is given from now on."""
    shapes: list[tuple[int, ...]] = []
    model = type(bench.model)
    call = model.__call__

    def noting(self: object, tokens: mx.array, *given: object, **named: object) -> mx.array:
        shapes.append(tokens.shape)
        logits: mx.array = call(self, tokens, *given, **named)
        return logits

    monkeypatch.setattr(model, "__call__", noting)
    return shapes


def events_of(bench: Bench, *jobs: object) -> list[tuple[str, Event]]:
    for job in jobs:
        bench.engine.submit(job)  # type: ignore[arg-type]
    found = []
    while bench.engine.busy:
        found += bench.engine.step()
    return found


def test_choices_share_one_prefill(bench: Bench) -> None:
    answers, ends = run_all(bench, {"a": (PROMPT, 6)}, n=4)
    assert bench.engine.stats().prompt_tokens == 100
    assert len(ends) == 4
    for choice in range(4):
        bench.judge(PROMPT, answers["a", choice])


@pytest.mark.even
@pytest.mark.parametrize("more", [{}, {"xtc_probability": 0.5, "xtc_threshold": 0.05}], ids=["plain", "xtc"])
def test_seeded_choices_differ_and_are_the_same_again_in_company(bench: Bench, more: dict[str, Any]) -> None:
    sampling = Sampling(temperature=1.0, seed=3, **more)
    alone, _ = run_all(bench, {"a": (PROMPT, 12)}, n=2, sampling=sampling)
    assert alone["a", 0] != alone["a", 1]
    watched = watch(bench.engine)
    for place in range(5):
        bench.engine.submit(bench.job(f"r{place}", PROMPT[: 10 + place], 20))
    bench.engine.submit(bench.job("a", PROMPT, 12, n=2, sampling=sampling))
    while bench.engine.busy:
        bench.engine.step()
    assert watched["a", 0] == alone["a", 0]
    assert watched["a", 1] == alone["a", 1]


def test_a_cancelled_request_leaves_nothing_and_says_nothing(bench: Bench) -> None:
    engine = bench.engine
    for name in ("a", "b"):
        engine.submit(bench.job(name, PROMPT, 50, n=2))
    for _ in range(12):
        engine.step()
    engine.cancel("a")
    assert all(row.sequence.request.job.id == "b" for row in engine.batch.running)
    assert engine.stats().running == 2
    while engine.busy:
        assert all(owner == "b" for owner, _ in engine.step())
    engine.cancel("nobody")


def test_a_long_prompt_tells_of_its_progress(bench: Bench) -> None:
    found = [event for _, event in events_of(bench, bench.job("a", PROMPT, 1)) if isinstance(event, Progress)]
    assert [event.done for event in found] == [32, 64, 100]
    assert all((event.total, event.cached) == (100, 0) for event in found)
    passed = [event.seconds for event in found]
    assert 0 < passed[0] <= passed[1] <= passed[2]
    again = [event for _, event in events_of(bench, bench.job("b", PROMPT, 1)) if isinstance(event, Progress)]
    assert [(event.done, event.total, event.cached) for event in again] == [(100, 100, 96)]


def test_chunks_are_bounded_by_what_they_attend_to(folder: Path) -> None:
    """As on a Mac, whose watchdog ends what takes the GPU for too long."""
    bench = Bench(
        folder, ModelOptions(prefix_cache=False), msgspec.structs.replace(PLAN, attention_pairs=1000)
    )
    found = [event for _, event in events_of(bench, bench.job("a", PROMPT, 1)) if isinstance(event, Progress)]
    ends = [0, *(event.done for event in found)]
    chunks = [after - before for before, after in pairwise(ends)]
    assert chunks[0] == 31
    assert all(1 <= chunk * end <= 1.25 * 1000 for chunk, end in zip(chunks, ends[1:], strict=True))
    assert chunks[-1] < 12


def test_usage_and_timings_are_told_at_the_end(bench: Bench) -> None:
    run_all(bench, {"a": (PROMPT, 4)})
    _, ends = run_all(bench, {"b": (PROMPT, 4)})
    usage = ends["b", 0].usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (100, 96, 4)
    assert ends["b", 0].timings.decode > 0
    assert ends["b", 0].reason == "length"


@pytest.mark.even
def test_the_prompts_own_logprobs_are_the_models(bench: Bench) -> None:
    job = bench.job("a", PROMPT, 0, prompt_logprobs=2, echo=True)
    found = events_of(bench, replace(job, prompt_text="the prompt"))
    [echo] = [event for _, event in found if isinstance(event, PromptEcho)]
    assert echo.text == "the prompt"
    assert [token.id for token in echo.tokens] == list(PROMPT)
    assert echo.tokens[0].logprob is None
    logits = bench.model(mx.array([PROMPT]))[0].astype(mx.float32)
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    for place, token in enumerate(echo.tokens[1:]):
        assert math.isclose(token.logprob or 0, expected[place, token.id].item(), abs_tol=1e-3)
        assert len(token.top) == 2
        assert token.top[0].logprob >= token.top[1].logprob
    assert isinstance(found[-1][1], Finished)


def test_logprobs_are_told_to_those_who_ask_alone(bench: Bench) -> None:
    found = events_of(bench, bench.job("a", PROMPT, 3, logprobs=2), bench.job("b", PROMPT, 3))
    tokens = {name: [] for name in "ab"}  # type: ignore[var-annotated]
    for name, event in found:
        if isinstance(event, PartDelta):
            tokens[name] += event.tokens
    assert len(tokens["a"]) == 3
    assert all(len(token.top) == 2 and token.logprob is not None for token in tokens["a"])
    assert tokens["b"] == []


def test_a_request_that_takes_too_long_fails_by_name(bench: Bench) -> None:
    job = bench.job("a", PROMPT, 10_000, timeout=0.05)
    found = events_of(bench, job)
    assert isinstance(found[-1][1], Failed)
    assert found[-1][1].error.kind == "timeout"


def test_a_request_that_waits_too_long_is_told_to_come_back(folder: Path) -> None:
    bench = Bench(folder, ModelOptions(max_num_seqs=1, queue_timeout=0.05))
    bench.engine.submit(bench.job("a", PROMPT, 100_000))
    bench.engine.submit(bench.job("b", PROMPT, 1))
    until = time.monotonic() + 5
    found: list[tuple[str, Event]] = []
    while time.monotonic() < until and not any(name == "b" for name, _ in found):
        found += bench.engine.step()
    [(_, failed)] = [each for each in found if each[0] == "b"]
    assert isinstance(failed, Failed)
    assert failed.error.kind == "overloaded"
    assert failed.error.retry_after is not None


def test_an_empty_prompt_is_refused(bench: Bench) -> None:
    with pytest.raises(ServerError, match="empty"):
        bench.engine.submit(bench.job("a", (), 1))
    assert not bench.engine.busy


@pytest.fixture
def small_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence outgrows its slot after a few tokens, and not after hundreds."""
    monkeypatch.setattr(sizes, "CAPACITY_STEP", 32)
    monkeypatch.setattr(sizes, "GROWTH_CHARGED", 64)


@pytest.mark.usefixtures("small_growth")
def test_sequences_that_outgrow_the_memory_are_preempted_and_resumed_unseen(folder: Path) -> None:
    bench = Bench(folder, ModelOptions(cache_block_tokens=8))
    engine = bench.engine
    engine.scheduler.limits.memory = 2 * engine.scheduler.limits.sequence_bytes(320)
    prompts = {name: ((PROMPT * 2)[place:], 160) for place, name in enumerate("ab")}
    answers, ends = run_all(bench, prompts)
    assert engine.stats().preemptions == 1
    for name, (prompt, tokens) in prompts.items():
        assert len(answers[name, 0]) == tokens
        bench.judge(prompt, answers[name, 0])
        assert ends[name, 0].usage.completion_tokens == tokens
    assert engine.stats().prompt_tokens < 2 * 200 + 64, "what was computed is kept"


@pytest.mark.even
def test_a_preempted_sequence_draws_on_as_if_nothing_had_been(bench: Bench) -> None:
    sampling = Sampling(temperature=1.0, seed=3, repetition_penalty=1.2)
    alone, _ = run_all(bench, {"a": (PROMPT, 20)}, sampling=sampling)
    engine = bench.engine
    watched = watch(engine)
    engine.submit(bench.job("a", PROMPT, 20, sampling=sampling))
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
        if steps in (8, 14) and engine.batch.running:
            engine.lifecycle.suspend(engine.batch.running[0])
    assert engine.stats().preemptions == 2
    assert watched["a", 0] == alone["a", 0]


@pytest.mark.usefixtures("small_growth")
def test_a_lone_sequence_that_outgrows_the_memory_ends_for_length(folder: Path) -> None:
    bench = Bench(folder, ModelOptions(cache_block_tokens=8))
    engine = bench.engine
    engine.scheduler.limits.memory = engine.scheduler.limits.sequence_bytes(320)
    _, ends = run_all(bench, {"a": (PROMPT, 2000)})
    assert ends["a", 0].reason == "length"
    assert 170 < ends["a", 0].usage.completion_tokens < 250


def test_some_options_change_while_it_runs_and_others_are_refused(bench: Bench) -> None:
    bench.engine.reconfigure({"target_gap_ms": 50.0})
    assert bench.engine.scheduler.limits.target_gap == 0.05
    with pytest.raises(ServerError, match="kv_bits cannot change"):
        bench.engine.reconfigure({"kv_bits": 4})
    with pytest.raises(ServerError, match="target_gap_ms"):
        bench.engine.reconfigure({"target_gap_ms": -1})


def test_a_smaller_share_of_memory_holds_from_then_on(folder: Path) -> None:
    bench = Bench(folder, ModelOptions(cache_block_tokens=8))
    run_all(bench, {"a": (PROMPT, 30), "b": (PROMPT[::-1], 30)})
    before = bench.engine.stats()
    share = before.weight_bytes + 256 * 1024
    bench.engine.reconfigure({"memory_bytes": share})
    after = bench.engine.stats()
    assert after.cache.bytes <= after.cache.limit_bytes < before.cache.bytes
    assert after.kv_limit_bytes + after.cache.limit_bytes <= 256 * 1024
    with pytest.raises(ServerError, match="MiB"):
        bench.engine.submit(bench.job("big", PROMPT * 3, 4000))
    answers, _ = run_all(bench, {"c": (PROMPT[:20], 4)})
    bench.judge(PROMPT[:20], answers["c", 0])


def test_short_prompts_that_come_together_are_computed_in_one_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = msgspec.structs.replace(PLAN, prefill_chunk=256)
    bench = Bench(folder, ModelOptions(prefix_cache=False), plan)
    passes = shapes_of_passes(bench, monkeypatch)
    given = {f"r{n}": (tuple((place * 7 + n * 13) % 250 for place in range(12 + n)), 8) for n in range(6)}
    answers, _ = run_all(bench, given)
    assert passes[0] == (6, 17), "as many prompts, padded to the longest"
    assert {width for _, width in passes[1:]} == {1}, "and no other pass of prompts"
    for name, (prompt, _count) in given.items():
        bench.judge(prompt, answers[name, 0])


def test_prompts_of_a_model_whose_sequences_run_alone_are_computed_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_one_at_a_time(monkeypatch)
    bench = Bench(folder, ModelOptions(), msgspec.structs.replace(PLAN, prefill_chunk=256))
    passes = shapes_of_passes(bench, monkeypatch)
    given = {f"r{n}": (tuple((place * 7 + n * 13) % 250 for place in range(12 + n)), 6) for n in range(4)}
    answers, _ = run_all(bench, given)
    assert {count for count, _ in passes} == {1}
    for name, (prompt, _count) in given.items():
        bench.judge(prompt, answers[name, 0])


@pytest.mark.parametrize("overlaps", [True, False])
def test_sequences_come_and_go_wherever_a_step_is_started(folder: Path, overlaps: bool) -> None:
    bench = Bench(folder, ModelOptions(), msgspec.structs.replace(PLAN, overlaps=overlaps))
    given = {f"r{n}": (PROMPT[: 9 + 5 * n], 1 + 3 * n) for n in range(6)}
    for _ in range(2):  # the second time from the cache
        answers, ends = run_all(bench, given)
        for name, (prompt, count) in given.items():
            bench.judge(prompt, answers[name, 0])
            assert ends[name, 0].usage.completion_tokens == count


def alone(model: nn.Module) -> tuple[SoloGroup, Slot]:
    """A sequence of six tokens in a group whose sequences run one at a time."""
    group = SoloGroup(model, CacheLayout.learn(model, computed_prompt(model, (1, 2))))
    slot = group.reserve(SlotRequest(length=6, growth=8, length_class=0))
    group.join(slot, computed_prompt(model, range(1, 7)), shift=0)
    return group, slot


@pytest.mark.even
def test_a_sequence_with_caches_of_its_own_is_seen_as_of_an_earlier_position(folder: Path) -> None:
    model = Bench(folder, ModelOptions()).model
    group, slot = alone(model)
    group.forward(mx.array([[3]]))
    view = slot.view(5)
    assert [layer.offset for layer in view] == [5] * len(view)
    assert slot.length == 7
    for layer, own in zip(view, computed_prompt(model, range(1, 6)), strict=True):
        for held, expected in zip(layer.state[:2], own.state[:2], strict=True):
            assert mx.allclose(held[:, :, :5], expected[:, :, :5], atol=1e-5)


def test_a_streaming_interval_gathers_tokens(folder: Path) -> None:
    bench = Bench(folder, ModelOptions(stream_interval=5))
    found = events_of(bench, bench.job("a", PROMPT, 20))
    steps = []
    engine = bench.engine
    engine.submit(bench.job("b", PROMPT, 20))
    while engine.busy:
        steps.append(sum(isinstance(event, PartDelta) for _, event in engine.step()))
    assert len([count for count in steps if count]) <= 5
    assert any(isinstance(event, Finished) for _, event in found)


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_gpu_computes_the_next_step_while_a_draw_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, overlaps: bool
) -> None:
    engine = bench.new_engine(msgspec.structs.replace(bench.plan, overlaps=overlaps))
    engine.submit(bench.job("a", PROMPT, 40))
    for _ in range(10):
        engine.step()
    order: list[str] = []

    def noted(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def noting(*given: Any, **named: Any) -> Any:
            order.append(name)
            return method(*given, **named)

        monkeypatch.setattr(owner, name, noting)

    for method in ("sample", "forward", "read"):
        noted(engine.batch, method)
    noted(mx, "async_eval")
    engine.step()
    if overlaps:
        assert order == ["sample", "async_eval", "forward", "async_eval", "read"]
    else:
        assert order == ["forward", "async_eval", "sample", "async_eval", "read"]


def test_joining_and_leaving_write_no_other_sequence(bench: Bench) -> None:
    engine = bench.engine
    for place in range(4):
        engine.submit(bench.job(f"r{place}", PROMPT[: 20 + place], 200))
    for _ in range(10):
        engine.step()

    def slots() -> dict[str, int]:
        return {each.sequence.request.job.id: each.slot.index for each in engine.batch.running}

    rows = slots()
    group = engine.batch.running[0].slot.group
    assert isinstance(group, BatchedGroup)
    cache = group.caches[0]
    assert isinstance(cache, BatchedAttention)
    before = {name: mx.array(cache.buffers[0][slot, :, :20]) for name, slot in rows.items()}
    mx.eval(before)
    engine.cancel("r1")
    engine.submit(bench.job("new", PROMPT[:50], 5))
    for _ in range(8):
        engine.step()
    for name in ("r0", "r2", "r3"):
        assert mx.array_equal(cache.buffers[0][rows[name], :, :20], before[name])
    stayed = {name: slot for name, slot in rows.items() if name != "r1"}
    assert slots().items() >= stayed.items()
