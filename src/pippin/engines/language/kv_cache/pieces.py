"""Attention of unequal lengths side by side, in pieces: each reads keys as far as its own longest sequence reaches.

MLX's attention on CUDA, and mlx-lm's of quantised keys, reads all keys that a mask hides. A model calls it as ever: it
is cut where the mask is the one that this step's table of slots has made, and in one piece otherwise.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds.attention import AttentionKind
from pippin.engines.language.kv_cache.kinds.base import CacheKind, SlotTable
from pippin.engines.language.upstream.classes import replaced

LIBRARIES = ("mlx_lm.models.base", "mlx_vlm.models.base")
LAUNCHES = 7
"""That a piece costs: five to scale queries, for two products, to mask and for the softmax, and what the host does for
it, 7 µs (measured), which is as long as two."""


def price(kinds: Sequence[CacheKind], launch_bytes: int) -> int | None:
    """The keys of a layer that take as long to read as one more piece; None where there is no use for pieces.
    `launch_bytes`: as in `DevicePlan`."""
    own = [kind.slot_bytes(1, 0) for kind in kinds if isinstance(kind, AttentionKind)]
    return None if not own else LAUNCHES * launch_bytes * len(own) // sum(own)


def cheapest(lengths: Sequence[int], price: int) -> tuple[int, list[tuple[int, int]]]:
    """What the cheapest pieces of sequences side by side cost, in keys, and from where to where they go."""
    best = [(0, 0)]  # of the first so many: what they cost, and where their last piece begins
    for stop in range(1, len(lengths) + 1):
        longest, found = 0, []
        for start in range(stop - 1, -1, -1):
            longest = max(longest, lengths[start])
            found.append((best[start][0] + price + longest * (stop - start), start))
        best.append(min(found))
    ends = [len(lengths)]
    while ends[0]:
        ends.insert(0, best[ends[0]][1])
    return best[-1][0], list(pairwise(ends))


class Pieces:
    """How the attention of a group's steps is cut."""

    def __init__(self, price: int | None) -> None:
        self._price = price
        self._shape: list[int] = []
        self.cuts: list[tuple[int, int]] = []  # of the computed slots, from and to
        self.excess = 0  # keys that a step would cost less if sequences lay in the order of their lengths

    @contextmanager
    def used(self, table: SlotTable) -> Iterator[None]:
        """Have a model's attention computed in pieces meanwhile, in a step that has begun."""
        if self._price is not None:
            self._choose(table, self._price)
        if len(self.cuts) < 2:
            yield
            return
        modules = [sys.modules[name] for name in LIBRARIES if name in sys.modules]
        places: list[tuple[Any, str]] = [(mx.fast, "scaled_dot_product_attention")]
        places += [(module, "quantized_scaled_dot_product_attention") for module in modules]
        cut = partial(self._cut, table)
        with replaced(*((*place, cut) for place in places)):
            yield

    def _choose(self, table: SlotTable, price: int) -> None:
        """All sequences grow alike: the best places to cut change as they come and go."""
        lengths = table.lengths[table.low : table.high]
        shape = [table.longest - length if length else -1 for length in lengths]
        if shape != self._shape:
            cost, self.cuts = cheapest(lengths, price)
            self._shape, self.excess = shape, cost - cheapest(sorted(lengths), price)[0]

    def _cut(self, table: SlotTable, own: Callable[..., mx.array]) -> Callable[..., mx.array]:
        parts: list[tuple[slice, slice, Any]] = []

        def attention(
            queries: mx.array, keys: Any, values: Any, *, mask: Any = None, **named: Any
        ) -> mx.array:
            if mask is None or mask is not table.mask:
                return own(queries, keys, values, mask=mask, **named)
            parts.extend(() if parts else self._parts(table))
            found = []
            for rows, reach, part in parts:
                both = (_sliced(each, rows, reach) for each in (keys, values))
                found.append(own(queries[rows], *both, mask=part, **named))
            return mx.concatenate(found)

        return attention

    def _parts(self, table: SlotTable) -> Iterator[tuple[slice, slice, Any]]:
        """The sequences of each piece, the keys that it reads, and its mask."""
        for start, stop in self.cuts:
            lengths = table.lengths[table.low + start : table.low + stop]
            rows, reach = slice(start, stop), slice(max(lengths) + table.count)
            level = None if table.count == 1 else "causal"
            yield rows, reach, level if min(lengths) == max(lengths) else table.mask[rows, :, :, reach]


def _sliced(held: Any, rows: slice, reach: slice) -> Any:
    """Takes keys or values as they are computed, or their three arrays of few bits."""
    return held[rows, :, reach] if isinstance(held, mx.array) else [each[rows, :, reach] for each in held]
