"""Trees of proposals change the number of steps, and nothing that a client sees; and are checked where that pays."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from math import log2
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Regex, Sampling
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.engines.language.kv_cache import groups
from pippin.engines.language.kv_cache.branches import Branches
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.kv_cache.probe import can_branch, choose_batching
from pippin.engines.language.loading import drafting
from pippin.engines.language.step.sequences import Sequence
from pippin.engines.language.step.speculation.followers import Follower
from pippin.engines.language.step.speculation.pace import Acceptance, Pace
from pippin.engines.language.step.speculation.proposers import Proposal
from pippin.engines.language.step.speculation.trees import LikeliestTree, TreePace
from tests.engines.language.bench import (
    Bench,
    Eager,
    EagerTrees,
    judge_others_of_one_that_leaves,
    run_all,
    watch,
)
from tests.engines.language.schedule_run import Knowing
from tests.engines.language.tiny_heads import eagle3_head, eagle3_model
from tests.engines.tiny_models import TinyModels, tiny_model

PHRASE = tuple(place * 17 % 240 for place in range(12))
PROMPTS = {f"r{place}": ((*PHRASE * (1 + place), place, 3), 24 + 3 * place) for place in range(4)}


Answers = dict[tuple[str, int], list[int]]


class Branching(Knowing):
    """Proposes trees in which what the model alone says is one way of several, and not the first one."""

    is_free = False
    grows_trees = True

    def __init__(self, model: Any, answers: Answers | None = None) -> None:
        """Or what these `answers` say."""
        super().__init__(model)
        self._answers = answers

    def propose(self, wanted: list[Any], trees: bool = False) -> list[Proposal]:
        return [self._among_others(tokens) for tokens, *_ in super().propose(wanted)]

    def _known(self, sequence: Sequence, most: int) -> list[int]:
        if self._answers is None:
            return super()._known(sequence, most)
        answer = self._answers[sequence.request.job.id, sequence.choice]
        return answer[sequence.generated : sequence.generated + most]

    def _among_others(self, known: list[int]) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        last = -1
        for token in known:
            tokens += [(token + 7) % 256, token, (token + 9) % 256]
            parents += [last, last, last]
            last = len(tokens) - 2
        return Proposal(tokens, parents=parents)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    monkeypatch.setattr(drafting, "TreePace", EagerTrees)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("trees")
    return eagle3_model(root / "model"), eagle3_head(root / "head")


def options(**changes: Any) -> ModelOptions:
    return ModelOptions(**{"cache_block_tokens": 8, "num_draft_tokens": 6, **changes})


def open_bench(pair: tuple[Path, Path], **changes: Any) -> Bench:
    bench = Bench(pair[0], options(draft_model_path=str(pair[1]), **changes))
    speculation = bench.engine.speculation
    assert speculation is not None
    assert speculation.trees is not None
    return bench


def knowing(bench: Bench, answers: Answers | None = None) -> Bench:
    assert bench.engine.speculation is not None
    bench.engine.speculation.proposer = Branching(bench.model, answers)
    return bench


@pytest.mark.parametrize(
    "architecture", ["llama", "qwen3", pytest.param("qwen3_moe", marks=pytest.mark.long)]
)
def test_a_tree_gives_the_models_own_answer(
    pair: tuple[Path, Path], tmp_path: Path, architecture: str
) -> None:
    """Ways that the model goes, which are not those that it was proposed first."""
    folder = pair[0] if architecture == "llama" else tiny_model(architecture, tmp_path, num_hidden_layers=4)
    bench = knowing(open_bench((folder, pair[1])))
    for _ in range(2):  # the second time, most of the prompts are known
        answers, ends = run_all(bench, PROMPTS)
        for name, (prompt, count) in PROMPTS.items():
            assert len(answers[name, 0]) == count
            bench.judge(prompt, answers[name, 0])
            assert ends[name, 0].usage.accepted_tokens > count / 3
    assert bench.engine.stats().steps < sum(count for _, count in PROMPTS.values()) / 2


def test_a_head_proposes_trees_and_changes_no_answer(pair: tuple[Path, Path]) -> None:
    bench = open_bench(pair)
    answers, _ = run_all(bench, PROMPTS)
    for name, (prompt, _) in PROMPTS.items():
        bench.judge(prompt, answers[name, 0])
    assert bench.engine.stats().draft_tokens > 100


def test_a_draft_model_proposes_trees_and_changes_no_answer(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = tiny_model("llama", tmp_path, seed=8)
    for draft, share in ((pair[0], 0.9), (other, 0.0)):
        bench = open_bench((pair[0], draft))
        answers, ends = run_all(bench, PROMPTS)
        for name, (prompt, count) in PROMPTS.items():
            bench.judge(prompt, answers[name, 0])
            # The model itself has the first choice right, and a tree of six tokens is two deep at least.
            assert ends[name, 0].usage.accepted_tokens >= share * count / 2


def test_a_draft_model_whose_last_layers_use_the_keys_of_another_proposes_trees(
    tiny_models: TinyModels,
) -> None:
    folder = tiny_models("afm7")
    bench = open_bench((folder, folder))
    answers, _ = run_all(bench, PROMPTS)
    for name, (prompt, _count) in PROMPTS.items():
        bench.judge(prompt, answers[name, 0])
    assert bench.engine.stats().accepted_tokens > 20


def test_a_draft_models_tree_has_what_it_says_after_each_token(pair: tuple[Path, Path]) -> None:
    bench = open_bench((pair[0], pair[0]), prefix_cache=False)
    prompt, _ = PROMPTS["r2"]
    bench.engine.submit(bench.job("r2", prompt, 12))
    while not bench.engine.batch.running:
        bench.engine.step()
    [running] = bench.engine.batch.running
    proposer = bench.engine.speculation.proposer  # type: ignore[union-attr]
    sequence = running.sequence

    def propose() -> Proposal:
        [found] = proposer.propose([(sequence, 12)], trees=True)
        return found

    assert not propose().tokens, "it has read a chunk of the prompt"
    sequence.tokens.append(propose().tokens[0])
    # Nothing is left of what it has computed for the tree before: this one is that of a text that is read anew.
    tree = propose()
    proposer.forget(sequence)
    assert not propose().tokens
    assert tree == propose()
    assert len(tree.tokens) == 12
    said: dict[tuple[int, ...], mx.array] = {}
    chances: list[float] = []
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.ways, strict=True):
        before = paths[parent] if parent >= 0 else ()
        if before not in said:
            logits = bench.model(mx.array([[*running.sequence.tokens, *before]]))[0, -1]
            said[before] = logits - mx.logsumexp(logits)
        paths.append((*before, token))
        own = said[before][token].item()
        chances.append(own + (chances[parent] if parent >= 0 else 0.0))
        ranked = mx.argsort(-said[before])[: sum(each == parent for each in tree.ways)].tolist()
        assert token in ranked
    assert chances == pytest.approx(sorted(chances, reverse=True), abs=1e-4)


def test_those_beside_one_that_leaves_go_on(pair: tuple[Path, Path]) -> None:
    judge_others_of_one_that_leaves(knowing(open_bench(pair)), PROMPTS, 3)
    judge_others_of_one_that_leaves(open_bench(pair), PROMPTS, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.5)},
        {"sampling": Sampling(temperature=1.3), "logprobs": 3},
    ],
    ids=["penalties", "logprobs"],
)
def test_seeded_sampling_is_the_same_with_and_without(
    pair: tuple[Path, Path], changes: dict[str, Any]
) -> None:
    plain, expected = run_all(Bench(pair[0], options()), PROMPTS, **changes)
    for bench in (open_bench(pair), knowing(open_bench(pair), plain)):
        answers, ends = run_all(bench, PROMPTS, **changes)
        assert answers == plain
        assert ends.keys() == expected.keys()
    assert all(end.usage.accepted_tokens > end.usage.completion_tokens / 3 for end in ends.values())


def test_what_the_head_reads_after_a_tree_is_the_way_that_was_taken(pair: tuple[Path, Path]) -> None:
    """It proposes what it does for the same text as a prompt."""
    anew, bench = open_bench(pair, prefix_cache=False), knowing(open_bench(pair))
    bench.engine.submit(bench.job("r1", *PROMPTS["r1"]))
    heads = heads_of(bench)
    compared = 0
    while bench.engine.busy:
        bench.engine.step()
        for each in bench.engine.batch.running:
            if each.sequence.accepted_tokens:
                [found] = heads.propose([(each.sequence, 6)], trees=True)
                assert found == proposed_anew(anew, each.sequence.tokens)
                compared += 1
    assert compared >= 4


def heads_of(bench: Bench) -> Follower:
    speculation = bench.engine.speculation
    assert speculation is not None
    assert speculation.heads is not None
    return speculation.heads


def proposed_anew(bench: Bench, tokens: list[int]) -> Proposal:
    """What the head says after a prompt of these tokens but the last, and that one."""
    engine = bench.engine
    engine.submit(bench.job("anew", tuple(tokens[:-1]), 8))
    while not engine.batch.running:
        engine.step()
    sequence = engine.batch.running[0].sequence
    sequence.tokens[-1] = tokens[-1]
    [found] = heads_of(bench).propose([(sequence, 6)], trees=True)
    engine.cancel("anew")
    return found


@pytest.mark.parametrize("manner", ["grammar", "stop"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_allowed_on_a_way_is_what_is_allowed_without(
    pair: tuple[Path, Path], manner: str, temperature: float
) -> None:
    plain, trees = Bench(pair[0], options()), open_bench(pair)
    changes: dict[str, Any] = {"stops": ("7",), "max_tokens": 17}
    if manner == "grammar":
        grammar = GrammarCompiler(plain.tokenizer).compile(Regex("([a-f]{2,5} ){1,9}"))
        changes = {"grammar": grammar, "eos": frozenset({256}), "max_tokens": 24}
    found: list[Answers] = []
    for bench in (plain, trees):
        if bench is trees:
            knowing(trees, found[0])
        found.append(watch(bench.engine))
        for name, (prompt, count) in PROMPTS.items():
            job = bench.job(name, prompt, count, sampling=Sampling(temperature=temperature))
            bench.engine.submit(replace(job, seed=count, **changes))
        while bench.engine.busy:
            bench.engine.step()
    assert found[0] == found[1]
    stats = trees.engine.stats()
    assert stats.accepted_tokens > stats.completion_tokens / 3


def test_the_likeliest_tree_has_the_likeliest_tokens() -> None:
    """Beside a search of all ways on."""
    draw = np.random.default_rng(3)
    every = [way for size in range(1, 6) for way in product(range(3), repeat=size)]
    follow = {way: np.sort(draw.dirichlet([1.0] * 3))[::-1] for way in [(), *every]}

    def chance(way: tuple[int, ...]) -> float:
        return float(np.prod([follow[way[:place]][token] for place, token in enumerate(way)]))

    rated = sorted(map(chance, every), reverse=True)
    for most in (1, 2, 5, 8):
        tree = LikeliestTree(most)
        ways: list[tuple[int, ...]] = [()]
        while tree.grow(
            np.array([range(3)] * len(ways), np.int32),
            np.log(np.array([follow[way] for way in ways], np.float32)),
        ):
            ways = [(), *paths_of(tree)]
        assert [chance(way) for way in paths_of(tree)] == pytest.approx(rated[:most])


def paths_of(tree: LikeliestTree) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return found


def test_what_is_not_allowed_is_cut_with_what_follows_it() -> None:
    tree = Proposal([1, 2, 3, 4, 5], parents=[-1, -1, 0, 1, 3])
    assert tree.likeliest == [1, 3]
    left = tree.cut(lambda path: path.index(1) if 1 in path else len(path))
    assert left == Proposal([2, 4, 5], parents=[-1, 0, 1])
    assert tree.cut(lambda path: min(len(path), 1)) == Proposal([1, 2], parents=[-1, -1])
    assert Proposal([1, 2], agreed=3).cut(lambda path: 1) == Proposal([1], agreed=3)


@pytest.mark.parametrize("lost", ["positions", "masks", "places"])
def test_a_model_that_computes_ways_wrongly_is_given_chains(
    pair: tuple[Path, Path], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Bench(pair[0], options()).model
    shape = choose_batching(model, options()).shape
    assert shape is not None
    assert can_branch(model, shape)
    match lost:
        case "positions":
            monkeypatch.setattr(groups, "rotated_at", lambda _: nullcontext())
        case "masks":
            everything = mx.array(True)
            monkeypatch.setattr(Branches, "mask", lambda *_: everything)
        case "places":
            monkeypatch.setattr(BatchedGroup, "gather", lambda *_: None)
    assert not can_branch(model, shape)


@pytest.mark.parametrize(
    ("wide", "least", "most"), [(0.01, 0.5, 1.0), (0.5, 0.0, 0.03)], ids=["cheap", "dear"]
)
def test_trees_are_checked_where_wide_passes_are_cheap(wide: float, least: float, most: float) -> None:
    """Half of all first choices are right, and three quarters of all first or second ones. A token more in a pass takes
    `wide` plain steps."""
    draw = Random(1)
    pace = Pace(16)
    trees, chain = TreePace(pace, 16), Acceptance()
    seconds = tokens = 0.0
    steps = {"plain": 0, "chain": 0, "tree": 0}
    for _ in range(1500):
        chances = [chain.chance]
        lengths = pace.lengths(chances, [16])
        size = trees.size(chances, lengths, 16)
        width, form = (size, "tree") if size else (lengths[0], "chain" if lengths[0] else "plain")
        depth = int(log2(size)) if size else width
        given = 1 + next((n for n in range(depth) if draw.random() > (0.75 if size else 0.5)), depth)
        took = 0.02 * (1 + wide * width)
        pace.observe(1, 1 + width, took, given, trees=size > 0)
        if width:
            chain.observe(depth, min(given - 1, depth) if not size else draw.choice((0, 1, 1, 2)))
            trees.observe(chances, size, given)
        steps[form] += 1
        seconds, tokens = seconds + took, tokens + given
    assert least <= steps["tree"] / 1500 <= most
    assert tokens / seconds > 0.97 / 0.02
