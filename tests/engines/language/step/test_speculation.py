"""Proposals change the number of steps, and nothing that a client sees."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.events import Finished
from pippin.core.requests import Sampling
from pippin.engines.device import WITH_VNNI
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.loading import drafting
from pippin.engines.language.step.sequences import Running, Sequence
from pippin.engines.language.step.speculation import proposers
from pippin.engines.language.step.speculation.pace import Pace
from pippin.engines.language.step.speculation.proposers import Lookup, Proposal
from pippin.engines.language.step.speculation.verification import Speculation
from tests.engines.language.bench import Bench, Eager, propose_nothing, run_all, speculation_of, watch
from tests.engines.language.schedule_run import Knowing
from tests.engines.tiny_models import ARCHITECTURES, ODD_ONES, tiny_model

PHRASE = tuple(place * 17 % 240 for place in range(12))
REWINDABLE = (*ARCHITECTURES, *ODD_ONES)
AT_NIGHT = ("qwen3", "qwen3_moe", "gpt_oss", "qwen3_next", "bailing_moe_linear", "gemma2")
"""Which take tokens back from caches of the kinds of Llama, of Gemma 3, of Qwen 3.5 and of Bailing's hybrid model."""


@dataclass(eq=False)
class Text:
    """What a lookup asks of a sequence."""

    tokens: list[int]
    prompt: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()

    @property
    def request(self) -> SimpleNamespace:
        return SimpleNamespace(job=self)

    @property
    def decoder(self) -> SimpleNamespace:
        return SimpleNamespace(certain=(), allowed=len)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: tiny_model(name, root / name) for name in REWINDABLE} | {
        "other": tiny_model("llama", root / "other", seed=8)
    }


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculate in every step, whether it pays or not."""
    monkeypatch.setattr(drafting, "Pace", Eager)


def options(**changes: object) -> ModelOptions:
    return ModelOptions(cache_block_tokens=8, num_draft_tokens=4, **changes)  # type: ignore[arg-type]


@pytest.mark.even
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=pytest.mark.long if name in AT_NIGHT else ()) for name in REWINDABLE],
)
def test_prompt_lookup_gives_the_models_own_answer(folders: dict[str, Path], architecture: str) -> None:
    bench = Bench(folders[architecture], options(prompt_lookup=True))

    @settings(
        max_examples=3,
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
    said: dict[tuple[str, int], list[int]] = {}
    for _ in range(2):  # the second time, what was said is proposed: an answer may repeat nothing
        said, _ = run_all(bench, {"a": (PHRASE, 20)}, predicted=said)
        bench.judge(PHRASE, said["a", 0])
    assert bench.engine.stats().draft_tokens > 0


@pytest.mark.even
@pytest.mark.parametrize("architecture", ["gpt_oss", "gemma3_text"])
def test_windows_and_sinks_take_tokens_back_past_their_ends(architecture: str, tmp_path: Path) -> None:
    """Each third proposal is wrong, while the ring of a window of 20 or 24 tokens goes around several times."""
    folder = tiny_model(architecture, tmp_path / architecture)
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    sinks = [name for name in weights if name.endswith("sinks")]
    assert bool(sinks) == (architecture == "gpt_oss")
    weights |= {name: mx.random.normal(weights[name].shape) for name in sinks}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    bench = Bench(folder, options(prompt_lookup=True))
    speculation_of(bench.engine).proposer = Knowing(bench.model)
    prompts = {f"r{place}": (PHRASE * (1 + place) + PHRASE[: 3 * place], 72 + place) for place in range(4)}
    answers, ends = run_all(bench, prompts)
    for name, (prompt, _) in prompts.items():
        bench.judge(prompt, answers[name, 0])
        usage = ends[name, 0].usage
        assert 10 < usage.accepted_tokens < usage.draft_tokens - 5


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


@pytest.mark.even
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
    propose_nothing(engine)
    while engine.busy:
        engine.step()
    assert answers["a", 0] == expected["a", 0]


@pytest.mark.even
def test_seeded_sampling_is_the_same_with_and_without(folders: dict[str, Path]) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    found = []
    for draft in (None, str(folders["llama"])):
        bench = Bench(folders["llama"], options(draft_model_path=draft))
        answers, _ = run_all(bench, {"a": (PHRASE * 2, 40)}, sampling=sampling)
        found.append(answers["a", 0])
    assert found[0] == found[1]


@pytest.mark.even
def test_what_is_drawn_with_proposals_has_the_models_distribution(
    folders: dict[str, Path],
) -> None:
    """Pearson's test over pairs of tokens, of which the second was judged beside a proposal."""
    bench = Bench(folders["llama"], options(draft_model_path=str(folders["other"])))
    draws, kept = 500, 2

    def likeliest(prompt: tuple[int, ...]) -> tuple[dict[int, float], float]:
        """The tokens that are kept, and by how much the last of them leads the next."""
        logits = bench.model(mx.array([prompt]))[0, -1].astype(mx.float32)
        best = mx.argsort(-logits)[: kept + 1]
        shares = np.array(mx.softmax(logits[best[:kept]])).tolist()
        lead = logits[best[kept - 1]] - logits[best[kept]]
        return dict(zip(np.array(best[:kept]).tolist(), shares, strict=True)), lead.item()

    def pairs_after(prompt: tuple[int, ...]) -> Counter[tuple[int, int]] | None:
        """How many of each are expected; None where rounding may keep another token."""
        found: Counter[tuple[int, int]] = Counter()
        ways: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        for _ in range(3):
            further = []
            for said, share in ways:
                after, lead = likeliest((*prompt, *said))
                if lead < 0.05:
                    return None
                further += [((*said, token), share * each) for token, each in after.items()]
            ways = further
        for said, share in ways:
            found[said[1], said[2]] += draws * share  # type: ignore[assignment]
        return found

    prompts = (PHRASE[place:] + PHRASE[:place] for place in range(len(PHRASE)))
    prompt, expected = next((each, pairs) for each in prompts if (pairs := pairs_after(each)) is not None)
    sampling = Sampling(temperature=1.0, top_k=kept)
    seen: Counter[tuple[int, int]] = Counter()
    engine = bench.engine
    watched = watch(engine)
    for seed in range(draws):
        engine.submit(replace(bench.job(f"r{seed}", prompt, 3, sampling=sampling), seed=seed))
    while engine.busy:
        engine.step()
    for answer in watched.values():
        seen[answer[1], answer[2]] += 1
    assert engine.stats().draft_tokens >= draws
    assert not seen.keys() - expected.keys()
    distance = sum((seen[pair] - count) ** 2 / count for pair, count in expected.items())
    assert distance < 2.5 * len(expected) + 10, "far beyond chance"


@pytest.mark.parametrize("step", [1, 2, 3, 6])
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


@pytest.mark.even
def test_a_prediction_is_proposed_without_any_option(folders: dict[str, Path]) -> None:
    """The client knows all of the answer but one token: what comes after that is proposed again."""
    bench = Bench(folders["qwen3_next"], options())
    expected, _ = run_all(bench, {"a": (PHRASE, 40)})
    answer = expected["a", 0]
    engine, watched, ends = bench.engine, watch(bench.engine), []
    job = bench.job("b", PHRASE, 40)
    engine.submit(replace(job, prediction=(*answer[:20], (answer[20] + 1) % 256, *answer[21:])))
    steps = engine.stats().steps
    while engine.busy:
        ends += [event for _, event in engine.step() if isinstance(event, Finished)]
    assert watched["b", 0] == answer
    assert engine.stats().steps - steps < 30
    assert ends[0].usage.accepted_tokens >= 20


@pytest.mark.even
def test_a_prediction_of_something_else_changes_nothing(folders: dict[str, Path]) -> None:
    bench = Bench(folders["llama"], options())
    expected, _ = run_all(bench, {"a": (PHRASE, 30)})
    watched = watch(bench.engine)
    bench.engine.submit(replace(bench.job("b", PHRASE, 30), prediction=tuple(range(200))))
    while bench.engine.busy:
        bench.engine.step()
    assert watched["b", 0] == expected["a", 0]


@pytest.mark.even
@pytest.mark.parametrize("architecture", ["mamba2", "qwen3_next", "lfm2"])
def test_a_state_is_remembered_at_the_end_of_each_block_though_steps_are_longer(
    folders: dict[str, Path], architecture: str
) -> None:
    """The next turn begins where the last whole block of the answer ended."""
    prompt = PHRASE * 3
    answers, _ = run_all(Bench(folders[architecture], options()), {"a": (prompt, 41)})
    for _ in range(4):  # in 16 bits longer steps may say something else, and the same again
        bench = Bench(folders[architecture], options())
        answers, _ = run_all(bench, {"a": (prompt, 41)}, predicted=answers)
        if bench.engine.stats().accepted_tokens > 20:
            break
    assert bench.engine.stats().accepted_tokens > 20
    _, ends = run_all(bench, {"b": ((*prompt, *answers["a", 0], 5), 2)})
    assert ends["b", 0].usage.cached_tokens == (len(prompt) + 40) // 8 * 8


def proposed(lookup: Lookup, *wanted: tuple[Sequence, int]) -> list[list[int]]:
    return [each.tokens for each in lookup.propose(list(wanted))]


def test_lookups_follow_what_the_text_says_last() -> None:
    lookup = Lookup(in_text=True)
    sequence = cast(Sequence, Text([1, 2, 3, 1, 2, 4, 1, 2]))
    assert proposed(lookup, (sequence, 2)) == [[4, 1]]


def test_lookups_follow_the_place_with_most_in_common() -> None:
    """Three tokens stood twice before the last one's like, the earlier time with more of the text before them."""
    lookup = Lookup(in_text=True)
    sequence = cast(Sequence, Text([5, 6, 7, 8, 1, 6, 7, 8, 2, 5, 6, 7, 8]))
    assert lookup.propose([(sequence, 2)]) == [Proposal([1, 6], agreed=4)]


def test_a_long_text_is_read_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposers, "MOST_READ", 4)
    lookup = Lookup(in_text=True)
    sequence = cast(Sequence, Text([7, 8, 9, 1, 5, 6, 7, 8]))
    assert proposed(lookup, (sequence, 2)) == [[9, 1]]
    assert lookup._places[sequence].read == 4


def tokens_of(speculation: Speculation, running: list[Running]) -> list[list[int]]:
    return [each.tokens for each in speculation.proposals(running)]


def test_what_has_more_in_common_is_measured_apart_from_what_has_less() -> None:
    """A phrase of two tokens that is always followed otherwise takes nothing from a passage that is copied."""
    pace = Pace(4, costs=WITH_VNNI)
    for computed in (1, 1, 1, 5, 5, 4, 4, 3, 3, 2, 2):
        pace.times.observe(1, computed, 0.01 + 0.001 * computed)
    pace._trial = 1  # no trial is due
    speculation = Speculation(Lookup(in_text=True), pace)
    passage = list(range(20))
    text = Text([*passage, 50, 51, 60, 61, 3, 60, 61])
    sequence = cast(Sequence, text)
    running = [cast(Running, SimpleNamespace(sequence=text, growth=99, slot=SimpleNamespace(length=0)))]
    assert tokens_of(speculation, running) == [[3, 60]]
    for _ in range(20):
        speculation.judged(sequence, Proposal([3, 60]), [4])
    assert tokens_of(speculation, running) == [[3]], "the one that is tried"
    text.tokens += passage[:16]
    assert tokens_of(speculation, running) == [[16, 17, 18, 19]]


def test_a_prediction_is_left_where_it_is_wrong_and_followed_from_where_it_is_right_again() -> None:
    sequence = cast(Sequence, Text([1, 2, 10, 11], (1, 2), tuple(range(10, 30))))
    lookup = Lookup(in_text=False)
    assert proposed(lookup, (sequence, 3)) == [[12, 13, 14]]
    sequence.tokens += [99, 98]
    assert proposed(lookup, (sequence, 3)) == [[]]
    sequence.tokens += [20, 21]
    assert proposed(lookup, (sequence, 3)) == [[22, 23, 24]]
    sequence.tokens += list(range(22, 30))
    assert proposed(lookup, (sequence, 3)) == [[]]


@pytest.mark.even
def test_layers_are_computed_again_with_each_sequences_own_adapter(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences of different classes of lengths, which take tokens back after each step."""
    monkeypatch.setattr(sizes, "LENGTH_CLASSES", (30, 90))
    mx.random.seed(3)
    keys = [f"model.layers.{layer}.conv.in_proj" for layer in (0, 2)]
    weights = {f"{key}.lora_a": mx.random.normal((64, 4)) * 0.5 for key in keys}
    weights |= {f"{key}.lora_b": mx.random.normal((4, 192)) * 0.3 for key in keys}
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), weights)
    parameters = {"rank": 4, "scale": 1.0, "dropout": 0.0, "keys": ["conv.in_proj"]}
    config = {"fine_tune_type": "lora", "num_layers": 3, "lora_parameters": parameters}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    found = []
    for wrong in (False, True):
        bench = Bench(folders["lfm2"], options(adapters={"one": str(tmp_path)}))
        watched = watch(bench.engine)
        for name, prompt, adapter in (("a", PHRASE, "one"), ("b", PHRASE * 4, None)):
            job = bench.job(name, prompt, 16, adapter=adapter)
            # Every sixth token is wrong.
            expected = found[0][name, 0] if wrong else []
            prediction = tuple(
                (token + 1) % 256 if place % 6 == 3 else token for place, token in enumerate(expected)
            )
            bench.engine.submit(replace(job, prediction=prediction))
        while bench.engine.busy:
            bench.engine.step()
        found.append(watched)
        stats = bench.engine.stats()
    assert found[0] == found[1]
    assert found[0]["a", 0] != found[0]["b", 0]
    assert 0 < stats.accepted_tokens < stats.draft_tokens


def test_where_nothing_can_be_proposed_nothing_is_asked_for_it(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a step nor by the scheduler: a plain request does not enter the room."""
    bench = Bench(folders["llama"], options())
    engine = bench.engine
    speculation = speculation_of(engine)  # a prediction may come
    for name in ("wanted", "proposals", "learn", "forget", "judged"):
        monkeypatch.setattr(speculation, name, None)  # a call would fail
    answers, _ = run_all(bench, {"a": (PHRASE, 9), "b": (PHRASE, 5)})
    assert len(answers["a", 0]) == 9
