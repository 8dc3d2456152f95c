"""Steps over tokens that are not one after the other: ways on from the same place, which a model computes side by side.

Each such token stands at the position that it has on its own way, and sees what comes before it there alone. In the
cache they lie one behind the other, as a step's tokens always do, until `BatchedGroup.gather` moves those together that
stay.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Branches:
    """How the tokens of a step hang together, for each computed slot."""

    depths: NDArray[np.int32]  # [slots, count]: how many of them come before each
    seen: NDArray[np.bool_]  # [slots, count, count]: which of them each sees, itself among them

    @classmethod
    def of(cls, parents: Sequence[Sequence[int]], count: int) -> "Branches":
        """`parents` of each slot: for each token the index of the one before it, which is smaller, and -1 where that is
        the last token before the step. What is missing to `count` is padding."""
        depths = np.zeros((len(parents), count), np.int32)
        seen = np.broadcast_to(np.eye(count, dtype=np.bool_), (len(parents), count, count)).copy()
        for slot, own in enumerate(parents):
            for token, parent in enumerate(own):
                if parent >= 0:
                    depths[slot, token] = depths[slot, parent] + 1
                    seen[slot, token] |= seen[slot, parent]
        return cls(depths, seen)

    def mask(self, starts: Sequence[int], window: int) -> mx.array:
        """Which of all tokens, up to this step's last ones, each of this step's tokens sees of the last `window` on its
        way: [slots, 1, count, longest + count]. `starts` are the tokens that each slot has before."""
        depths, count = self.depths, self.depths.shape[1]
        begins = np.array(starts)[:, None, None]
        indexes = np.arange(max(starts) + count)
        seen = (indexes < begins) & (indexes > begins + depths[..., None] - window)
        ways = self.seen & (depths[..., None] - depths[:, None] < window)
        for own, start, on_its_way in zip(seen, starts, ways, strict=True):
            own[:, start : start + count] = on_its_way
        return mx.array(seen[:, None])


@contextmanager
def rotated_at(positions: int | mx.array) -> Iterator[None]:
    """Within the context, rotary embeddings that are given just this array [sequences, tokens] as their offset turn
    each token by its own position; a number changes nothing.

    All rotary embeddings of mlx-lm come to one function of MLX's, which takes an offset for each sequence of a batch;
    nothing else in this process calls it then.
    """
    fast = vars(mx.fast)
    own = mx.fast.rope

    def rope(x: mx.array, dims: int, *, offset: Any, **options: Any) -> mx.array:
        if offset is not positions or isinstance(positions, int):
            return own(x, dims, offset=offset, **options)
        # [sequences, heads, tokens, size], as a batch of tokens.
        apart = x.swapaxes(1, 2)
        turned: mx.array = own(
            apart.reshape(-1, x.shape[1], 1, x.shape[3]), dims, offset=positions.reshape(-1), **options
        )
        return turned.reshape(apart.shape).swapaxes(1, 2)

    fast["rope"] = rope
    try:
        yield
    finally:
        fast["rope"] = own


class _BranchingCache:
    """One layer's cache of a single sequence, as a model sees it in a step with branches."""

    def __init__(self, cache: Any, positions: mx.array, branches: Branches) -> None:
        self._cache = cache
        self._start = cache.offset
        self._branches = branches
        self.offset = positions

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return self._cache.update_and_fetch(keys, values)

    def keys_and_values(self) -> Any:
        return self._cache.keys_and_values()

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return self._branches.mask([self._start], window_size or self._start + N)


@contextmanager
def branching(cache: Sequence[Any], branches: Branches) -> Iterator[list[Any]]:
    """The caches of all layers of a single sequence, for a call of the model over `branches` within the context."""
    positions = mx.array(branches.depths + cache[0].offset)
    with rotated_at(positions):
        yield [_BranchingCache(layer, positions, branches) for layer in cache]
