"""The text that a prefix tree remembers, found by its short runs of tokens: how did this go on the last time?

A key's text is found by that key alone, as its blocks are: what one salt has in the cache, another never reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pippin.engines.language.prefix_cache.tree import Node

RUN = 3  # tokens by which a place is found
TOKEN_BYTES = (
    200  # of a place, its run, and their share of a table, as measured; keys and values take kilobytes
)
BEYOND_TOKENS = 1 << 31  # the tree knows the tokens of media by numbers above this: they cannot be proposed


@dataclass(frozen=True, slots=True)
class Place:
    """Before the token `start` of a node: a text may go on here as it did there."""

    node: Node
    start: int

    def agreement(self, tokens: Sequence[int], most: int) -> int:
        """How many of the last of these tokens stand before it, up to `most`."""
        before = self._before(min(most, len(tokens)))
        pairs = enumerate(zip(before, reversed(tokens), strict=False))
        return next((count for count, (there, here) in pairs if there != here), len(before))

    def _before(self, count: int) -> list[int]:
        """The last tokens before it, the last first."""
        node: Node | None = self.node
        found = list(self.node.tokens[max(0, self.start - count) : self.start][::-1])
        while len(found) < count and (node := node.parent if node is not None else None) is not None:
            found += node.tokens[-1 : -(count - len(found)) - 1 : -1]
        return found

    def following(self, count: int) -> list[int]:
        """Up to so many tokens from there on: at a fork those that came last."""
        node, found = self.node, list(self.node.tokens[self.start : self.start + count])
        while len(found) < count and node.children:
            node = next(reversed(node.children.values()))
            found += node.tokens[: count - len(found)]
        return list(takewhile(lambda token: token < BEYOND_TOKENS, found))

    def after(self, tokens: Sequence[int]) -> "Place | None":
        """The place behind these tokens, if they are what follows."""
        node, start = self.node, self.start
        for token in tokens:
            if start == len(node.tokens):
                found = next(
                    (each for each in reversed(node.children.values()) if each.tokens[0] == token), None
                )
                if found is None:
                    return None
                node, start = found, 0
            if node.tokens[start] != token:
                return None
            start += 1
        return Place(node, start)


Places = dict[tuple[int, ...], Place]


class RememberedText:
    """Where each run of tokens stood last, among the nodes that a tree has."""

    token_bytes = TOKEN_BYTES

    def __init__(self) -> None:
        self._places: dict[bytes, Places] = {}
        self._keys: dict[Node, bytes] = {}

    def added(self, key: bytes, node: Node) -> None:
        places = self._places.setdefault(key, {})
        self._keys[node] = key
        for start, run in _runs(node):
            places[run] = Place(node, start)

    def dropped(self, node: Node) -> None:
        """The node is about to leave the tree."""
        key = self._keys.pop(node, None)
        if key is None:
            return
        places = self._places[key]
        for _, run in _runs(node):
            if (place := places.get(run)) is not None and place.node is node:
                del places[run]
        if not places:
            del self._places[key]

    def clear(self) -> None:
        self._places.clear()
        self._keys.clear()

    def find(self, key: bytes, tokens: Sequence[int]) -> Place | None:
        """Where the last of these tokens stood last in a text of this key."""
        places = self._places.get(key)
        return None if places is None else places.get(tuple(tokens[-RUN:]))


def _runs(node: Node) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The runs after which the node's tokens come, by the index of the token after each."""
    before = () if node.parent is None else node.parent.tokens[-RUN:]
    text = (*before, *node.tokens)
    for end in range(RUN, len(text)):
        if (start := end - len(before)) >= 0:
            yield start, text[end - RUN : end]
