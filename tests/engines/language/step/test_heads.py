"""Draft heads on the model's states: what they propose, and that it changes nothing that a client sees."""

import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_vlm.speculative.drafters.qwen3_dflash.dflash import DFlashAttention

from pippin.config.errors import install_command
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.language.drafters.blocks import BlockHead
from pippin.engines.language.drafters.loading import find_kind
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.step.sequences import Sequence
from pippin.engines.language.step.speculation import heads as room
from pippin.engines.language.step.speculation.heads import Heads
from pippin.engines.language.upstream.rotary import fingerprint
from tests.engines.language.bench import (
    MAC,
    PLAN,
    Bench,
    follower_of,
    judge_others_of_one_that_leaves,
    propose_nothing,
    run_all,
)
from tests.engines.language.drafting import PHRASE, begin, drafts_of, held, judge_own_answers, prompts_of
from tests.engines.language.roundings import is_said
from tests.engines.language.tiny_heads import (
    QWEN,
    dflash_head,
    eagle3_head,
    eagle3_model,
    nemotron_with_head,
    qwen_with_head,
    with_prediction_head,
)
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import tiny_model

PROMPTS = prompts_of(16, 2)
pytestmark = pytest.mark.usefixtures("always")


SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 20}
BLOCKS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "dflash, sliding": SLIDING,
}


@dataclass(frozen=True)
class Pair:
    model: Path
    options: dict[str, Any]


# Of three drafts. The states of a head's own are summed in another order, which shows in 16 bits from the second on.
SURE = 3 if MAC is None else 1


def judge_drafts(bench: Bench, heads: Heads, sequence: Sequence, found: list[int]) -> None:
    """A head has drafted what mlx-vlm's module does in one of the roundings, as far as it is sure."""
    first = heads.followed[sequence].first
    assert is_said(found[:SURE], lambda: drafted(bench, heads, sequence.tokens, first)[:SURE])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    root = tmp_path_factory.mktemp("heads")
    head = eagle3_head(root / "head")
    return {
        "eagle3": Pair(eagle3_model(root / "model"), {"draft_model_path": str(head)}),
        **{
            name: Pair(
                root / "model",
                {"draft_model_path": str(dflash_head(root / name, **changes))},
            )
            for name, changes in BLOCKS.items()
        },
        "mtp": Pair(qwen_with_head(root / "qwen"), {"mtp": True}),
        "mtp, nemotron": Pair(nemotron_with_head(root / "nemotron"), {"mtp": True}),
        "mtp, vision": Pair(
            with_prediction_head(tiny_vision_model("qwen3_5", root / "vision")), {"mtp": True}
        ),
    }


@pytest.mark.float32
def test_a_head_turns_positions_that_are_scaled_as_its_model_does(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    bench = Bench(
        qwen_with_head(tmp_path / "qwen", rope_parameters={**QWEN["rope_parameters"], **scaling}),
        options(mtp=True),
    )
    own, other = (fingerprint(model)[0][1] for model in (bench.model, heads_of(bench).head))
    assert other["_inv_freq"] == pytest.approx([1 / each for each in own["_freqs"]])
    assert other["attention_scaling"] == pytest.approx(own["mscale"])


@pytest.mark.parametrize("name", ["eagle3", "dflash", "mtp"])
def test_a_head_without_its_library_is_refused_by_the_extra_that_brings_it(
    pairs: dict[str, Pair], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlx_vlm", None)
    pair = pairs[name]
    folder = Path(pair.options.get("draft_model_path", pair.model))
    with pytest.raises(ServerError, match=re.escape(install_command("vision"))) as caught:
        find_kind(folder, own=name == "mtp")
    assert caught.value.report.kind == "load_failed"
    assert find_kind(tiny_model("llama", folder.parent / f"small {name}")) == "model"


def options(**changes: Any) -> ModelOptions:
    return ModelOptions(**{"cache_block_tokens": 8, "num_draft_tokens": 3, **changes})


KINDS = ("eagle3", *BLOCKS, "mtp", "mtp, nemotron", "mtp, vision")
QUICK = ("eagle3", "dflash", "mtp")
"""One of each way to draft: what all of them are tried for in the long tests, these are in all tests."""
QUICK_OR_LONG = [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.long) for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_gives_the_models_own_answer(pairs: dict[str, Pair], kind: str) -> None:
    pair = pairs[kind]
    bench = Bench(pair.model, options(**pair.options))
    judge_own_answers(bench, PROMPTS)


@pytest.mark.even
@pytest.mark.parametrize(
    ("cached", "kind"),
    [
        *(pytest.param(False, kind, marks=pytest.mark.long if kind in QUICK else ()) for kind in KINDS),
        *(pytest.param(True, *each.values, marks=each.marks) for each in QUICK_OR_LONG),
    ],
)
def test_it_proposes_what_mlx_vlm_drafts(pairs: dict[str, Pair], kind: str, cached: bool) -> None:
    """After each step, from the states that the model alone gives, in one pass of the drafter over all of them."""
    pair = pairs[kind]
    bench = Bench(pair.model, options(prefix_cache=cached, **pair.options))
    if cached:
        run_all(bench, PROMPTS)
    heads = heads_of(bench)
    for sequence, found in drafts_of(bench, heads, PROMPTS, 24):
        judge_drafts(bench, heads, sequence, found)


def heads_of(bench: Bench) -> Heads:
    found: Heads = follower_of(bench.engine)
    return found


def drafted(bench: Bench, heads: Heads, tokens: list[int], first: int) -> list[int]:
    """What mlx-vlm's module says after these tokens, of which it sees the states from `first` on."""
    head, states = heads.head, heads.states
    bench.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(bench.model))
    hidden = states.take()[:, first:]
    inner = head.inner
    if isinstance(head, BlockHead):
        return drafted_block(head, hidden, tokens[-1])
    bound = dict(inner.__dict__)
    mended = [(each, type(each)) for each in inner.modules() if "upstream" in type(each).__module__]
    for each, ours in mended:
        each.__class__ = ours.__base__
    begin(inner)
    inner._seed_token = inner._seed_hidden = None
    inner.prefill_from_target_hidden(mx.array([tokens[first:-1]]), hidden, tokens[-1], None, greedy=True)
    found: list[int] = inner.draft_block(tokens[-1], hidden[:, -1:], None, 4, None, greedy=True)[0].tolist()
    inner.__dict__.update(bound)
    for each, ours in mended:
        each.__class__ = ours
    return found


def drafted_block(head: BlockHead, hidden: mx.array, last: int) -> list[int]:
    """By mlx-vlm's own attention, over all states at once."""
    inner = head.inner
    ours = [type(layer.self_attn) for layer in inner.layers]
    for layer in inner.layers:
        layer.self_attn.__class__ = DFlashAttention
    likeliest = partial(mx.argmax, axis=-1)
    found: list[int] = inner.draft_block(last, hidden, inner.make_cache(), 4, likeliest)[0].tolist()
    for layer, each in zip(inner.layers, ours, strict=True):
        layer.self_attn.__class__ = each
    return found


@pytest.mark.even
def test_a_second_start_takes_tokens_back_as_the_first_did(pairs: dict[str, Pair]) -> None:
    """It leaves out the trials that have passed, and not what they had set up: recurrent layers tell their calls."""
    pair = pairs["mtp"]
    for _ in range(2):
        bench = Bench(pair.model, options(**pair.options))
        answers = run_all(bench, PROMPTS)[0]
        for name, (prompt, _) in PROMPTS.items():
            bench.judge(prompt, answers[name, 0])


@pytest.mark.even
@pytest.mark.parametrize("kind", QUICK_OR_LONG)
def test_seeded_sampling_is_the_same_with_and_without(pairs: dict[str, Pair], kind: str) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    pair = pairs[kind]
    found = [
        run_all(Bench(pair.model, options(**changes)), {"a": (PHRASE * 2, 40)}, sampling=sampling)[0]
        for changes in ({}, pair.options)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", QUICK_OR_LONG)
@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(4, marks=pytest.mark.long)]
)
def test_a_sequence_that_leaves_changes_nothing_for_the_others(
    pairs: dict[str, Pair], kind: str, step: int
) -> None:
    pair = pairs[kind]
    bench = Bench(pair.model, options(**pair.options))
    judge_others_of_one_that_leaves(bench, PROMPTS, step)
    assert not held(heads_of(bench))


@pytest.mark.even
def test_a_head_that_is_not_asked_for_long_begins_anew_with_the_newest_states(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_WAITING", 5)
    pair = pairs["eagle3"]
    bench = Bench(pair.model, options(prefix_cache=False, **pair.options))
    heads = heads_of(bench)
    engine = bench.engine
    propose_nothing(engine)
    engine.submit(bench.job("r2", *PROMPTS["r2"]))
    while not engine.batch.running:
        engine.step()
    for steps in (3, 9):  # all that waits is read; most is forgotten
        calls = count_calls(heads, monkeypatch)
        for _ in range(steps):
            engine.step()
            assert all(heads.followed[each.sequence].waiting.count <= 5 for each in engine.batch.running)
        assert not calls, "a head that is not asked computes nothing"
        sequence = engine.batch.running[0].sequence
        [(found, *_)] = heads.propose([(sequence, 3)])
        first = heads.followed[sequence].first
        assert (first == 0) == (steps == 3)
        assert first == 0 or len(sequence.tokens) - first <= 6
        judge_drafts(bench, heads, sequence, found)


@pytest.mark.even
def test_each_choice_of_a_request_is_drafted_for_by_its_own_states(pairs: dict[str, Pair]) -> None:
    pair = pairs["eagle3"]
    bench = Bench(pair.model, options(prefix_cache=False, **pair.options))
    heads, engine = heads_of(bench), bench.engine
    propose_nothing(engine)
    sampling = Sampling(temperature=1.0, seed=3)
    engine.submit(bench.job("r2", *PROMPTS["r2"], n=2, sampling=sampling))
    while len(engine.batch.running) < 2:
        engine.step()
    for _ in range(3):  # states wait for both before the head is first asked
        engine.step()
    sequences = [each.sequence for each in engine.batch.running]
    assert sequences[0].tokens != sequences[1].tokens
    for sequence, (found, *_) in zip(
        sequences, heads.propose([(each, 3) for each in sequences]), strict=True
    ):
        judge_drafts(bench, heads, sequence, found)


def count_calls(heads: Heads, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A tally of the head's passes from now on."""
    calls, forward = [], type(heads.head).__call__

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return forward(*given, **named)

    monkeypatch.setattr(type(heads.head), "__call__", counted)
    return calls


@pytest.mark.even
@pytest.mark.parametrize("chunk", [3, 64])
def test_a_head_that_rests_reads_no_prompt_and_drafts_from_its_end(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(room, "MOST_WAITING", 5)
    pair = pairs["eagle3"]
    plan = msgspec.structs.replace(PLAN, prefill_chunk=chunk)
    bench = Bench(pair.model, options(prefix_cache=False, **pair.options), plan)
    heads, engine = heads_of(bench), bench.engine
    heads.rests = True
    propose_nothing(engine)
    calls = count_calls(heads, monkeypatch)
    for name in ("r0", "r2"):
        engine.submit(bench.job(name, *PROMPTS[name]))
    while len(engine.batch.running) < 2:
        engine.step()
    assert not calls
    engine.step()
    running = engine.batch.running
    for each, (found, *_) in zip(
        running, heads.propose([(each.sequence, 3) for each in running]), strict=True
    ):
        assert len(each.sequence.tokens) - heads.followed[each.sequence].first <= 6
        judge_drafts(bench, heads, each.sequence, found)


def test_more_tokens_than_wait_can_be_drafted_and_forgotten(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_WAITING", 5)
    pair = pairs["eagle3"]
    bench = Bench(pair.model, options(num_draft_tokens=12, prefix_cache=False, **pair.options))
    answers, _ = run_all(bench, {"a": (PHRASE, 12)})
    bench.judge(PHRASE, answers["a", 0])
    assert bench.engine.stats().draft_tokens > 12


def test_a_sequence_that_grows_into_another_class_of_lengths_is_followed_there(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "LENGTH_CLASSES", (30, 50))
    pair = pairs["eagle3"]
    bench = Bench(pair.model, options(**pair.options))
    prompts = {"a": (PHRASE, 50), "b": (PHRASE * 3, 40)}
    answers, _ = run_all(bench, prompts)
    for name, (prompt, count) in prompts.items():
        assert len(answers[name, 0]) == count
        bench.judge(prompt, answers[name, 0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32, "num_attention_heads": 2, "head_dim": 16}, "made for another model"),
        ({"vocab_size": 300}, "made for another model"),
    ],
)
def test_a_head_for_another_model_is_refused(
    pairs: dict[str, Pair], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    head = eagle3_head(tmp_path / "head", **changes)
    with pytest.raises(ServerError, match=words):
        Bench(pairs["eagle3"].model, options(draft_model_path=str(head)))


def test_a_head_that_reads_layers_that_are_not_there_is_refused(
    pairs: dict[str, Pair], tmp_path: Path
) -> None:
    head = pairs["eagle3"].options["draft_model_path"]
    with pytest.raises(ServerError, match="layers 0, 1, 3, and the model has 2"):
        Bench(tiny_model("llama", tmp_path / "model"), options(draft_model_path=head))


def test_a_checkpoint_without_a_prediction_head_is_told(pairs: dict[str, Pair]) -> None:
    with pytest.raises(ServerError, match="of which this version runs no prediction head"):
        Bench(pairs["eagle3"].model, options(mtp=True))


def test_a_drafter_that_is_not_here_is_told_with_the_way_out(pairs: dict[str, Pair], tmp_path: Path) -> None:
    for named, way_out in (
        ("org/drafter", "`pippin pull org/drafter`"),
        (str(tmp_path / "no"), "give the folder"),
    ):
        with pytest.raises(ServerError, match=way_out):
            Bench(pairs["eagle3"].model, options(draft_model_path=named))


def test_a_head_shares_quantised_embeddings_and_needs_none_of_its_own(
    pairs: dict[str, Pair], tmp_path: Path
) -> None:
    head = eagle3_head(tmp_path / "head")
    weights: Any = mx.load(str(head / "model.safetensors"))
    del weights["embed_tokens.weight"]
    mx.save_safetensors(str(head / "model.safetensors"), weights, {"format": "mlx"})
    bench = Bench(pairs["eagle3"].model, options())
    for quantised in (False, True):
        if quantised:
            nn.quantize(bench.model, 32, 4)
        for named in (str(head), pairs["eagle3"].options["draft_model_path"]):
            bench.options = options(draft_model_path=named)
            engine = bench.new_engine(PLAN)
            assert follower_of(engine).head.inner.embed_tokens is bench.model.model.embed_tokens


def test_a_drafter_of_another_sort_is_refused_by_name(pairs: dict[str, Pair], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "architectures": ["DFlashDraftModel"]}')
    with pytest.raises(ServerError, match="which this version cannot run"):
        Bench(pairs["eagle3"].model, options(draft_model_path=str(tmp_path)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_of_a_head_is_counted_but_not_what_it_shares_with_the_model(
    pairs: dict[str, Pair], kind: str
) -> None:
    pair = pairs[kind]
    plain, drafting = (Bench(pair.model, options(**changes)).engine for changes in ({}, pair.options))
    more = drafting.stats().weight_bytes - plain.stats().weight_bytes
    head = follower_of(drafting).head.inner
    own = {
        name: array.nbytes for name, array in tree_flatten(head.parameters()) if "embed_tokens" not in name
    }
    assert more == sum(own.values())
    assert drafting.scheduler.limits.memory < plain.scheduler.limits.memory
