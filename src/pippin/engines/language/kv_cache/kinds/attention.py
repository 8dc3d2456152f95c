"""Full attention: keys and values of every token, in a batch (as computed or in few bits), in a slot, and joined."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from pippin.engines.language.kv_cache.kinds.base import BatchedCache, CacheKind, Slot, SlotTable, TokenArray

Mask = mx.array | str | None

MOST_PIECES = 4  # of new tokens: more cost more than writing slot by slot (measured)


class IndexCache(KVCache):  # type: ignore[misc] # mlx-lm has no types
    """One of several caches of a layer, which may be those of an index."""

    @property
    def values(self) -> mx.array | None:
        return self._values

    @values.setter
    def values(self, values: mx.array | None) -> None:
        held: mx.array | None = vars(self).get("_values")
        # mlx-lm's indexes put zeros of the size of their keys here, which nobody reads.
        if held is None or values is None or values.shape[3] == held.shape[3]:
            self._values = values

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        # A model gives the keys of an index as its values too: they are kept once, beside values without numbers.
        found = super().update_and_fetch(keys, keys[..., :0] if values is keys else values)
        return (found[0], found[0]) if values is keys else found


def put_in_vain(get: Callable[[Any], Any]) -> property:
    """An attribute of a cache where models put what is there already, or zeros that nobody reads, as mlx-lm's indexes
    do."""
    return property(get, lambda cache, value: None)


class BatchedAttention(BatchedCache):
    """Keys and values of all slots, [slots, heads, capacity, size] each: a token lies at its index in the sequence."""

    form: tuple[int, ...] = ()
    """Bits of keys, bits of values and group size where they are quantised; empty where they are kept as they come."""
    ring: int | None = None
    """Tokens after which the next one takes the place of the first; None where all are kept."""

    def __init__(self, slots: SlotTable) -> None:
        super().__init__(slots)
        self.buffers: list[mx.array] = []
        self._step = 0  # the last step in which the model has added tokens
        self._added = 0  # of that step: some models of mlx-vlm add the tokens of a short step one by one

    # What models ask for.

    @property
    def offset(self) -> int | mx.array:
        return self.slots.offset_after if self._step == self.slots.step else self.slots.offset_before

    @property
    def _offset(self) -> int:
        """Where models of mlx-vlm look how far a batch is; they would wait for the device to find it out."""
        return self.slots.longest

    @property
    def keys(self) -> mx.array | None:
        return self.buffers[0] if self.buffers else None

    @keys.setter
    def keys(self, keys: mx.array) -> None:
        """Models put the same keys here, to be computed after something else."""
        self.buffers[0] = keys

    values = put_in_vain(lambda self: self.buffers[-1] if self.buffers else None)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        if self._step != self.slots.step:
            self._step, self._added = self.slots.step, 0
        new = self._encoded(keys, values)
        if not self.buffers:
            self._allot(new)
        self.buffers = list(map(self._written, self.buffers, new))
        self._added += keys.shape[2]
        found = self.keys_and_values()
        return (found[0], found[0]) if values is keys else found

    def keys_and_values(self) -> Any:
        slots = self.slots
        reach = slots.longest + slots.count  # in a ring, as far as there are any
        return tuple([buffer[slots.low : slots.high, :, :reach] for buffer in self.buffers])

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        slots = self.slots
        if window_size is None or self._reach() <= window_size:
            window_size = None
            if slots.level and not return_array:
                return None if N == 1 else "causal"
            if slots.count == N:
                return slots.mask
        return _seen(self._positions(N), self._reach(), window_size)

    def _positions(self, count: int) -> mx.array:
        """Indexes of the step's next tokens in their sequences, [computed slots, count] or [1, count]."""
        positions = self.slots.positions()
        if count == self.slots.count:
            return positions
        start = self._added if self._step == self.slots.step else 0
        return positions[:, start : start + count]

    # How tokens are laid out. Other kinds with keys and values change these.

    def _reach(self) -> int:
        """Tokens along the buffers that this step attends to."""
        return self._size(self.slots.longest + self.slots.count)

    def _encoded(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """What is stored of new keys and values, one array for each buffer."""
        return [keys, keys[..., :0] if values is keys else values]  # as `IndexCache` has it

    def _decoded(self, parts: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        """Keys and values of what is stored."""
        return parts[0], parts[1]

    def _size(self, capacity: int) -> int:
        """Tokens that the buffers hold for such a capacity."""
        return capacity if self.ring is None else min(capacity, self.ring)

    def _written(self, buffer: mx.array, new: mx.array) -> mx.array:
        slots, ring = self.slots, self.ring
        if not new.size:
            return buffer
        # The new tokens of slots of one length are a piece, unless they may begin anew in a ring.
        in_pieces = len(slots.runs) <= MOST_PIECES and (ring is None or slots.count == 1)
        if in_pieces and new.shape[2] == slots.count:
            for low, high, length in slots.runs:
                start = length if ring is None else length % ring
                own = new if slots.level else new[low - slots.low : high - slots.low]
                buffer[low:high, :, start : start + slots.count] = own
        elif slots.count == 1:
            # Twice as quick as an assignment by index, and no copy as long as it is of the whole buffer: slots
            # that this step does not compute get zeros.
            before, after = slots.low, len(slots.lengths) - slots.high
            if before or after:
                new = mx.pad(new, [(before, after), (0, 0), (0, 0), (0, 0)])
            buffer = mx.put_along_axis(buffer, slots.places(new.shape, ring), new, axis=2)
        else:
            rows = mx.arange(slots.low, slots.high)
            places = self._positions(new.shape[2])
            buffer[rows[:, None], :, places if ring is None else places % ring] = new.transpose(0, 2, 1, 3)
        return buffer

    def _allot(self, new: list[mx.array]) -> None:
        """Make the buffers for such arrays [any, heads, any, size]."""
        slots, size = len(self.slots.lengths), self._size(self.slots.capacity)
        self.buffers = [TokenArray.of(array).zeros(slots, size) for array in new]

    # What its group asks for.

    def write(self, slot: int, keys: mx.array, values: mx.array, start: int) -> None:
        """Keys and values [1, heads, n, size] of a sequence, from place `start` of the buffers on."""
        self._put(slot, self._encoded(keys, values), start)

    def _put(self, slot: int, new: list[mx.array], start: int) -> None:
        if not self.buffers:
            self._allot(new)
        for buffer, added in zip(self.buffers, new, strict=True):
            buffer[slot : slot + 1, :, start : start + added.shape[2]] = added

    def store(self, slot: int, cache: Any) -> None:
        start = 0
        for keys, values in zip(*held_packed(cache), strict=True):
            self._put(slot, [*keys, *values], start)
            start += keys[0].shape[2]
        if start < cache.offset:
            keys, values = (array[..., start : cache.offset, :] for array in (cache.keys, cache.values))
            self.write(slot, keys, values, start)

    def adopt(self, slot: int, other: "BatchedAttention", theirs: int) -> None:
        stop = other.slots.lengths[theirs]
        # What is quantised is not quantised again: that would change it.
        self._put(slot, [buffer[theirs : theirs + 1, :, :stop] for buffer in other.buffers], 0)

    def view(self, slot: int, stop: int) -> KVCache:
        parts = [part[slot : slot + 1, :, :stop] for part in self.buffers]
        keys, values = self._decoded(parts)
        cache = KVCache() if values.size else IndexCache()
        if self.form:
            cache.packed = [parts[:3]], [parts[3:]]
        cache.keys, cache.values = keys, values
        cache.offset = stop
        return cache

    def grow(self, slots: int, capacity: int) -> None:
        self.buffers = [enlarged(buffer, slots, self._size(capacity)) for buffer in self.buffers]

    def pack(self, kept: Sequence[int], capacity: int) -> None:
        picked = mx.array(list(kept))
        self.buffers = [buffer[:, :, : self._size(capacity)][picked] for buffer in self.buffers]

    def arrays(self) -> list[mx.array]:
        return self.buffers


def _seen(positions: mx.array, reach: int, window_size: int | None) -> mx.array:
    """Which of the first keys, as far as these `reach`, the tokens at some positions [rows, count] see."""
    queries, keys = positions[..., None], mx.arange(reach)
    mask = keys <= queries
    if window_size is not None:
        mask = mask & (keys > queries - window_size)
    return mask[:, None]


def enlarged(buffer: mx.array, slots: int, size: int) -> mx.array:
    """A buffer [slots, heads, size, ...] with zeros in as many slots and places as are missing."""
    for axis, more in ((2, size - buffer.shape[2]), (0, slots - buffer.shape[0])):
        if more > 0:
            shape = list(buffer.shape)
            shape[axis] = more
            zeros = mx.broadcast_to(mx.zeros((), buffer.dtype), shape)
            buffer = mx.concatenate([buffer, zeros], axis=axis)
    return buffer


class AttentionInSlot(KVCache):  # type: ignore[misc] # mlx-lm has no types
    """A prompt's cache whose keys and values are views of its slot, [1, heads, capacity, size]: what is computed there
    need not be copied when the sequence begins to decode."""

    def __init__(self, batched: BatchedAttention, slot: Slot) -> None:
        self.batched = batched
        self.slot = slot
        self._tokens = 0

    @property
    def offset(self) -> int:
        return self._tokens

    @offset.setter
    def offset(self, tokens: int) -> None:
        # The table knows, too: steps that compute the slot in passing must write behind the prompt.
        self._tokens = tokens
        self.batched.slots.fill(self.slot.index, tokens)

    keys = put_in_vain(lambda self: self._part(0))
    values = put_in_vain(lambda self: self._part(1))

    def _part(self, number: int) -> mx.array | None:
        buffers, index = self.batched.buffers, self.slot.index
        return buffers[number][index : index + 1] if buffers else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.batched.write(self.slot.index, keys, values, self._tokens)
        self.offset = self._tokens + keys.shape[2]
        found = self.keys_and_values()
        return (found[0], found[0]) if values is keys else found


class ForkedAttention(KVCache):  # type: ignore[misc]
    """The cache of a branch: it begins with the first tokens of a prompt's cache, reads them where they lie, and keeps
    its own tokens apart, for which it takes memory in steps of `step`."""

    def __init__(self, trunk: Any, tokens: int, step: int) -> None:
        self.trunk = trunk
        self.tokens = tokens
        self.own = KVCache() if trunk.values.size else IndexCache()
        self.own.step = step

    @property
    def offset(self) -> int:
        return self.tokens + int(self.own.offset)

    @property
    def state(self) -> Any:
        return self.own.state

    keys = property(lambda self: self.own.keys)
    values = property(lambda self: self.own.values)

    def trim(self, n: int) -> int:
        return int(self.own.trim(n))

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.own.update_and_fetch(keys, values)
        found = self.keys_and_values()
        return (found[0], found[0]) if values is keys else found

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        pairs = zip((self.trunk.keys, self.trunk.values), self.own.keys_and_values(), strict=True)
        keys, values = (mx.concatenate([theirs[:, :, : self.tokens], own], axis=2) for theirs, own in pairs)
        return keys, values


class JoinedAttention:
    """The caches of several prompts as a model sees one, for a pass over chunks of all, padded on the right."""

    def __init__(self, caches: Sequence[Any], counts: Sequence[int]) -> None:
        self.caches = caches
        self.counts = counts
        before = [cache.offset for cache in caches]
        self._longest = max(start + count for start, count in zip(before, counts, strict=True))
        self._starts = mx.array(before, dtype=mx.int32)
        self._written = False

    # The first prompt's, for models that compute something after them: then all of a pass is computed.
    keys = put_in_vain(lambda self: self.caches[0].keys)
    values = put_in_vain(lambda self: self.caches[0].values)

    @property
    def offset(self) -> mx.array:
        return self._starts + mx.array(list(self.counts), dtype=mx.int32) if self._written else self._starts

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Give each cache its own tokens; all keys and values, [prompts, heads, longest, size]."""
        self._written = True
        for row, (cache, count) in enumerate(zip(self.caches, self.counts, strict=True)):
            own = slice(row, row + 1)
            new = keys[own, :, :count]
            cache.update_and_fetch(new, new if values is keys else values[own, :, :count])
        # All are written before any is looked at: they may lie in one array, which would be copied otherwise.
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        both = zip(*(cache.keys_and_values() for cache in self.caches), strict=True)
        keys, values = map(self._side_by_side, both)
        return keys, values

    def _side_by_side(self, parts: Sequence[mx.array]) -> mx.array:
        padded = [
            mx.pad(part, [(0, 0), (0, 0), (0, self._longest - part.shape[2]), (0, 0)])
            if part.shape[2] < self._longest
            else part
            for part in parts
        ]
        return mx.concatenate(padded)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return _seen(self._starts[:, None] + mx.arange(N), self._longest, window_size)


class BatchedQuantized(BatchedAttention):
    """Six buffers: packed keys, their scales and biases, and so for values.

    mlx-lm's attention tells by the attribute `bits` that it is given such. It computes with one number of bits: where
    keys and values have different ones, each layer is given them dequantised, which costs memory for one layer at a
    time.
    """

    def __init__(self, slots: SlotTable, key_bits: int, value_bits: int, group_size: int) -> None:
        super().__init__(slots)
        self.form = (key_bits, value_bits, group_size)
        if key_bits == value_bits:
            self.bits, self.group_size = key_bits, group_size

    def _encoded(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        *both, group_size = self.form
        return [
            part
            for array, bits in zip((keys, values), both, strict=True)
            for part in mx.quantize(array, group_size=group_size, bits=bits)
        ]

    def keys_and_values(self) -> Any:
        parts = super().keys_and_values()
        return (parts[:3], parts[3:]) if hasattr(self, "bits") else self._decoded(parts)

    def _decoded(self, parts: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        *both, group_size = self.form
        keys, values = (
            mx.dequantize(packed, scales, biases, group_size, bits)
            for (packed, scales, biases), bits in zip((parts[:3], parts[3:]), both, strict=True)
        )
        return keys, values


def held_packed(cache: Any) -> tuple[list[list[mx.array]], list[list[mx.array]]]:
    """The keys and values of the first tokens that a sequence's own cache has in few bits too, so that none is
    quantised twice: pieces in order, each of packed words, scales and biases. Nobody takes a cache back to before their
    end."""
    found: tuple[list[list[mx.array]], list[list[mx.array]]] = vars(cache).setdefault("packed", ([], []))
    return found


class RoundedCache(KVCache):  # type: ignore[misc]
    """mlx-lm's cache of one sequence, whose keys and values are rounded to few bits as they come."""

    def __init__(self, computed: KVCache, bits: tuple[int, int], group_size: int) -> None:
        super().__init__()
        self._forms = [(group_size, each) for each in bits]
        self.update_and_fetch(
            *(array[..., : computed.offset, :] for array in (computed.keys, computed.values))
        )

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        both = zip((keys, values), self._forms, strict=True)
        rounded = (mx.dequantize(*mx.quantize(array, *form), *form) for array, form in both)
        found: tuple[mx.array, mx.array] = super().update_and_fetch(*rounded)
        return found


def quantized_bytes(array: TokenArray, bits: int, group_size: int) -> int:
    """Bytes of a token's vectors. A group has a scale and a bias beside its bits."""
    values = array.heads * array.size
    return values * bits // 8 + 2 * (values // group_size) * array.dtype.size


@dataclass(frozen=True, kw_only=True)
class AttentionKind(CacheKind):
    """Prompts have mlx-lm's `KVCache`. What a batch keeps in few bits is quantised for the prefix cache, or else when a
    prompt is stored in its slot: until then it lies beside it, in both forms."""

    serves = (KVCache, IndexCache)
    twins = ("HyV4KVCache",)  # which takes memory in other steps
    joins = True

    keys: TokenArray
    values: TokenArray
    key_bits: int = 0  # with those of values; 0 where both are kept as they are computed
    value_bits: int = 0
    group_size: int = 0

    @classmethod
    def of(cls, cache: Any) -> Self:
        return cls(keys=TokenArray.of(cache.keys), values=TokenArray.of(cache.values))

    def slot_bytes(self, capacity: int, slack: int) -> int:
        if not self.key_bits:
            return (self.keys.token_bytes + self.values.token_bytes) * capacity
        keys = quantized_bytes(self.keys, self.key_bits, self.group_size)
        return (keys + quantized_bytes(self.values, self.value_bits, self.group_size)) * capacity

    def prompt_bytes(self, capacity: int, chunk: int) -> int:
        packed = self.slot_bytes(capacity, 0) if self.key_bits else 0
        return (self.keys.token_bytes + self.values.token_bytes) * capacity + packed

    def presize(self, cache: Any, tokens: int) -> None:
        cache.step = tokens

    def batched(self, slots: SlotTable) -> BatchedAttention:
        if self.key_bits:
            return BatchedQuantized(slots, self.key_bits, self.value_bits, self.group_size)
        return BatchedAttention(slots)

    @property
    def in_slots(self) -> bool:
        return not self.key_bits

    def in_slot(self, batched: Any, slot: Slot) -> AttentionInSlot:
        return AttentionInSlot(batched, slot)

    def joined(self, caches: Sequence[Any], counts: Sequence[int]) -> JoinedAttention:
        return JoinedAttention(caches, counts)

    def quantized(self, key_bits: int, value_bits: int, group_size: int) -> CacheKind:
        if not self.values.size:
            return self  # an index chooses by its keys: other tokens would be attended to
        return replace(self, key_bits=key_bits, value_bits=value_bits, group_size=group_size)

    def rounded(self, cache: Any) -> Any:
        if not self.key_bits:
            return cache
        return RoundedCache(cache, (self.key_bits, self.value_bits), self.group_size)

    @property
    def token_arrays(self) -> tuple[TokenArray, ...]:
        return (self.keys, self.values) if self.values.size else (self.keys,)

    @property
    def block_form(self) -> tuple[int, int] | None:
        alike = self.key_bits == self.value_bits > 0
        return (self.group_size, self.key_bits) if alike else None

    def cut(self, cache: Any) -> list[mx.array]:
        return [cache.keys, cache.values][: len(self.token_arrays)]

    def fill(self, cache: Any, arrays: Sequence[mx.array]) -> None:
        keys, *values = arrays
        cache.update_and_fetch(keys, *(values or [keys]))


KIND = AttentionKind
