"""Keys and values of the last tokens alone: what kinds of local attention share, whichever of those a token sees."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds.base import CacheKind, TokenArray
from pippin.engines.language.kv_cache.kinds.keys_and_values import BatchedAttention, Mask
from pippin.engines.language.kv_cache.slots import SlotTable


@dataclass(frozen=True, kw_only=True)
class LocalKind(CacheKind):
    rewinds = checkpoints = looks_back = True

    keys: TokenArray
    values: TokenArray
    span: int  # tokens that a token attends to at most, itself among them

    def slot_bytes(self, capacity: int, slack: int) -> int:
        return (self.keys.token_bytes + self.values.token_bytes) * min(capacity, self.span + slack)

    def prompt_bytes(self, capacity: int, chunk: int) -> int:
        return self.slot_bytes(capacity, chunk)  # the newest chunk lies beside what it attends to


class BatchedLocal(BatchedAttention):
    """Keys and values as a ring: the token with index p lies at p modulo the ring's size.

    The ring has the table's slack beside the span, so that as many tokens can be added at once, and forgotten again.
    """

    def __init__(self, slots: SlotTable, span: int) -> None:
        super().__init__(slots)
        self.span = span
        self.ring = span + slots.slack

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        span = self.span if window_size is None else min(window_size, self.span)
        if self.slots.level and not return_array and self._sees_all(N, span):
            return None if N == 1 else "causal"
        positions = self._positions(N)
        last = positions[:, -1:]
        # Of each place in the ring, how many tokens ago it was written.
        ages = (last - mx.arange(self._reach())) % self.ring
        keys = (last - ages)[:, None]
        queries = positions[..., None]
        mask = (keys >= 0) & (keys <= queries) & self._seen(keys, queries, span)
        return mask[:, None]

    def _sees_all(self, count: int, span: int) -> bool:
        """Whether each of the next `count` tokens sees all before it, in sequences of one length."""
        return self.slots.longest + self.slots.count <= span

    def _seen(self, keys: mx.array, queries: mx.array, span: int) -> mx.array:
        """Whether tokens with the indexes `queries` see earlier ones with the indexes `keys`."""
        raise NotImplementedError

    def _reach(self) -> int:
        return min(super()._reach(), self.ring)

    def _size(self, capacity: int) -> int:
        return min(capacity, self.ring)

    def _at(self, index: Any) -> Any:
        return index % self.ring

    def _in_pieces(self) -> bool:
        return self.slots.count == 1 and super()._in_pieces()

    def _write_last(self, slot: int, keys: mx.array, values: mx.array, stop: int) -> None:
        """Write keys and values [1, heads, n, size] of the last n tokens before position `stop` into a slot."""
        kept = min(keys.shape[2], self.ring)
        keys, values = keys[:, :, keys.shape[2] - kept :], values[:, :, values.shape[2] - kept :]
        start = (stop - kept) % self.ring
        head = min(kept, self.ring - start)
        self.write(slot, keys[:, :, :head], values[:, :, :head], start)
        if head < kept:
            self.write(slot, keys[:, :, head:], values[:, :, head:], 0)

    def _between(self, slot: int, start: int, stop: int) -> list[mx.array]:
        """Copies of a sequence's keys and values at these positions, [1, heads, stop - start, size] each."""
        places = mx.arange(start, stop) % self.ring
        return [buffer[slot : slot + 1][:, :, places] for buffer in self.buffers]
