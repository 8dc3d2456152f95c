"""Proposals change the number of steps, and nothing that a client sees."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.language.step.speculation import verification
from tests.engines.language.bench import Bench, run_all, watch
from tests.engines.tiny_models import tiny_model

PHRASE = tuple(place * 17 % 240 for place in range(12))
REWINDABLE = ("llama", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    names = (*REWINDABLE, "mamba2", "qwen3_next")
    return {name: tiny_model(name, root / name) for name in names} | {
        "other": tiny_model("llama", root / "other", seed=8)
    }


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculate in every step, whether it pays or not."""
    monkeypatch.setattr(verification, "UNPROPOSED", 0)
    monkeypatch.setattr(verification, "PATIENCE", 1 << 30)


def options(**changes: object) -> ModelOptions:
    return ModelOptions(cache_block_tokens=8, num_draft_tokens=4, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", REWINDABLE)
def test_prompt_lookup_gives_the_models_own_answer(folders: dict[str, Path], architecture: str) -> None:
    bench = Bench(folders[architecture], options(prompt_lookup=True))

    @settings(
        max_examples=4,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12), st.integers(1, 40)), min_size=1, max_size=5)
    )
    def check(plan: list[tuple[int, int, int]]) -> None:
        prompts = {
            f"r{place}": (PHRASE * repeats + PHRASE[:cut], tokens)
            for place, (repeats, cut, tokens) in enumerate(plan)
        }
        answers, _ = run_all(bench, prompts)
        for name, (prompt, tokens) in prompts.items():
            assert len(answers[name, 0]) == tokens
            bench.judge(prompt, answers[name, 0])

    check()
    assert bench.engine.stats().draft_tokens > 0


@pytest.mark.parametrize(("draft", "share"), [("llama", 0.9), ("other", 0.0)])
def test_a_draft_model_gives_the_models_own_answer(
    folders: dict[str, Path], draft: str, share: float
) -> None:
    bench = Bench(folders["llama"], options(draft_model_path=str(folders[draft])))
    prompts = {f"r{place}": ((*PHRASE, place, 3), 30) for place in range(3)}
    answers, ends = run_all(bench, prompts)
    for name, (prompt, _) in prompts.items():
        assert len(answers[name, 0]) == 30
        bench.judge(prompt, answers[name, 0])
    drafts = sum(end.usage.draft_tokens for end in ends.values())
    accepted = sum(end.usage.accepted_tokens for end in ends.values())
    assert drafts > 0
    assert accepted >= share * drafts
    if share:
        assert bench.engine.stats().steps < 30


def test_a_sequence_that_is_preempted_between_proposals_goes_on_as_without(folders: dict[str, Path]) -> None:
    sampling = Sampling(temperature=1.0, seed=5)
    expected, _ = run_all(Bench(folders["llama"], options()), {"a": (PHRASE, 30)}, sampling=sampling)
    bench = Bench(folders["llama"], options(draft_model_path=str(folders["llama"])))
    engine = bench.engine
    answers = watch(engine)
    engine.submit(bench.job("a", PHRASE, 30, sampling=sampling))
    while not (engine.batch.running and engine.batch.running[0].next_token is not None):
        engine.step()
    engine.lifecycle.suspend(engine.batch.running[0])
    engine.speculation = None  # the steps after it are plain ones
    while engine.busy:
        engine.step()
    assert answers["a", 0] == expected["a", 0]


def test_seeded_sampling_is_the_same_with_and_without(folders: dict[str, Path]) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    found = []
    for draft in (None, str(folders["llama"])):
        bench = Bench(folders["llama"], options(draft_model_path=draft))
        answers, _ = run_all(bench, {"a": (PHRASE * 2, 40)}, sampling=sampling)
        found.append(answers["a", 0])
    assert found[0] == found[1]


def test_what_is_drawn_with_proposals_has_the_models_distribution(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pearson's test over pairs of tokens, of which the second was judged beside a proposal."""
    monkeypatch.setattr(verification, "MOST_SEQUENCES", 64)
    bench = Bench(folders["llama"], options(draft_model_path=str(folders["other"])))
    draws, kept = 500, 3
    sampling = Sampling(temperature=1.0, top_k=kept)
    seen: Counter[tuple[int, int]] = Counter()
    engine = bench.engine
    watched = watch(engine)
    for seed in range(draws):
        engine.submit(replace(bench.job(f"r{seed}", PHRASE, 3, sampling=sampling), seed=seed))
    while engine.busy:
        engine.step()
    for answer in watched.values():
        seen[answer[1], answer[2]] += 1
    assert engine.stats().draft_tokens >= draws

    def likeliest(prompt: tuple[int, ...]) -> dict[int, float]:
        logits = bench.model(mx.array([prompt]))[0, -1]
        best = mx.argsort(-logits)[:kept]
        shares = mx.softmax(logits[best])
        return dict(zip(np.array(best).tolist(), np.array(shares).tolist(), strict=True))

    expected: Counter[tuple[int, int]] = Counter()
    for first, share in likeliest(PHRASE).items():
        for second, after in likeliest((*PHRASE, first)).items():
            for third, last in likeliest((*PHRASE, first, second)).items():
                expected[second, third] += draws * share * after * last  # type: ignore[assignment]
    assert not seen.keys() - expected.keys()
    distance = sum((seen[pair] - count) ** 2 / count for pair, count in expected.items())
    assert distance < 2.5 * len(expected) + 10, "far beyond chance"


@pytest.mark.parametrize("architecture", ["mamba2", "qwen3_next"])
@pytest.mark.parametrize("how", ["prompt_lookup", "draft_model_path"])
def test_recurrent_models_refuse_it_by_name(folders: dict[str, Path], architecture: str, how: str) -> None:
    value = True if how == "prompt_lookup" else str(folders["llama"])
    with pytest.raises(ServerError, match=how) as caught:
        Bench(folders[architecture], options(**{how: value}))
    assert caught.value.report.kind == "load_failed"


def test_it_rests_when_it_does_not_pay(monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]) -> None:
    monkeypatch.setattr(verification, "PATIENCE", 4)
    monkeypatch.setattr(verification, "UNPROPOSED", 2)
    bench = Bench(folders["llama"], options(draft_model_path=str(folders["other"])))
    judge = bench.engine.speculation
    assert judge is not None
    judge._plain, judge._proposed = 1e-9, 1.0
    _, ends = run_all(bench, {"a": (PHRASE, 60)})
    assert ends["a", 0].usage.draft_tokens <= 8 * 4


@pytest.mark.parametrize("step", range(1, 7))
def test_a_sequence_that_leaves_amid_proposals_changes_nothing_for_the_others(
    folders: dict[str, Path], step: int
) -> None:
    bench = Bench(folders["llama"], options(draft_model_path=str(folders["llama"])))
    engine, answers = bench.engine, watch(bench.engine)
    prompts = {f"r{place}": (*PHRASE, place, 3) for place in range(4)}
    for name in ("r0", "r1", "r2"):
        engine.submit(bench.job(name, prompts[name], 30))
    for _ in range(step):
        engine.step()
    engine.cancel("r1")
    engine.submit(bench.job("r3", prompts["r3"], 30))  # takes its place
    while engine.busy:
        engine.step()
    assert engine.stats().draft_tokens > 0
    assert len(answers.get(("r1", 0), ())) < 30
    for name in ("r0", "r2", "r3"):
        assert len(answers[name, 0]) == 30
        bench.judge(prompts[name], answers[name, 0])
