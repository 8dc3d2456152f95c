"""Caches of one prompt that models of the libraries are given in the place of the libraries' own."""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx


class PoolingCache:
    """A prompt's own, for models of mlx-vlm, in place of its class of this name."""

    def __init__(self, ratio: int, overlap: int) -> None:
        """`overlap`: entries before a new one whose tokens are needed for it, none or one."""
        self.ratio = ratio
        self.overlap = overlap
        self.tokens = 0
        self.pooled: mx.array | None = None  # [1, entries, size]
        # Vectors and gates of the tokens from which the next entry is made.
        self.tail: tuple[mx.array, mx.array] | None = None
        self._again = 0  # entries of a call that are there already

    def accumulate_windows(self, kv: mx.array, gate: mx.array, offset: Any) -> tuple[mx.array, mx.array, int]:
        """Take vectors and gates [1, tokens, size] of new tokens; those from which entries can be made now, and the
        position of their first token."""
        done, begin = self.entries, self._first_kept
        if self.tail is not None:
            kv, gate = (
                mx.concatenate([old, new], axis=1) for old, new in zip(self.tail, (kv, gate), strict=True)
            )
        self.tokens = begin + kv.shape[1]
        start = self._first_kept - begin
        self.tail = mx.contiguous(kv[:, start:]), mx.contiguous(gate[:, start:])
        if self.entries == done:
            return kv[:, :0], gate[:, :0], 0
        self._again = min(self.overlap, done)
        stop = self.entries * self.ratio - begin
        return kv[:, :stop], gate[:, :stop], begin

    def update_and_fetch(self, pooled: mx.array) -> mx.array:
        """Take the entries [1, count, size] that were made; all of them."""
        if pooled.shape[1]:
            new = pooled[:, self._again :]
            self.pooled = new if self.pooled is None else mx.concatenate([self.pooled, new], axis=1)
        return pooled[:, :0] if self.pooled is None else self.pooled

    def make_mask(self, L: int = 1, offset: Any = 0) -> mx.array | None:
        """Which entries the last tokens see, [tokens, entries]; None for all."""
        if self.pooled is None or L == 1:
            return None
        seen = mx.arange(self.tokens - L + 1, self.tokens + 1) // self.ratio
        return mx.arange(self.entries) < seen[:, None]

    @property
    def entries(self) -> int:
        return self.tokens // self.ratio

    @property
    def _first_kept(self) -> int:
        """The position of the first token in the tail."""
        return max(self.entries - self.overlap, 0) * self.ratio

    @property
    def state(self) -> list[mx.array]:
        return [array for array in (*(self.tail or ()), self.pooled) if array is not None]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    def empty(self) -> bool:
        return not self.tokens


class _MutualView:
    """A layer's cache whose mask lets the tokens of each span see later ones of it too."""

    def __init__(self, held: Any, spans: Iterable[tuple[int, int]]) -> None:
        self.held = held
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        mask: mx.array | None = self.held.make_mask(N, return_array=True, window_size=window_size)
        if mask is None:
            return None  # of a single token, which sees all before it
        earlier = mask.shape[-1] - N
        for start, stop in self._spans:
            places = mx.arange(start, stop)
            mask[..., start:stop, earlier + start : earlier + stop] |= places > places[:, None]
        return mask


def counts_tokens(layer: Any) -> bool:
    """Whether a layer's cache counts its tokens: caches of attention do, recurrent states do not."""
    return hasattr(layer, "offset")


def mutual(cache: list[Any], spans: Sequence[tuple[int, int]]) -> list[Any]:
    """The cache as a chunk of a prompt sees it in which the tokens of each span see each other."""
    return [_MutualView(layer, spans) if counts_tokens(layer) else layer for layer in cache]


def in_order(cache: list[Any]) -> list[Any]:
    """A cache as before `mutual`: tokens see earlier ones alone."""
    return [layer.held if isinstance(layer, _MutualView) else layer for layer in cache]
