"""Prompts of which a part is computed: the answers are those to the whole prompt whose left-out tokens are hidden."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from benchmarks.specprefill import first_layers

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Finished, Progress
from pippin.core.requests import AskedSpecPrefill, Sampling
from pippin.engines.device import decide, find_facts
from pippin.engines.language.specprefill import policy
from pippin.engines.language.specprefill.selection import Selection
from tests.engines.language.bench import PLAN, TIE, Bench, run_all
from tests.engines.tiny_models import TinyModels, tiny_model

ON = AskedSpecPrefill(enabled=True)
OFF = AskedSpecPrefill(enabled=False)
LONG = tuple(place * place % 251 for place in range(400))


@pytest.fixture(scope="module")
def folders(tiny_models: TinyModels) -> dict[str, Path]:
    names = ("llama", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss", "qwen3_next")
    return {name: tiny_models(name) for name in names} | {"draft": tiny_models("llama", seed=9)}


@pytest.fixture
def selections(monkeypatch: pytest.MonkeyPatch) -> list[Selection]:
    """Those that are chosen in a test."""
    found: list[Selection] = []
    choose = policy.choose

    def noting(*given: Any) -> Selection:
        found.append(choose(*given))
        return found[-1]

    monkeypatch.setattr(policy, "choose", noting)
    return found


def options(folders: dict[str, Path], **changes: Any) -> ModelOptions:
    given: dict[str, Any] = {
        "cache_block_tokens": 8,
        "specprefill": True,
        "specprefill_draft_model": str(folders["draft"]),
        "specprefill_threshold": 200,
    }
    return ModelOptions(**(given | changes))


class Hiding:
    """A layer's cache of a whole text, to whose tokens some are hidden."""

    def __init__(self, hidden: mx.array) -> None:
        self.hidden = hidden
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values

    def make_mask(self, count: int, **_: Any) -> mx.array:
        places = mx.arange(count)
        own = places[:, None] == places
        return ((places[:, None] >= places) & (~self.hidden[:count] | own))[None, None]


def judge(
    bench: Bench, prompt: tuple[int, ...], answer: list[int], selection: Selection, tie: float = TIE
) -> None:
    """Every token is what the model says after the whole text, what was left out of the prompt hidden."""
    kept = {place for span in selection.spans for place in span}
    text = (*prompt, *answer)
    hidden = mx.array([place < len(prompt) and place not in kept for place in range(len(text))])
    logits = bench.model(mx.array([text]), cache=[Hiding(hidden) for _ in bench.model.layers])[0]
    for place, token in enumerate(answer):
        before = logits[len(prompt) + place - 1]
        assert (before.max() - before[token]).item() < tie, f"token {place}"


@pytest.mark.parametrize(
    ("architecture", "lookup"), [("llama", False), ("llama", True), ("qwen3_moe", False)]
)
def test_answers_are_those_to_the_prompt_whose_left_out_tokens_are_hidden(
    folders: dict[str, Path], architecture: str, lookup: bool, selections: list[Selection]
) -> None:
    bench = Bench(folders[architecture], options(folders, prompt_lookup=lookup))
    prompts = {"long": (LONG, 20), "short": (LONG[:60], 30), "other": (LONG[50:350], 12)}
    answers, ends = run_all(bench, prompts)
    assert sorted(each.length for each in selections) == [300, 400]
    for name in ("long", "other"):
        selection = next(each for each in selections if each.length == len(prompts[name][0]))
        assert selection.left_out > 0.5 * selection.length
        judge(bench, prompts[name][0], answers[name, 0], selection)
        assert ends[name, 0].usage.prompt_tokens == selection.length
    bench.judge(LONG[:60], answers["short", 0])


def test_the_choices_of_a_request_share_the_selection(
    folders: dict[str, Path], selections: list[Selection]
) -> None:
    bench = Bench(folders["llama"], options(folders))
    answers, _ = run_all(bench, {"a": (LONG, 10)}, n=3)
    assert len(selections) == 1
    for choice in range(3):
        judge(bench, LONG, answers["a", choice], selections[0])


def test_with_all_kept_the_answer_is_the_plain_one(folders: dict[str, Path]) -> None:
    plain, _ = run_all(Bench(folders["llama"], ModelOptions(cache_block_tokens=8)), {"a": (LONG, 20)})
    bench = Bench(folders["llama"], options(folders, specprefill_keep_pct=1.0))
    assert run_all(bench, {"a": (LONG, 20)})[0] == plain
    asked = AskedSpecPrefill(enabled=True, keep=1.0)
    assert (
        run_all(Bench(folders["llama"], options(folders)), {"a": (LONG, 20)}, specprefill=asked)[0] == plain
    )


def test_the_prefix_cache_has_nothing_of_a_prompt_with_gaps_behind_the_first(
    folders: dict[str, Path], selections: list[Selection]
) -> None:
    bench = Bench(folders["llama"], options(folders, specprefill_keep_pct=0.2))
    _, sparse = run_all(bench, {"a": (LONG, 20)})
    answers, ends = run_all(bench, {"b": (LONG, 20)}, specprefill=OFF)
    assert len(selections) == 1
    assert ends["b", 0].usage.cached_tokens <= selections[0].exact(300) < 300
    assert sparse["a", 0].usage.stored_tokens <= selections[0].exact(400)
    bench.judge(LONG, answers["b", 0])
    # Now all of it is known, and nothing is left to be scored.
    again, ends = run_all(bench, {"c": (LONG, 20)})
    assert ends["c", 0].usage.cached_tokens == 392
    assert len(selections) == 1
    assert again["c", 0] == answers["b", 0]


def test_what_the_prefix_cache_has_is_kept_whole(
    folders: dict[str, Path], selections: list[Selection]
) -> None:
    bench = Bench(folders["llama"], options(folders))
    run_all(bench, {"a": (LONG[:120], 1)})
    answers, ends = run_all(bench, {"b": (LONG, 20)})
    assert ends["b", 0].usage.cached_tokens == 120
    assert selections[0].exact(400) >= 120
    assert selections[0].left_out > 100
    judge(bench, LONG, answers["b", 0], selections[0])


def test_a_request_decides_for_itself(folders: dict[str, Path], selections: list[Selection]) -> None:
    bench = Bench(folders["llama"], options(folders, prefix_cache=False))
    run_all(bench, {"a": (LONG, 2)}, specprefill=OFF)
    assert not selections
    run_all(bench, {"a": (LONG[:150], 2)})  # below the threshold
    assert not selections
    run_all(bench, {"a": (LONG[:150], 2)}, specprefill=ON)
    assert [each.length for each in selections] == [150]
    run_all(bench, {"a": (LONG, 2)}, specprefill=AskedSpecPrefill(keep=0.9))
    assert 0 < selections[1].left_out < 60
    run_all(bench, {"a": (LONG, 2)}, prompt_logprobs=0)
    assert len(selections) == 2


def test_a_sequence_that_is_preempted_goes_on_from_the_same_tokens(
    folders: dict[str, Path], selections: list[Selection]
) -> None:
    sampling = Sampling(temperature=1.0, seed=5)
    expected, _ = run_all(Bench(folders["llama"], options(folders)), {"a": (LONG, 30)}, sampling=sampling)
    bench = Bench(folders["llama"], options(folders))
    bench.engine.submit(bench.job("a", LONG, 30, sampling=sampling))
    found: list[int] = []
    accept = bench.engine.lifecycle.accept

    def noting(running: Any, sampled: Any) -> None:
        found.append(sampled.token)
        accept(running, sampled)

    bench.engine.lifecycle.accept = noting  # type: ignore[method-assign]
    while bench.engine.busy:
        bench.engine.step()
        if len(found) == 12 and bench.engine.lifecycle.preemptions == 0:
            bench.engine.lifecycle.suspend(bench.engine.batch.running[0])
    assert bench.engine.lifecycle.preemptions == 1
    assert found == expected["a", 0]
    assert len(selections) == 2  # one for each bench: the preempted prompt is not scored again


def test_progress_counts_what_is_left_out(folders: dict[str, Path]) -> None:
    bench = Bench(folders["llama"], options(folders))
    bench.engine.submit(bench.job("a", LONG, 3))
    told: list[int] = []
    while bench.engine.busy:
        told += [event.done for _, event in bench.engine.step() if isinstance(event, Progress)]
    assert told == sorted(told)
    assert told[-1] == len(LONG)


def test_a_prompt_that_is_scored_can_be_cancelled(
    folders: dict[str, Path], selections: list[Selection]
) -> None:
    bench = Bench(folders["llama"], options(folders))
    bench.engine.submit(bench.job("a", LONG, 3))
    bench.engine.step()
    assert bench.engine.scheduler.prefilling[0].scoring is not None
    bench.engine.cancel("a")
    assert not bench.engine.busy
    answers, _ = run_all(bench, {"b": (LONG, 5)})
    judge(bench, LONG, answers["b", 0], selections[0])


def test_sequences_decode_while_a_prompt_is_scored(folders: dict[str, Path]) -> None:
    bench = Bench(folders["llama"], options(folders))
    bench.engine.submit(bench.job("runs", (1, 2, 3), 200))
    for _ in range(5):
        bench.engine.step()
    bench.engine.submit(bench.job("long", LONG * 2, 1))
    before, steps = bench.engine.lifecycle.completion_tokens, 0
    ended = False
    while not ended:
        events = bench.engine.step()
        steps += 1
        ended = any(name == "long" and isinstance(event, Finished) for name, event in events)
    assert steps > 5
    assert bench.engine.lifecycle.completion_tokens - before >= steps - 1


@pytest.mark.parametrize("architecture", ["gemma3_text", "gpt_oss", "qwen3_next"])
def test_models_whose_layers_forget_are_refused(folders: dict[str, Path], architecture: str) -> None:
    with pytest.raises(ServerError, match="specprefill cannot be used with this model") as refusal:
        Bench(folders[architecture], options(folders))
    assert refusal.value.report.param == "specprefill"


def test_the_draft_model_must_be_named_and_read_the_same_tokens(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ServerError, match="specprefill_draft_model"):
        Bench(folders["llama"], options(folders, specprefill_draft_model=None))
    other = tiny_model("llama", tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"a"', '"zz"'))
    with pytest.raises(ServerError, match="another vocabulary"):
        Bench(folders["llama"], options(folders, specprefill_draft_model=str(other)))


def test_a_model_that_takes_no_positions_from_its_caches_is_refused(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = mx.fast.rope

    def by_index(x: mx.array, dims: int, **given: Any) -> mx.array:
        return own(x, dims, **(given | {"offset": 0}))

    bench = Bench(folders["llama"], ModelOptions())
    monkeypatch.setattr(mx.fast, "rope", by_index)
    bench.options = options(folders)
    with pytest.raises(ServerError, match="otherwise than in their place"):
        bench.new_engine(PLAN)


def test_importance_is_what_the_draft_attends_to(folders: dict[str, Path]) -> None:
    bench = Bench(folders["llama"], options(folders))
    loaded = bench.engine.prefill._model.specprefill
    assert loaded is not None
    scorer = loaded.scorer
    scoring = scorer.open(LONG)
    while scoring.remaining:
        scorer.read(scoring, 64)
    found = scorer.importance(scoring)
    assert found.shape == (len(LONG),)
    assert np.isfinite(found).all()
    assert 0 < found.max() <= 1


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(600)
def test_a_real_model_with_a_draft_of_its_first_layers(
    demo_model: Path, tmp_path: Path, selections: list[Selection]
) -> None:
    draft = first_layers(demo_model, 6, tmp_path / "draft")
    given = ModelOptions(
        specprefill=True, specprefill_draft_model=str(draft), specprefill_threshold=100, prefix_cache=False
    )
    bench = Bench(demo_model, given, decide(find_facts(), given))
    filler = "The road went on over the hills, and the sheep looked up as the cart passed. "
    prompt = tuple(bench.tokenizer.encode(filler * 10 + "The capital of France is"))
    plain, _ = run_all(bench, {"a": (prompt, 3)}, specprefill=OFF)
    bench.judge(prompt, plain["a", 0], tie=5e-3)
    whole, _ = run_all(bench, {"a": (prompt, 3)}, specprefill=AskedSpecPrefill(enabled=True, keep=1.0))
    assert whole == plain
    assert not selections
    sparse, _ = run_all(bench, {"a": (prompt, 3)})
    assert 0.2 * len(prompt) < selections[0].kept < 0.45 * len(prompt)
    judge(bench, prompt, sparse["a", 0], selections[0], tie=5e-3)
    assert bench.tokenizer.decode(sparse["a", 0]).startswith(" Paris")
