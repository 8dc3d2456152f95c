"""Pictures whose tokens see each other: computed whole whatever the chunks, and found again in the caches."""

from typing import Any

import msgspec
import pytest

from pippin.core.events import PromptEcho, Token
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.step import prefill
from pippin.engines.language.step.prefill import Prefill
from pippin.engines.language.vision.media import Span
from tests.engines.language.bench import PLAN
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

CHUNK = 8
WIDE, TALL, SMALL = picture(60, 28, 1), picture(20, 52, 2), picture(17, 19, 3)
QUESTION = "What is in the picture, and where? " * 3
# Without windows of attention, prompts go on from any block that is known, within a picture too.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3", {}),
    "gemma4": ("gemma4", {}),
    "gemma4_unified": ("gemma4_unified", {}),
    "shared_keys": ("gemma4", {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    "no_windows": ("gemma3", {"sliding_window_pattern": 1}),
}
Chunks = dict[str, list[Span]]


QUICK = ("no_windows", "shared_keys")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in FAMILIES],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionBench:
    family, text = FAMILIES[request.param]
    folder = tiny_vision_model(family, tmp_path_factory.mktemp("models") / family, **text)
    return VisionBench(folder, plan=msgspec.structs.replace(PLAN, prefill_chunk=CHUNK))


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Chunks:
    """Of prompts that are computed from now on, by the request."""
    found: Chunks = {}
    compute = Prefill.compute

    def noted(self: Prefill, prompt: Any, most: int, **when: Any) -> Any:
        start = prompt.computed
        result = compute(self, prompt, most, **when)
        if result[1] == [prompt]:
            found.setdefault(prompt.request.job.id, []).append((start, prompt.computed))
        return result

    monkeypatch.setattr(Prefill, "compute", noted)
    return found


def spans(bench: VisionBench, job: LanguageJob) -> tuple[Span, ...]:
    assert job.media is not None
    return job.media.spans(bench.model.bidirectional)


def test_a_picture_larger_than_a_chunk_is_computed_in_one(bench: VisionBench, chunks: Chunks) -> None:
    job = bench.job("a", WIDE, QUESTION)
    [(start, stop)] = spans(bench, job)
    assert stop - start > CHUNK
    assert bench.alone(job) == bench.judged(QUESTION, [WIDE])
    assert len(chunks["a"]) > 10
    assert [span for span in chunks["a"] if span[0] <= start and stop <= span[1]]


def test_several_pictures_keep_whole_beside_texts(bench: VisionBench, chunks: Chunks) -> None:
    words = "Which of these is larger, and which is left of the others?"
    jobs = {
        "text": bench.job("text", "A text that runs on while pictures are looked at.", tokens=24),
        "three": bench.job("three", WIDE, SMALL, TALL, words),
        "other": bench.job("other", "Before", TALL, "and after it, " * 4, SMALL),
    }
    together, _ = bench.run(*jobs.values(), engine=bench.new_engine())
    assert together["three"] == bench.judged(words, [WIDE, SMALL, TALL])
    assert len(spans(bench, jobs["three"])) == 3
    for name in ("three", "other"):
        ends = {end for _, end in chunks[name]}
        assert not [end for start, stop in spans(bench, jobs[name]) for end in ends if start < end < stop]
    assert together == {name: bench.alone(job) for name, job in jobs.items()}


def test_what_follows_a_known_picture_is_answered_as_alone(bench: VisionBench) -> None:
    engine = bench.new_engine()
    assert engine.prefixes.keeps
    bench.run(bench.job("a", "Look here: ", WIDE, QUESTION), engine=engine)
    cached = {}
    for name, words in (("other", "!"), ("longer", QUESTION + "Why?"), ("same", QUESTION)):
        job = bench.job(name, "Look here: ", WIDE, words)
        answer, ends = bench.run(job, engine=engine)
        assert answer[name] == bench.alone(job)
        cached[name] = ends[name].usage.cached_tokens
    [(start, stop)] = spans(bench, job)
    assert cached["same"] > stop
    if engine.prefixes.has_snapshots:  # of the ends of chunks alone, none of which lies within the picture
        assert not start < cached["other"] < stop
    else:
        assert start < cached["other"] < stop < cached["longer"]


def test_scores_of_a_prompt_do_not_depend_on_chunks(
    bench: VisionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for size in (512, 5):
        monkeypatch.setattr(prefill, "SCORED_CHUNK", size)
        engine = bench.new_engine()
        engine.submit(bench.job("a", WIDE, "Where?", prompt_logprobs=0))
        events = []
        while engine.busy:
            events += [event for _, event in engine.step()]
        [echo] = [event for event in events if isinstance(event, PromptEcho)]
        found.append([scored(token) for token in echo.tokens])
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    assert len(set(found[0])) > 20


def scored(token: Token) -> float:
    return 0.0 if token.logprob is None else token.logprob
