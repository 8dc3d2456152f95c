"""Inkling's blocks for multi-token prediction propose what their formula says over the whole sequence, and answers are
the model's own."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_vlm.speculative.drafters.inkling_mtp.split import split_inkling_mtp

from pippin.config.options.model import ModelOptions
from pippin.core.conversion import Conversion, Quantization
from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.language.conversion.convert import convert
from pippin.engines.language.drafters import chains
from pippin.engines.language.drafters.chain_weights import open_blocks
from pippin.engines.language.drafters.chains import ChainHead
from pippin.engines.language.drafters.loading import find_kind
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.slots import SlotRequest
from pippin.engines.language.step.sequences import Sequence
from pippin.engines.language.step.speculation import heads as room
from pippin.engines.language.step.speculation.heads import Heads
from tests.engines.language.bench import Bench, judge_others_of_one_that_leaves, run_all
from tests.engines.language.drafters.tiny_chain import Oracle, inkling_with_chain
from tests.engines.language.drafting import drafts_of, judge_own_answers
from tests.engines.language.step.test_heads import heads_of

pytestmark = pytest.mark.usefixtures("always")

# The first has fewer tokens than there are blocks, the last more than the windows of 16.
LENGTHS = (1, 9, 14, 40)
PROMPTS = {
    f"r{place}": (tuple((each * 17 + place) % 240 for each in range(length)), 9 + 2 * place)
    for place, length in enumerate(LENGTHS)
}


@dataclass(frozen=True)
class Made:
    model: Path
    split_off: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Made]:
    """By the number of blocks."""
    found: dict[int, Made] = {}

    def get(blocks: int) -> Made:
        if blocks not in found:
            root = tmp_path_factory.mktemp("chain")
            model = inkling_with_chain(root / "inkling", blocks=blocks)
            found[blocks] = Made(model, split_inkling_mtp(str(model), str(root / "drafter")))
        return found[blocks]

    return get


@pytest.fixture
def three(made: Callable[[int], Made]) -> Made:
    return made(3)


def bench_of(model: Path, **changes: Any) -> Bench:
    return Bench(model, ModelOptions(**{"cache_block_tokens": 8, "num_draft_tokens": 3, **changes}))


def said(bench: Bench, heads: Heads, oracle: Oracle, sequence: Sequence) -> list[int]:
    """What the formula says after a sequence's tokens, from the states that the blocks were given."""
    tokens = sequence.tokens
    first = heads._followed[sequence].first
    bench.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(bench.model))
    return oracle.draft(tokens[first:], heads._states.take()[0, first:], 3)


@pytest.mark.parametrize(("blocks", "cached"), [(3, False), (3, True), (1, False), (2, False)])
def test_it_proposes_what_its_blocks_say_over_the_whole_sequence(
    made: Callable[[int], Made], blocks: int, cached: bool
) -> None:
    """With fewer blocks than tokens the last goes on."""
    folders = made(blocks)
    bench = bench_of(folders.model, mtp=True, prefix_cache=cached)
    if cached:
        run_all(bench, PROMPTS)
    heads, oracle = heads_of(bench), Oracle(folders.split_off, bench.model.inner)
    assert isinstance(heads._head, ChainHead)
    words, lengths = set[int](), set[int]()
    for sequence, found in drafts_of(bench, heads, PROMPTS, 24):
        assert found == said(bench, heads, oracle, sequence)
        words.update(found)
        lengths.add(heads._followed[sequence].slot.length)
    assert len(words) > 6, "it says different things"
    assert min(lengths) < 4
    assert cached or max(lengths) > 40


def test_a_drafter_split_off_proposes_the_same(three: Made) -> None:
    bench = bench_of(three.model, draft_model_path=str(three.split_off))
    heads, oracle = heads_of(bench), Oracle(three.split_off, bench.model.inner)
    for sequence, found in drafts_of(bench, heads, PROMPTS, 6):
        assert found == said(bench, heads, oracle, sequence)


def test_a_head_that_is_not_asked_for_long_begins_anew_with_the_newest_states(
    three: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_WAITING", 5)
    bench = bench_of(three.model, mtp=True, prefix_cache=False)
    heads, engine, oracle = heads_of(bench), bench.engine, Oracle(three.split_off, bench.model.inner)
    engine.speculation = None
    for name in ("r1", "r2"):
        engine.submit(bench.job(name, *PROMPTS[name]))
    while len(engine.batch.running) < 2:
        engine.step()
    for steps in (3, 7):  # all that waits is read; most is forgotten
        for _ in range(steps):
            engine.step()
        running = [each.sequence for each in engine.batch.running]
        for sequence, (found, *_) in zip(
            running, heads.propose([(each, 3) for each in running]), strict=True
        ):
            assert (heads._followed[sequence].first == 0) == (steps == 3)
            assert found == said(bench, heads, oracle, sequence)


def test_a_head_that_is_asked_again_without_a_new_token_keeps_what_it_has(three: Made) -> None:
    bench = bench_of(three.model, mtp=True, prefix_cache=False)
    heads, oracle = heads_of(bench), Oracle(three.split_off, bench.model.inner)
    for sequence, found in drafts_of(bench, heads, PROMPTS, 15):
        assert found == said(bench, heads, oracle, sequence)
        heads.propose([(sequence, 3)])


def test_a_sequence_of_whose_first_pass_nothing_stays_begins_with_the_next(three: Made) -> None:
    heads = heads_of(bench_of(three.model, mtp=True))
    head, layout = heads._head, heads._layout
    group = BatchedGroup(head, BatchShape(layout=layout, slack=8))
    slots = [group.reserve(SlotRequest(length=0, growth=9, length_class=0), 9, 0) for _ in range(2)]
    for slot in slots:
        group.join(slot, layout.new_prompt_cache(0), 0)
    mx.random.seed(3)
    states = mx.random.normal((2, 4, head.state_size))
    group.forward(mx.array([[1, 2, 3, 4], [5, 6, 7, 8]]), states)
    group.rewind({slots[0].index: 4, slots[1].index: 1})
    found = group.forward(mx.array([[9, 10, 11, 12], [8, 10, 11, 12]]), states)
    alone = head(mx.array([[9, 10, 11, 12]]), layout.new_prompt_cache(4), states[:1])
    assert mx.allclose(found[:1], alone, atol=1e-5)


def test_of_more_blocks_than_tokens_are_wanted_the_others_are_not_kept(three: Made) -> None:
    bench = bench_of(three.model, mtp=True, num_draft_tokens=2, prefix_cache=False)
    whole = bench_of(three.model, mtp=True)
    heads, oracle = heads_of(bench), Oracle(three.split_off, bench.model.inner)
    assert len(heads._head.inner.blocks) == 2
    assert heads.weight_bytes < 0.75 * heads_of(whole).weight_bytes
    for sequence, found in drafts_of(bench, heads, PROMPTS, 6):
        assert found[:2] == said(bench, heads, oracle, sequence)[:2]


def test_answers_are_the_models_own(three: Made) -> None:
    judge_own_answers(bench_of(three.model, mtp=True), PROMPTS)


@pytest.mark.parametrize("split", [False, True])
def test_a_sequence_that_leaves_changes_nothing_for_the_others(three: Made, split: bool) -> None:
    drafter: dict[str, Any] = {"draft_model_path": str(three.split_off)} if split else {"mtp": True}
    bench = bench_of(three.model, **drafter)
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    assert bench.engine.stats().draft_tokens > 0
    assert not heads_of(bench)._followed


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("temperature", [0, 0.7])
def test_answers_are_the_same_with_and_without(three: Made, count: int, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, top_p=0.9, repetition_penalty=1.1, seed=5)
    prompts = {name: PROMPTS[name] for name in list(PROMPTS)[-count:]}
    found = [run_all(bench_of(three.model, mtp=mtp), prompts, sampling=sampling)[0] for mtp in (False, True)]
    assert found[0] == found[1]


def test_most_is_accepted_of_blocks_that_say_what_their_model_says(tmp_path: Path) -> None:
    bench = bench_of(inkling_with_chain(tmp_path / "inkling", predictable=True), mtp=True, prefix_cache=False)
    answers, _ = run_all(bench, PROMPTS)
    for name, (prompt, _) in PROMPTS.items():
        bench.judge(prompt, answers[name, 0])
    stats = bench.engine.stats()
    assert stats.accepted_tokens > 0.8 * stats.draft_tokens > 0


@pytest.mark.parametrize("packing", [None, Quantization(bits=8, group_size=32)])
def test_blocks_are_read_as_a_conversion_keeps_them(tmp_path: Path, packing: Quantization | None) -> None:
    source = inkling_with_chain(tmp_path / "source", predictable=True)
    target = tmp_path / "inkling"
    wanted = Conversion(target=str(target), quantization=packing, dtype=None, measure=False)
    done = convert(source, wanted, lambda step: None)
    assert done.draft_arrays > 50
    bench = bench_of(target, mtp=True, prefix_cache=False)
    answers, _ = run_all(bench, PROMPTS)
    for name, (prompt, _) in PROMPTS.items():
        bench.judge(prompt, answers[name, 0])
    stats = bench.engine.stats()
    assert stats.accepted_tokens > 0.8 * stats.draft_tokens > 0
    module = open_blocks(target, json.loads((target / "config.json").read_text()))
    assert isinstance(module.blocks[2].input_proj, nn.QuantizedLinear) == (packing is not None)


def test_blocks_that_take_tokens_back_wrongly_are_refused(
    three: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmended = SimpleNamespace(MENDS=())  # positions are counted from the end of the longest
    monkeypatch.setattr(chains, "inkling", unmended)
    with pytest.raises(ServerError, match="layers that cannot take tokens back") as refused:
        bench_of(three.model, mtp=True)
    assert refused.value.report.param == "mtp"


def test_a_checkpoint_without_its_blocks_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder = inkling_with_chain(tmp_path / "inkling")
    path = folder / "mtp.safetensors"
    norm = "model.llm.norm.weight"  # by which mlx-vlm takes it for one with blocks
    mx.save_safetensors(str(path), {norm: mx.load(str(path))[norm]})
    with pytest.raises(ServerError, match="has no head for multi-token prediction: most") as refused:
        find_kind(folder, own=True)
    assert refused.value.report.param == "mtp"
