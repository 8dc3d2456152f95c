"""Models whose sequences run one at a time check proposals too, and say what they say without."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ConcatenateKVCache, KVCache
from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.language.kv_cache.layout import CacheLayout, leaves, new_prompt_cache, probe_prompt
from pippin.engines.language.kv_cache.probe import choose_batching
from pippin.engines.language.kv_cache.slots import SlotRequest
from pippin.engines.language.kv_cache.solo_group import SoloGroup
from pippin.engines.language.kv_cache.solo_trial import takes_back
from pippin.engines.language.loading import drafting
from pippin.engines.language.step.sequences import Sequence
from pippin.engines.language.step.speculation.proposers import Proposal
from tests.engines.language.architectures.any_architecture import write
from tests.engines.language.bench import (
    Bench,
    Eager,
    follower_of,
    judge_others_of_one_that_leaves,
    propose_nothing,
    run_all,
    run_one_at_a_time,
    speculation_of,
)
from tests.engines.language.drafting import prompts_of
from tests.engines.language.schedule_run import Knowing
from tests.engines.language.tiny_heads import eagle3_head, eagle3_model
from tests.engines.tiny_models import TinyModels

PROMPTS = prompts_of(40)
SOLO = (
    "llama",
    "gemma3_text",
    "qwen3_next",
    "mamba2",
    "baichuan_m1",
    "llama4",
    "concatenating",
    "deepseek_v41",
)
"""Keys and values that are trimmed, windows, states, lists of several caches, chunks, keys that only seem to be
trimmed, and caches of a model's own class."""
Opened = Callable[..., Bench]


@pytest.fixture(scope="module")
def own_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("deepseek_v41", tmp_path_factory.mktemp("models") / "deepseek_v41")


@pytest.fixture
def opened(tiny_models: TinyModels, own_classes: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A model whose sequences run one at a time, with the caches that mlx-lm makes."""
    run_one_at_a_time(monkeypatch)
    monkeypatch.setattr(drafting, "Pace", Eager)

    def bench(name: str, **options: Any) -> Bench:
        folder = (
            own_classes
            if name == "deepseek_v41"
            else tiny_models("llama" if name == "concatenating" else name)
        )
        found = Bench(folder, ModelOptions(num_draft_tokens=4))
        found.options = ModelOptions(num_draft_tokens=4, **options)
        found.model, _ = load_model(folder)
        if name == "concatenating":
            found.model.make_cache = lambda: [ConcatenateKVCache() for _ in found.model.layers]
        found.engine = found.new_engine(found.plan)
        return found

    return bench


class Pausing(Knowing):
    """Now and then it proposes nothing, so that steps of one token come after those of several."""

    def _known(self, sequence: Sequence, most: int) -> list[int]:
        proposed = super()._known(sequence, most)
        return [] if len(sequence.tokens) % 4 == 1 else proposed


def knowing(bench: Bench) -> Bench:
    """Most of what is proposed is right, and each third of it ends with a wrong token."""
    speculation_of(bench.engine).proposer = Pausing(bench.model)
    return bench


@pytest.mark.parametrize("name", SOLO)
def test_proposals_change_no_answer_past_the_ends_of_windows(opened: Opened, name: str) -> None:
    bench = knowing(opened(name, prompt_lookup=True))
    assert isinstance(bench.engine.batch.groups._new_group(), SoloGroup)
    answers, _ = run_all(bench, PROMPTS)
    for each, (prompt, count) in PROMPTS.items():
        assert len(answers[each, 0]) == count
        bench.judge(prompt, answers[each, 0])
    stats = bench.engine.stats()
    assert 40 < stats.accepted_tokens < stats.draft_tokens - 8


@pytest.mark.parametrize("name", SOLO)
def test_a_sequence_that_leaves_or_is_suspended_changes_no_other(opened: Opened, name: str) -> None:
    bench = knowing(opened(name, prompt_lookup=True))
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    assert bench.engine.stats().accepted_tokens > 30


@pytest.mark.parametrize("name", SOLO)
def test_seeded_answers_are_the_same_with_a_draft_model_and_without(
    opened: Opened, tiny_models: TinyModels, name: str
) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    draft, prompts = str(tiny_models("llama")), {each: PROMPTS[each] for each in ("r0", "r1")}
    plain, _ = run_all(opened(name), prompts, sampling=sampling)
    found, ends = run_all(
        opened(name, draft_model_path=draft, prompt_lookup=True), prompts, sampling=sampling
    )
    assert found == plain
    assert all(end.usage.draft_tokens for end in ends.values())


def test_a_prediction_is_followed_without_any_option(opened: Opened) -> None:
    bench = opened("gemma3_text")
    expected, _ = run_all(bench, {"a": PROMPTS["r1"]})
    steps = bench.engine.stats().steps
    prompt, count = PROMPTS["r1"]
    bench.engine.submit(replace(bench.job("b", prompt, count), prediction=tuple(expected["a", 0])))
    while bench.engine.busy:
        bench.engine.step()
    assert bench.engine.stats().steps - steps < count / 2


def test_padding_of_sequences_without_proposals_is_not_computed(opened: Opened, monkeypatch: Any) -> None:
    bench = opened("llama", prompt_lookup=True)
    propose_nothing(bench.engine)
    for name in ("r0", "r1"):
        bench.engine.submit(bench.job(name, *PROMPTS[name]))
    while len(bench.engine.batch.running) < 2:
        bench.engine.step()
    widths: list[int] = []

    def noting(tokens: mx.array, **given: Any) -> mx.array:
        widths.append(tokens.shape[1])
        found: mx.array = bench.model(tokens, **given)
        return found

    group = bench.engine.batch.running[0].slot.group
    monkeypatch.setattr(group, "model", noting)
    bench.engine.batch.check([Proposal([1, 2, 3]), Proposal([])])
    assert widths[:2] == [4, 1]


def group_of(model: Any, lengths: tuple[int, ...]) -> SoloGroup:
    group = SoloGroup(model, CacheLayout.learn(model, probe_prompt(model, 2)))
    for length in lengths:
        slot = group.reserve(SlotRequest(length=length, growth=20, length_class=0), growth=20, following=0)
        group.join(slot, probe_prompt(model, length), shift=0)
    return group


@pytest.mark.parametrize("name", SOLO)
@pytest.mark.parametrize("forgotten", [(0, 2, 3, 1), (3, 3, 3, 3)])
def test_each_sequence_forgets_as_many_tokens_as_it_is_told(
    opened: Opened, name: str, forgotten: tuple[int, ...]
) -> None:
    """Two steps in a row, around the ends of windows and chunks of 20 and 24 tokens."""
    model, lengths = opened(name).model, (3, 18, 22, 40)
    group = group_of(model, lengths)
    texts = [[*range(1, length + 1)] for length in lengths]
    for step in range(2):
        tokens = [[(7 * row + 3 * place + step) % 250 for place in range(4)] for row in range(len(lengths))]
        group.forward(mx.array(tokens))
        group.rewind(dict(enumerate(forgotten)))
        for text, new, count in zip(texts, tokens, forgotten, strict=True):
            text += new[: 4 - count]
    together = group.forward(mx.array([[5]] * len(lengths)))
    assert [group.length(row) for row in range(4)] == [len(text) + 1 for text in texts]
    for row, text in enumerate(texts):
        alone = model(mx.array([[*text, 5]]), cache=new_prompt_cache(model))[0, -1]
        assert mx.allclose(together[row, -1], alone, atol=1e-3)


def test_keys_and_values_are_trimmed_and_not_copied(opened: Opened) -> None:
    model = opened("llama").model
    group = group_of(model, (30,))
    mx.eval(group.forward(mx.array([[1]])))
    assert group.bytes_after(4) - group.bytes_after(3) == group.bytes_after(3) - group.bytes_after(2)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(group.forward(mx.array([[1, 2, 3, 4]])))
    group.rewind({0: 2})
    assert mx.get_peak_memory() - before < group.bytes


def test_a_step_over_windows_counts_what_it_copies(opened: Opened) -> None:
    group = group_of(opened("gemma3_text").model, (40,))
    rings = sum(leaf.nbytes for leaf in leaves(group.caches[0] or []) if hasattr(leaf, "max_size"))
    assert rings
    assert group.bytes_after(4) - group.bytes_after(1) >= rings


class Ring(KVCache):  # type: ignore[misc] # mlx-lm has no types
    """Keeps the tokens that come one by one in a ring behind those that came together, as a cache of mlx-vlm does."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window, self.first = window, -1

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if keys.shape[2] == 1 and self.first < 0:
            self.first = self.offset
        if self.first < 0 or self.offset < self.first + self.window:
            return super().update_and_fetch(keys, values)
        for place in range(keys.shape[2]):
            slot = self.first + (self.offset - self.first) % self.window
            self.keys[..., slot : slot + 1, :] = keys[..., place : place + 1, :]
            self.values[..., slot : slot + 1, :] = values[..., place : place + 1, :]
            self.offset += 1
        end = self.first + self.window
        return self.keys[..., :end, :], self.values[..., :end, :]


@pytest.mark.parametrize("window", [9, 100_000])
def test_a_cache_that_counts_otherwise_after_several_tokens_is_refused_with_the_reason(
    opened: Opened, window: int
) -> None:
    bench = opened("llama")
    bench.model.make_cache = lambda: [Ring(window) for _ in bench.model.layers]
    assert not choose_batching(bench.model, bench.options).rewinds
    bench.options = ModelOptions(prompt_lookup=True)
    with pytest.raises(ServerError, match="no trial showed that a step of several tokens") as caught:
        bench.new_engine(bench.plan)
    assert caught.value.report.param == "prompt_lookup"


def test_a_model_that_reads_several_tokens_otherwise_is_refused(opened: Opened) -> None:
    model = opened("llama").model
    layout = CacheLayout.learn(model, probe_prompt(model, 2))
    assert takes_back(model, layout)
    seeing_all = SimpleNamespace(layers=model.layers)

    def call(tokens: mx.array, cache: Any) -> mx.array:
        if cache[0].offset and tokens.shape[1] > 1:
            tokens = tokens[:, ::-1]
        found: mx.array = model(tokens, cache=cache)
        return found

    Model = type("Model", (SimpleNamespace,), {"__call__": lambda self, tokens, cache: call(tokens, cache)})
    assert not takes_back(Model(**vars(seeing_all)), layout)


def drafted(bench: Bench) -> dict[tuple[str, int], list[int]]:
    """What a head proposed for each sequence, by how many tokens that had, while one left and another came."""
    heads = follower_of(bench.engine)
    propose, found = heads.propose, {}

    def noting(wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        proposals: list[Proposal] = propose(wanted)
        for (sequence, _), proposal in zip(wanted, proposals, strict=True):
            found[sequence.request.job.id, len(sequence.tokens)] = proposal.tokens[:2]
        return proposals

    heads.propose = noting
    judge_others_of_one_that_leaves(bench, PROMPTS, 4)
    return found


def test_a_head_drafts_from_the_states_of_each_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for sequences that run in batches."""
    monkeypatch.setattr(drafting, "Pace", Eager)
    folder, head = eagle3_model(tmp_path / "model"), eagle3_head(tmp_path / "head")
    options = ModelOptions(num_draft_tokens=4, draft_model_path=str(head), prefix_cache=False)
    together = drafted(Bench(folder, options))
    run_one_at_a_time(monkeypatch)
    alone = drafted(Bench(folder, options))
    both = together.keys() & alone.keys()
    assert len(both) > 60
    same = sum(together[each] == alone[each] for each in both)
    assert same > 0.97 * len(both)
