"""An index of a prefix tree's text by short runs of tokens: how did this text continue the last time?

Text is found only under its own key, like blocks: no request reads what another salt has in the cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pippin.engines.language.prefix_cache.tree import Node

RUN = 3  # tokens that identify a place
# A place, its run, and their share of a table, as measured; keys and values take kilobytes.
TOKEN_BYTES = 200
BEYOND_TOKENS = 1 << 31  # the tree numbers tokens of media from here on: they cannot be proposed


@dataclass(frozen=True, slots=True)
class Place:
    """The place before token `start` of a node, from which the remembered text continues."""

    node: Node
    start: int

    def agreement(self, tokens: Sequence[int], most: int) -> int:
        """How many tokens at the end of `tokens` equal those before this place, up to `most`."""
        before = self._before(min(most, len(tokens)))
        pairs = enumerate(zip(before, reversed(tokens), strict=False))
        return next((count for count, (there, here) in pairs if there != here), len(before))

    def _before(self, count: int) -> list[int]:
        """The last `count` tokens before this place, the last one first."""
        node: Node | None = self.node
        found = list(self.node.tokens[max(0, self.start - count) : self.start][::-1])
        while len(found) < count and (node := node.parent if node is not None else None) is not None:
            found += node.tokens[-1 : -(count - len(found)) - 1 : -1]
        return found

    def following(self, count: int) -> list[int]:
        """Up to `count` tokens after this place; at a fork, those of the newest branch."""
        node, found = self.node, list(self.node.tokens[self.start : self.start + count])
        while len(found) < count and node.children:
            node = next(reversed(node.children.values()))
            found += node.tokens[: count - len(found)]
        return list(takewhile(lambda token: token < BEYOND_TOKENS, found))

    def after(self, tokens: Sequence[int]) -> "Place | None":
        """The place after these tokens, if the remembered text continues with them."""
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
    """The latest place of each run of tokens, among the nodes of a tree."""

    token_bytes = TOKEN_BYTES

    def __init__(self) -> None:
        self._places: dict[bytes, Places] = {}
        self._keys: dict[Node, bytes] = {}

    @property
    def nodes(self) -> int:
        """The nodes whose text it knows."""
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[bytes, tuple[int, ...], Place]]:
        """Each run with its key and its latest place."""
        return ((key, run, place) for key, places in self._places.items() for run, place in places.items())

    def added(self, key: bytes, node: Node) -> None:
        places = self._places.setdefault(key, {})
        self._keys[node] = key
        for start, run in _runs(node):
            places[run] = Place(node, start)

    def dropped(self, node: Node) -> None:
        """Forget a node that is about to leave the tree."""
        key = self._keys.pop(node, None)
        if key is None:
            return
        # Another node of the key may have taken over its runs, and left with the last of them.
        places = self._places.get(key, {})
        for _, run in _runs(node):
            if (place := places.get(run)) is not None and place.node is node:
                del places[run]
        if not places:
            self._places.pop(key, None)

    def clear(self) -> None:
        self._places.clear()
        self._keys.clear()

    def find(self, key: bytes, tokens: Sequence[int]) -> Place | None:
        """The latest place after the last `RUN` of these tokens in a text of this key."""
        places = self._places.get(key)
        return None if places is None else places.get(tuple(tokens[-RUN:]))


def _runs(node: Node) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The run before each token of the node, with the token's index."""
    before = () if node.parent is None else node.parent.tokens[-RUN:]
    text = (*before, *node.tokens)
    for end in range(RUN, len(text)):
        if (start := end - len(before)) >= 0:
            yield start, text[end - RUN : end]
