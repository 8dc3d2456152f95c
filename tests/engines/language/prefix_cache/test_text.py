"""What a tree remembers is found by its runs of tokens, by its own key alone, and for as long as the tree has it."""

import gc
import random
import tracemalloc
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.engines.language.prefix_cache.text import BEYOND_TOKENS, RUN, TOKEN_BYTES, RememberedText
from pippin.engines.language.prefix_cache.tree import Node, PrefixTree

SIZE = 4  # tokens of a block
BLOCK_BYTES = 1 + SIZE * TOKEN_BYTES


def keep(tree: PrefixTree, key: bytes, tokens: Sequence[int]) -> None:
    path = tree.path(key, tokens)
    for start in range(len(path) * SIZE, len(tokens) - SIZE + 1, SIZE):
        if tree.add(path, key, tuple(tokens[start : start + SIZE]), object(), 1) is None:
            break
    tree.touch(path)


def text_to(node: Node) -> list[int]:
    """All tokens from the root to the end of a node."""
    found: list[int] = []
    step: Node | None = node
    while step is not None:
        found[:0] = step.tokens
        step = step.parent
    return found


def root_of(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


kept = st.tuples(st.sampled_from([b"one", b"two"]), st.lists(st.integers(0, 3), max_size=24))


@settings(derandomize=True)
@given(st.lists(kept, max_size=20), st.integers(1, 30))
def test_every_run_is_found_where_it_stands_while_it_is_in_the_tree(
    plan: list[tuple[bytes, list[int]]], limit: int
) -> None:
    text = RememberedText()
    tree = PrefixTree(SIZE, limit * BLOCK_BYTES, watcher=text)
    for key, tokens in plan:
        keep(tree, key, tokens)
        assert text.nodes == len(tree)
        for owner, run, place in text:
            assert place.node in set(tree)
            assert root_of(place.node) is tree.root(owner)
            before = text_to(place.node)[: -SIZE + place.start]
            assert tuple(before[-RUN:]) == run
            assert place.agreement(before, 32) == min(32, len(before))
            assert place.agreement([9, *before[-2:]], 32) == 2
    if plan and limit >= 30:
        key, tokens = plan[-1]
        whole = tokens[: len(tokens) // SIZE * SIZE]
        if len(whole) > SIZE:
            place = text.find(key, whole[: SIZE + 1])
            assert place is not None
    tree.clear()
    assert text.nodes == 0
    assert not list(text)


def test_a_text_goes_on_over_blocks_and_takes_the_newest_way_at_a_fork() -> None:
    text = RememberedText()
    tree = PrefixTree(SIZE, 10**9, watcher=text)
    keep(tree, b"", [*range(8), 50, 51, 52, 53])
    keep(tree, b"", [*range(8), 60, 61, 62, 63])
    place = text.find(b"", [2, 3, 4])
    assert place is not None
    assert place.following(5) == [5, 6, 7, 60, 61]
    assert place.following(99) == [5, 6, 7, 60, 61, 62, 63]
    assert (behind := place.after([5, 6, 7, 50])) is not None, "it follows what was chosen"
    assert behind.following(9) == [51, 52, 53]
    assert place.after([5, 9]) is None
    assert place.after([5, 6, 7, 70]) is None


def test_what_another_key_has_is_not_found() -> None:
    text = RememberedText()
    tree = PrefixTree(SIZE, 10**9, watcher=text)
    keep(tree, b"one", range(16))
    assert text.find(b"two", [4, 5, 6]) is None
    assert text.find(b"one", [4, 5, 6]) is not None


def test_a_node_whose_runs_another_has_taken_over_leaves_after_that_one() -> None:
    text = RememberedText()
    tree = PrefixTree(SIZE, 10**9, watcher=text)
    keep(tree, b"", [1] * 16)
    for node in sorted(tree, key=lambda node: -node.depth):
        text.dropped(node)
    assert text.nodes == 0
    assert not list(text)


def test_media_end_what_is_proposed() -> None:
    """The tree knows their tokens by numbers that no vocabulary has."""
    text = RememberedText()
    tree = PrefixTree(SIZE, 10**9, watcher=text)
    keep(tree, b"", [1, 2, 3, 4, 5, BEYOND_TOKENS | 7, 6, 7])
    place = text.find(b"", [2, 3, 4])
    assert place is not None
    assert place.following(4) == [5]


def test_a_key_leaves_nothing_behind() -> None:
    """Anybody may send any number of salts: looked up, kept and evicted, or neither."""
    text = RememberedText()
    tree = PrefixTree(SIZE, 2 * BLOCK_BYTES, watcher=text)
    for number in range(200):
        key = f"salt {number}".encode()
        tree.path(key, range(8))
        tree.begun(key, [], range(4))
        keep(tree, key, range(8))
    gc.collect()
    assert len(tree.roots) <= 2
    assert len({key for key, *_ in text}) <= 2


def test_who_holds_a_node_that_is_gone_holds_no_arrays() -> None:
    text = RememberedText()
    tree = PrefixTree(SIZE, 2 * BLOCK_BYTES, watcher=text)
    keep(tree, b"", range(8))
    place = text.find(b"", [3, 4, 5])
    assert place is not None
    held = place.node
    keep(tree, b"", range(20, 28))
    assert held not in set(tree)
    assert held.block is None
    assert place.following(2) == [6, 7]
    keep(tree, b"", range(8))
    node = next(iter(tree))
    tree.clear()
    assert node.block is None


def test_the_memory_of_an_index_counts_against_the_limit_of_its_tree() -> None:
    numbers = random.Random(1)
    tokens = [numbers.randrange(50_000) for _ in range(20_000)]
    taken: list[int] = []
    for text in (None, RememberedText()):
        tree = PrefixTree(SIZE, 10**9, watcher=text)
        tracemalloc.start()
        keep(tree, b"", tokens)
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    counted = tree.bytes - len(tree)  # the blocks themselves count a byte each here
    assert 0.5 * counted < taken[1] - taken[0] <= counted
