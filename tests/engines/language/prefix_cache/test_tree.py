"""The tree's budget holds to the byte, whatever comes and goes. No arrays: blocks are their own sizes."""

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.config.compat.conversions import size
from pippin.config.options.model import ModelOptions
from pippin.engines.device import DevicePlan, share_memory
from pippin.engines.language.prefix_cache import cache
from pippin.engines.language.prefix_cache.cache import PIECE, PINNED_SHARE, Node, PrefixTree, ancestors

SIZE = 2  # tokens of a block


@dataclass(frozen=True)
class Act:
    kind: Literal["keep", "state", "spare", "drop", "pin", "resize", "clear"]
    key: int
    tokens: tuple[int, ...]
    bytes: int


acts = st.builds(
    Act,
    kind=st.sampled_from(
        ["keep"] * 8 + ["state"] * 4 + ["spare"] * 4 + ["drop", "pin", "pin", "resize", "clear"]
    ),
    key=st.integers(0, 1),
    tokens=st.lists(st.integers(0, 2), max_size=14).map(tuple),
    bytes=st.integers(1, 400),
)


def keep(tree: PrefixTree, key: bytes, tokens: tuple[int, ...], size: int) -> list[Node]:
    path = tree.path(key, tokens)
    for start in range(len(path) * SIZE, len(tokens) - SIZE + 1, SIZE):
        if tree.add(path, key, tokens[start : start + SIZE], object(), size) is None:
            break
    tree.touch(path)
    return path


def apply(tree: PrefixTree, act: Act) -> None:
    key = str(act.key).encode()
    path = tree.path(key, act.tokens)
    match act.kind:
        case "keep":
            keep(tree, key, act.tokens, act.bytes)
        case "state" if path:
            tree.set_snapshot(path[-1], object(), act.bytes)
        case "spare" if path:
            held, before = set(tree.nodes), tree.evictions
            tree.set_snapshot(path[-1], object(), act.bytes, spare=True)
            assert (set(tree.nodes), tree.evictions) == (held, before), "something went for it"
        case "drop" if path:
            tree.drop_snapshot(path[-1])
        case "pin" if path:
            tree.pin(path[-1])
        case "resize":
            tree.resize(act.bytes * 4)
        case "clear":
            tree.clear()


@settings(derandomize=True)
@given(st.lists(acts, max_size=40), st.integers(1, 1500), st.one_of(st.none(), st.integers(1, 4)))
def test_the_limit_holds_to_the_byte(plan: list[Act], limit: int, leaves: int | None) -> None:
    tree = PrefixTree(SIZE, limit, leaf_limit=leaves)
    for act in plan:
        before = {node for node in tree.nodes if node.pinned}
        apply(tree, act)
        held = list(tree.nodes)
        assert tree.leaves == sum(not node.children for node in held)
        assert tree.bytes == sum(node.block_bytes + node.snapshot_bytes for node in held)
        assert tree.bytes <= tree.limit
        assert all(node in tree.nodes and node.snapshot is not None for node in tree.spare)
        covered = {each for node in held if node.pinned for each in ancestors(node)}
        # What a state adds to pins that are there already counts at the next one.
        if act.kind == "resize" or {node for node in held if node.pinned} - before:
            held_by_pins = sum(each.block_bytes if each in tree.spare else each.bytes for each in covered)
            assert held_by_pins <= tree.limit * PINNED_SHARE
        for node in held:
            assert node.parent is not None, "a node without the way to it"
            assert node.parent.depth == 0 or node.parent in held
            assert node.parent.children[node.tokens] is node
            assert node.parent.in_order == sorted(node.parent.children)
        beginnings = {node.parent for node in held if node.depth == 1}
        assert set(tree.roots.values()) == beginnings, "a key of which nothing is held"


@settings(derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=32, max_size=32).map(tuple), max_size=12),
    st.lists(st.integers(0, 1), max_size=32).map(tuple),
)
def test_the_block_that_begins_most_alike_is_found_and_known_in_pieces(
    kept: list[tuple[int, ...]], asked: tuple[int, ...]
) -> None:
    tree = PrefixTree(16, 10**9)
    for tokens in kept:
        path: list[Node] = []
        for start in (0, 16):
            path = tree.path(b"", tokens[: start + 16])
            if len(path) * 16 == start:
                tree.add(path, b"", tokens[start : start + 16], object(), 1)
    path = tree.path(b"", asked)
    behind = len(path) * 16
    alike = [
        max(place for place in range(17) if tokens[behind:][:place] == asked[behind : behind + place])
        for tokens in kept
        if tokens[:behind] == asked[:behind]
    ]
    found = tree.begun(b"", path, asked[behind : behind + 16])
    assert (0 if found is None else found[1]) == max(alike, default=0) // PIECE * PIECE
    if found is not None:
        node, count = found
        assert node.tokens[:count] == asked[behind : behind + count]


def test_a_prompt_of_another_key_begins_nothing() -> None:
    tree = PrefixTree(16, 10**9)
    tree.add([], b"one", tuple(range(16)), object(), 1)
    assert tree.begun(b"two", [], tuple(range(12))) is None
    assert tree.begun(b"one", [], tuple(range(12))) is not None


def test_keys_of_which_nothing_is_kept_take_no_memory() -> None:
    """Callers choose salts, and each salt is a key."""
    tree = PrefixTree(SIZE, 1000)
    for salt in range(300):
        tree.path(str(salt).encode(), (1, 2, 3, 4))
        keep(tree, str(salt).encode(), (1, 2), 250)
    assert len(tree.roots) == len(tree.nodes) == 4


def test_a_budget_in_bytes_is_kept_exactly() -> None:
    tree = PrefixTree(SIZE, 1000)
    for start in range(50):
        keep(tree, b"", (start, start + 1, 7, 8), 250)
        assert tree.bytes <= 1000
    assert tree.bytes == 1000


def test_many_blocks_and_pins_are_kept_without_going_over_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each chunk of a prompt asks for the pins of all of it, between two tokens of others."""
    tree, walks = PrefixTree(SIZE, 10**9, leaf_limit=100), [0]

    def counted(*nodes: Node) -> set[Node]:
        walks[0] += 1
        return ancestors(*nodes)

    monkeypatch.setattr(cache, "ancestors", counted)
    for conversation in range(5):
        path: list[Node] = []
        for block in range(20):
            tree.add(path, b"", (conversation, block), object(), 1)
            for place in (5, 10):
                tree.pin(path[min(place, block)])
    assert walks[0] <= 5 * 11, "once for each node that is newly pinned"


def test_conversations_are_counted_by_their_ends() -> None:
    tree = PrefixTree(SIZE, 10**9, leaf_limit=3)
    for start in range(10):
        keep(tree, b"", (1, 1, start, start, start, start), 1)
        assert tree.leaves <= 3
    assert [len(tree.path(b"", (1, 1, start, start, start, start))) for start in range(7, 10)] == [3, 3, 3]


def test_each_option_sets_the_budget() -> None:
    plan = DevicePlan(
        run_type=None,
        dequantize=False,
        prefill_chunk=1,
        wired_limit=None,
        allocator_cache=0,
        memory_limit=10**9,
    )
    assert share_memory(plan.memory_limit, ModelOptions(cache_memory_mb=7), 0).prefixes == 7 * 2**20
    assert share_memory(plan.memory_limit, ModelOptions(cache_memory_percent=0.3), 0).prefixes == 3 * 10**8
    assert size("cache_memory_mb", "7340032").options == {"cache_memory_mb": 7}


def test_states_to_spare_go_before_anything_else() -> None:
    tree = PrefixTree(SIZE, 100)
    old, new = keep(tree, b"", (0, 0, 1, 1), 20), keep(tree, b"", (2, 2, 3, 3), 20)
    tree.set_snapshot(new[0], "spare", 5, spare=True)
    assert not tree.set_snapshot(old[0], "too large", 16, spare=True)
    keep(tree, b"", (4, 4), 16)
    assert [node.snapshot for node in (*old, *new)] == [None] * 4
    assert set(old) | set(new) < set(tree.nodes)
    assert not tree.spare
