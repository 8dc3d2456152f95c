"""Whatever happens around a request, its answer is what the model alone gives: random schedules on real architectures.

Arrivals, cancels, preemptions, hits, evictions, restarts, chunk sizes, neighbours, proposals, adapters, few-bit caches,
grammars and draws, all mixed.
`PIPPIN_SCHEDULES=3000 pytest -m long -s tests/engines/language/step/test_schedules.py`
runs so many of each architecture, and a twentieth of that of the demo model. What fails tells its number and the seed,
which `PIPPIN_SCHEDULES_SEED` repeats. They are drawn by chance alone: hypothesis varies what it had, and draws
little else.
"""

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_adapters, load_model

from tests.engines.language.bench import MAC, PLAN, run_one_at_a_time
from tests.engines.language.drafters.test_split_heads import (
    with_glm_head,
    with_next_head,
    with_qwen_head,
    with_v4_head,
)
from tests.engines.language.drafters.tiny_layers import checkpoint
from tests.engines.language.reference import Reference
from tests.engines.language.schedule_run import Subject, run_schedule
from tests.engines.language.schedules import (
    BY_A_MODEL,
    COMES_BACK,
    CROWDED,
    DRAFTED,
    FORETOLD,
    GREW,
    KNOWN,
    LOOKED_BACK,
    MANNERS,
    Schedule,
    plan_of,
    world_of,
)
from tests.engines.language.tiny_heads import (
    ASSISTANT,
    ORDERED,
    assistant_head,
    dflash_head,
    eagle3_head,
    eagle3_model,
    gemma_model,
    nemotron_with_head,
    prediction_head,
    qwen_with_head,
)
from tests.engines.tiny_models import ARCHITECTURES, ODD_ONES, tiny_model

pytestmark = pytest.mark.even
REWINDABLE = (*ARCHITECTURES, *ODD_ONES)
QUANTISABLE = ("llama", "qwen3", "qwen3_moe", "gemma3_text", "qwen3_next")
HEADED = tuple(name for name in ARCHITECTURES if name != "mamba2")
"""Of whose states a head of mlx-vlm can draft: it looks for their embeddings by name."""
BLOCKS = ("qwen3", "gpt_oss", "lfm2")
"""For which that is one that drafts blocks; for the others, one for multi-token prediction."""
DRAFTS = {"gpt_oss": "gemma3_text"} | {
    name: name for name in ("gemma3_text", "qwen3_next", "qwen3_5", "mamba2", "lfm2", "deepseek_v32")
}
"""The draft models that are not of full attention."""
WINDOWED = ("gemma3_text", "gpt_oss")
"""Of which the prefix cache drops windows."""
ADAPTABLE = ("llama", "qwen3", "gemma3_text", "qwen3_moe")
AT_NIGHT = ("llama", "qwen3_moe", "qwen3_next", "gpt_oss", "lfm2", *ODD_ONES)
"""Whose caches are those of another: all of it is played in the long tests alone. Gemma 3 has the windows of gpt-oss,
and Qwen 3.5 the states beside full attention of LFM2; `test_speculation.py` takes tokens back in both by day."""
BY_DAY = [pytest.param(name, marks=pytest.mark.long if name in AT_NIGHT else ()) for name in REWINDABLE]
DAY = 2  # schedules of each architecture
NIGHT = int(os.environ.get("PIPPIN_SCHEDULES", "1000"))
REAL = max(NIGHT // 20, 1)  # schedules of the demo model
SEED = os.environ.get("PIPPIN_SCHEDULES_SEED", str(time.time_ns()))
MANY = 100  # schedules, among which everything happens by chance


def _of_assistant(root: Path) -> Subject:
    model, _ = gemma_model(root / "model")
    return Subject(model, head=assistant_head(root / "assistant", {**ASSISTANT, **ORDERED}))


def _of_eagle3(root: Path) -> Subject:
    return Subject(eagle3_model(root / "model"), head=eagle3_head(root / "head"))


def _of_layer(architecture: str, root: Path, *, predictable: bool = False) -> Subject:
    return Subject(checkpoint(architecture, root / "model", predictable=predictable)[0])


def _of_split(
    made: Callable[..., tuple[Path, dict[str, Any]]], name: str, root: Path, **takes_all: int
) -> Subject:
    """With an index that leaves nothing out: of the entries of repeated tokens, rounding decides which it takes."""
    folder, options = made(root / name, **takes_all)
    head = options.get("draft_model_path")
    return Subject(folder, head=None if head is None else Path(head))


def _of_blocks(root: Path) -> Subject:
    sliding = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 20}
    return Subject(eagle3_model(root / "model"), head=dflash_head(root / "head", **sliding))


DRAFTERS: dict[str, Callable[[Path], Subject]] = {
    "layer": partial(_of_layer, "glm4_moe"),
    "layer of latent attention": partial(_of_layer, "glm4_moe_lite"),
    "layer that is right": partial(_of_layer, "glm4_moe", predictable=True),
    "eagle3": _of_eagle3,
    "assistant": _of_assistant,
    "blocks": _of_blocks,
    "qwen": lambda root: Subject(qwen_with_head(root / "model")),
    "pooled keys": partial(_of_split, with_v4_head, "deepseek_v4", index_topk=400),
    "pooled keys and recurrent layers": partial(_of_split, with_next_head, "glm5_next", index_topk=400),
    "blocks of tokens and recurrent layers": partial(
        _of_split, with_qwen_head, "qwen4_exp", indexer_budget=400
    ),
    "index beside latent vectors": partial(_of_split, with_glm_head, "glm_moe_dsa", index_topk=400),
    "nemotron": lambda root: Subject(nemotron_with_head(root / "model")),
}
"""A model with each way to draft that those above do not have."""
DRAFTERS_BY_DAY = ("layer", "eagle3", "assistant", "blocks")


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    made: dict[str, Subject] = {}

    def subject(name: str) -> Subject:
        if name not in made:
            made[name] = DRAFTERS[name](tmp_path_factory.mktemp("drafter"))
        return made[name]

    return subject


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    root = tmp_path_factory.mktemp("models")
    made: dict[str, Subject] = {}
    head = prediction_head(root / "head")
    blocks = dict.fromkeys(BLOCKS, dflash_head(root / "dflash", layers=(0, 1)))

    def folder(name: str) -> Path:
        path = root / name
        changes = {"head_dim": 32} if name in QUANTISABLE else {}
        if name == "deepseek_v32" and MAC is not None:
            changes = {"index_topk": 400}  # see `_of_split`
        return path if path.exists() else tiny_model(name, path, **changes)

    def subject(name: str) -> Subject:
        if name not in made:
            named = (
                {each: str(adapter(folder(name), root, each)) for each in ("one", "two")}
                if name in ADAPTABLE
                else {}
            )
            made[name] = Subject(
                folder(name),
                draft=folder(DRAFTS.get(name, "llama")),
                head=blocks.get(name, head),
                adapters=named,
            )
            for each, path in named.items():
                model, _ = load_model(folder(name))
                model = load_adapters(model, path)
                model.eval()
                # An adapter's numbers have the model's type, where mlx-lm keeps those of their file.
                model.set_dtype(getattr(mx, PLAN.run_type or "float32"))
                made[name].references[each] = Reference(model, made[name].tokenizer)
        return made[name]

    return subject


def adapter(base: Path, root: Path, name: str) -> Path:
    """A random adapter of mlx-lm's format for all query and value projections."""
    folder = root / f"{base.name}-{name}"
    folder.mkdir()
    rank = {"one": 4, "two": 8}[name]
    mx.random.seed(rank)
    weights = {}
    config = json.loads((base / "config.json").read_text())
    layers, inside = config["num_hidden_layers"], config["hidden_size"]
    found: Any = mx.load(str(base / "model.safetensors"))
    for key, weight in found.items():
        if key.endswith(("q_proj.weight", "v_proj.weight")):
            path, out = key.removesuffix(".weight"), weight.shape[0]
            weights[f"{path}.lora_a"] = mx.random.normal((inside, rank)) * 0.5
            weights[f"{path}.lora_b"] = mx.random.normal((rank, out)) * 0.1
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    parameters = {
        "rank": rank,
        "scale": 0.5,
        "dropout": 0.0,
        "keys": ["self_attn.q_proj", "self_attn.v_proj"],
    }
    described = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


ALONE = {"prefixes": False, "preempt_every": 0, "room": None, "disk": False}
"""Where quantised keys and values do not depend on what was computed when."""


def traits_of(architecture: str) -> list[dict[str, Any]]:
    """All that this architecture can be run with."""
    found: list[dict[str, Any]] = [{}]
    if architecture in REWINDABLE:
        found += [{"proposals": source} for source in ("prompt_lookup", "draft", "known")]
    if architecture in HEADED:
        found += [{"proposals": "head"}]
    if architecture in ADAPTABLE:
        found += [{"adapted": True}, {"adapted": True, "proposals": "prompt_lookup"}]
    if architecture in QUANTISABLE:
        found += [{"kv_bits": bits, **ALONE} for bits in (4, 8)]
        found += [{"kv_bits": 8}]
    return found


def schedule_of(draw: Random, traits: list[dict[str, Any]]) -> Schedule:
    world = world_of(draw, draw.choice(traits))
    manners = list(MANNERS) if world.exact else ["greedy"]
    return world, plan_of(draw, manners, ["one", "two", None] if world.adapted else [None])


def certain_of(architecture: str) -> list[Schedule]:
    """Schedules in which everything happens that can happen to this architecture."""
    found = [COMES_BACK, CROWDED, GREW]
    if architecture in REWINDABLE:
        found.append(KNOWN)
    if architecture in WINDOWED:
        found.append(LOOKED_BACK)
    if architecture not in DRAFTS.values():  # for those a draft model works in `FORETOLD`
        found.append(BY_A_MODEL)
    return [*found, DRAFTED] if architecture in HEADED else found


def happened(tally: Counter[str], *, proposals: bool) -> None:
    for what in ("preempted", "hits", "evicted", "disk_hits"):
        assert tally[what], f"no schedule had any {what}"
    assert not proposals or 0 < tally["accepted"] < tally["proposed"]


def play(subject: Subject, schedule: Schedule) -> None:
    world, plan = schedule
    with tempfile.TemporaryDirectory() as disk:
        run_schedule(subject, plan, world, Path(disk))


def play_many(subject: Subject, traits: list[dict[str, Any]], count: int, seed: str) -> Counter[str]:
    """What happened in so many schedules."""
    before = Counter(subject.tally)
    for number in range(count):
        schedule = schedule_of(Random(f"{seed} {number}"), traits)
        try:
            play(subject, schedule)
        except Exception as error:
            error.add_note(f"schedule {number} of seed {seed}: {schedule}")
            raise
    return subject.tally - before


@pytest.mark.parametrize("architecture", BY_DAY)
def test_whatever_can_happen_changes_no_answer(subjects: Callable[[str], Subject], architecture: str) -> None:
    subject = subjects(architecture)
    before = Counter(subject.tally)
    for schedule in certain_of(architecture):
        play(subject, schedule)
    happened(subject.tally - before, proposals=architecture in REWINDABLE)


@pytest.mark.parametrize("architecture", BY_DAY)
def test_a_schedule_does_not_change_the_answers(
    subjects: Callable[[str], Subject], architecture: str
) -> None:
    play_many(subjects(architecture), traits_of(architecture), DAY, "day")


def play_alone(subject: Subject, count: int, seed: str, patch: pytest.MonkeyPatch) -> None:
    """So many schedules with sequences that run one at a time."""
    run_one_at_a_time(patch)
    tally = play_many(subject, [{"proposals": None, "prefixes": False}], count, seed)
    print(f"\n{subject.folder.name}: {dict(tally)}")


@pytest.mark.parametrize("architecture", ["gemma3_text", "lfm2"])
def test_a_schedule_of_sequences_that_run_one_at_a_time_does_not_change_the_answers(
    subjects: Callable[[str], Subject], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_alone(subjects(architecture), DAY, "alone", monkeypatch)


@pytest.mark.long
@pytest.mark.timeout(max(7200, 20 * NIGHT))
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "longcat_flash_ngram"])
def test_hundreds_of_schedules_of_sequences_that_run_one_at_a_time_do_not_change_the_answers(
    subjects: Callable[[str], Subject], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_alone(subjects(architecture), NIGHT, SEED, monkeypatch)


def drafts(drafting: Callable[[str], Subject], name: str, count: int, seed: str) -> None:
    subject = drafting(name)
    before = Counter(subject.tally)
    play(subject, DRAFTED)
    play_many(subject, [{"proposals": "head"}], count, seed)
    tally = subject.tally - before
    print(f"\n{name}: {dict(tally)}")
    assert tally["proposed"]
    assert tally["preempted"]


@pytest.mark.parametrize("name", DRAFTERS_BY_DAY)
def test_preemptions_and_neighbours_change_no_answer_that_a_drafter_works_for(
    drafting: Callable[[str], Subject], name: str
) -> None:
    drafts(drafting, name, 0, "day")


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=pytest.mark.long if name in AT_NIGHT and name != "lfm2" else ())
        for name, draft in DRAFTS.items()
        if name == draft
    ],
)
def test_a_draft_model_reads_what_sequences_say_whatever_happens_to_them(
    subjects: Callable[[str], Subject], architecture: str
) -> None:
    subject = subjects(architecture)
    before = Counter(subject.tally)
    play(subject, FORETOLD)
    tally = subject.tally - before
    assert tally["preempted"]
    # In 16 bits several tokens at once say something else than one by one more often, most of all where a little of
    # it chooses other experts. Of what is foretold wrongly, next to nothing is accepted.
    right = 0.95 if MAC is None else 0.7
    assert tally["accepted"] > right * tally["proposed"] > 0


@pytest.mark.long
@pytest.mark.timeout(max(7200, 20 * NIGHT))
@pytest.mark.parametrize("name", DRAFTERS)
def test_hundreds_of_schedules_do_not_change_the_answers_that_a_drafter_works_for(
    drafting: Callable[[str], Subject], name: str
) -> None:
    drafts(drafting, name, NIGHT, SEED)


@pytest.mark.long
@pytest.mark.timeout(max(7200, 20 * NIGHT))
@pytest.mark.parametrize("architecture", REWINDABLE)
def test_a_thousand_schedules_do_not_change_the_answers(
    subjects: Callable[[str], Subject], architecture: str
) -> None:
    tally = play_many(subjects(architecture), traits_of(architecture), NIGHT, SEED)
    print(f"\n{architecture}: {dict(tally)}")
    if tally["schedules"] >= MANY:
        happened(tally, proposals=architecture in REWINDABLE)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(max(7200, 20 * NIGHT))
def test_schedules_do_not_change_the_answers_of_real_weights(demo_model: Path) -> None:
    subject = Subject(demo_model)
    for schedule in (COMES_BACK, CROWDED, KNOWN):
        play(subject, schedule)
    happened(subject.tally, proposals=True)
    traits: list[dict[str, Any]] = [
        {},
        {"proposals": "prompt_lookup"},
        {"proposals": "known"},
        {"kv_bits": 8, **ALONE},
    ]
    tally = play_many(subject, traits, REAL, SEED)
    print(f"\nthe demo model: {dict(tally)}")
