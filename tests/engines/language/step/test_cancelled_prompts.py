"""A client that gives up on a long prompt and asks again: what was computed is kept, and the retry goes on there."""

from pathlib import Path

import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.events import Finished
from tests.engines.language.bench import PLAN, Bench, run_all, watch
from tests.engines.tiny_models import TinyModels

BLOCK = 8
PROMPT = tuple(place * 11 % 250 for place in range(160))
KINDS = ["llama", "gemma3_text", "qwen3_next", "mamba2", "lfm2"]
"""Attention alone, sliding windows, and recurrent state beside and without attention."""


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tiny_models: TinyModels) -> Path:
    return tiny_models(request.param)


@pytest.mark.parametrize("chunk", [32, 30])
def test_a_cancelled_prompt_resumes(folder: Path, chunk: int) -> None:
    """Also where a chunk does not end with a block, as beside streams, whose gaps say how long it may be."""
    plan = msgspec.structs.replace(PLAN, prefill_chunk=chunk)
    bench = Bench(folder, ModelOptions(cache_block_tokens=BLOCK), plan)
    bench.engine.submit(bench.job("given up", PROMPT, 4))
    while bench.engine.stats().prompt_tokens < 90:
        bench.engine.step()
    computed = bench.engine.stats().prompt_tokens
    assert computed < len(PROMPT)
    bench.engine.cancel("given up")
    answers, ends = run_all(bench, {"retry": (PROMPT, 4)})
    assert computed - BLOCK < ends["retry", 0].usage.cached_tokens <= computed
    bench.judge(PROMPT, answers["retry", 0])


def test_a_prompt_that_is_cancelled_beside_a_stream_resumes(folder: Path) -> None:
    bench = Bench(folder, ModelOptions(cache_block_tokens=BLOCK))
    engine = bench.engine
    engine.submit(bench.job("stream", PROMPT[:5], 400))
    for _ in range(12):
        engine.step()
    before = engine.stats().prompt_tokens
    engine.submit(bench.job("given up", PROMPT, 4))
    while engine.stats().prompt_tokens - before < 90:
        engine.step()
    computed = engine.stats().prompt_tokens - before
    engine.cancel("given up")
    engine.submit(bench.job("retry", PROMPT, 4))
    ends: list[Finished] = []
    while not ends:
        ends += [event for name, event in engine.step() if name == "retry" and isinstance(event, Finished)]
    assert min(computed, len(PROMPT) - 1) - BLOCK < ends[0].usage.cached_tokens
    engine.cancel("stream")


@pytest.mark.parametrize("given", [20, 24, 27])
def test_whoever_gives_up_an_answer_goes_on_from_what_there_is(folder: Path, given: int) -> None:
    bench = Bench(folder, ModelOptions(cache_block_tokens=BLOCK))
    answers = watch(bench.engine)
    bench.engine.submit(bench.job("given up", PROMPT, 100))
    while len(answers.get(("given up", 0), [])) < given:
        bench.engine.step()
    bench.engine.cancel("given up")
    told = (*PROMPT, *answers["given up", 0])
    bench.judge(PROMPT, answers["given up", 0])
    further = (*told, 7, 9)
    later, ends = run_all(bench, {"further": (further, 12)})
    # The last token was drawn and not computed. A window is remembered as of the end of a block before.
    assert ends["further", 0].usage.cached_tokens >= (len(told) - 1) // BLOCK * BLOCK
    bench.judge(further, later["further", 0])
