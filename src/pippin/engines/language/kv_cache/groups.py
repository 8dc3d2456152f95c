"""Where the sequences of a model lie: the groups that go through it together, and the memory that they may take.

The sequences of a `BatchedGroup` lie each in its slot of arrays that all share; `CacheGroups` keeps the groups.

This is what a scheduler's step talks to. It tells lengths, and is given handles: `reserve` gives a `Slot`, `join` of
its group lets it be computed, `leave` ends it, whatever was moved in between.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from operator import methodcaller
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from msgspec import Struct
from msgspec.structs import replace

from pippin.engines.language.kv_cache.kinds.base import (
    BatchedCache,
    PromptCache,
    Slot,
    SlotGroup,
    SlotRequest,
    SlotTable,
    charged_growth,
    rounded,
    slot_capacity,
)
from pippin.engines.language.kv_cache.layout import CacheLayout, leaves, without_padding
from pippin.engines.language.kv_cache.pieces import Pieces, price

SPARSE_STEPS = 8  # for which a quarter of the computed slots are holes, before sequences are moved
SPARE_SLOTS = 8  # at most, and no more than there are


class BatchShape(Struct, frozen=True, kw_only=True):
    """How sequences of a model lie together."""

    layout: CacheLayout
    slack: int = 0  # tokens by which a sequence can be rewound
    prompts_in_slots: bool = False  # prompts are computed where their sequences will decode
    launch_bytes: int | None = None  # as in `DevicePlan`

    def slot_bytes(self, capacity: int) -> int:
        return self.layout.slot_bytes(capacity, self.slack)


class BatchedGroup:
    """A `SlotGroup` of batched caches. A slot is reserved, then taken by a sequence, then free."""

    def __init__(self, model: nn.Module, shape: BatchShape) -> None:
        self.model = model
        self._shape = shape
        self.table = SlotTable(shape.slack)
        self._taken: dict[int, Slot] = {}
        self._reserved: dict[int, Slot] = {}
        self._sparse = 0  # steps since a quarter of the computed slots are holes
        self.pieces = (
            None if shape.launch_bytes is None else Pieces(price(shape.layout.kinds, shape.launch_bytes))
        )
        self._excess = 0  # keys that steps have read because sequences lie in no order
        self._reset()

    def _reset(self) -> None:
        """Let go of all memory."""
        self.table.clear()
        self.low = self.high = 0
        self.caches: list[BatchedCache] = [kind.batched(self.table) for kind in self._shape.layout.kinds]
        self._for_model: list[Any] = self._shape.layout.for_model(self.caches)

    @property
    def empty(self) -> bool:
        return not self._taken and not self._reserved

    def length(self, index: int) -> int:
        return self.table.lengths[index]

    def forward(self, tokens: mx.array, states: Any = None) -> mx.array:
        """`states` are given to models that take them beside tokens."""
        table = self.table
        count = tokens.shape[1]
        if (capacity := self._capacity_after(count)) > table.capacity:
            self._grow(len(table.lengths), capacity)
        table.begin(count)
        # Media in a prompt take fewer positions than they have tokens.
        shifts = table.shifts[table.low : table.high]
        given = {"shift": mx.array(shifts, dtype=mx.int32)[:, None]} if any(shifts) else {}
        if states is not None:
            given["states"] = states
        if count > 1:
            tokens = without_padding(self.model, tokens)
        with nullcontext() if self.pieces is None else self.pieces.used(table):
            logits: mx.array = self.model(tokens, cache=self._for_model, **given)
        self._excess += 0 if self.pieces is None else self.pieces.excess
        table.advance(self._taken)
        return logits

    def reserve(self, request: SlotRequest) -> Slot:
        index = self._open(request)
        slot = Slot(length_class=request.length_class, group=self, index=index, prompt_length=request.length)
        self._reserved[index] = slot
        return slot

    def prompt_cache(self, slot: Slot) -> PromptCache:
        layout = self._shape.layout
        if not self._shape.prompts_in_slots:
            return layout.new_prompt_cache(slot.prompt_length)
        slot.cache = layout.in_slot(self.caches, slot)
        return slot.cache

    def join(self, slot: Slot, cache: PromptCache, shift: int) -> None:
        lies_there = cache is slot.cache
        slot.cache = None
        del self._reserved[slot.index]
        self._take(slot, slot.prompt_length, shift)
        for kind, batched, own in zip(self._shape.layout.kinds, self.caches, leaves(cache), strict=True):
            if not (lies_there and kind.in_slots):
                batched.store(slot.index, own)

    def leave(self, slot: Slot) -> None:
        slot.cache = None
        self._free(slot.index)

    def _free(self, index: int) -> None:
        """Give up the slot, in which nothing lies any more."""
        taken = self._taken.pop(index, None)
        self._reserved.pop(index, None)
        self.table.fill(index, 0)
        if self.empty:
            self._reset()
        elif taken is not None:
            self._cover_taken()

    def adopt(self, slot: Slot, request: SlotRequest) -> None:
        source, theirs = slot.group, slot.index
        assert isinstance(source, BatchedGroup)  # all groups of a model are alike
        mine = self._open(request)
        slot.group, slot.index = self, mine
        self._take(slot, request.length, source.table.shifts[theirs])
        for cache, other in zip(self.caches, source.caches, strict=True):
            cache.adopt(mine, other, theirs)
        source._free(theirs)

    def _open(self, request: SlotRequest) -> int:
        """A free slot, with capacity for the request."""
        index = self._free_slot()
        self._grow(*self._size_with(index, request))
        return index

    def _take(self, slot: Slot, length: int, shift: int) -> None:
        """Steps compute this slot from now on."""
        self._taken[slot.index] = slot
        self._cover_taken()
        self.table.fill(slot.index, length, shift)

    def _cover_taken(self) -> None:
        """Have steps compute the slots that are taken, and what lies between them."""
        table = self.table
        low, high = min(self._taken, default=0), max(self._taken, default=-1) + 1
        if (low, high) != (table.low, table.high):
            for cache in self.caches:
                cache.cover(low, high)
            self._cover(low, high)

    def _cover(self, low: int, high: int) -> None:
        """Steps compute these slots from now on."""
        self.table.cover(low, high)
        self.low, self.high = low, high

    def _size_with(self, index: int, request: SlotRequest) -> tuple[int, int]:
        """Slots and capacity once a sequence lies in this slot. Growing copies all sequences, so more slots are made
        than needed: as many as will follow, or some to spare."""
        held = len(self.table.lengths)
        slots = max(held, index + 1)
        if request.growth and slots > held:
            used = len(self._taken) + len(self._reserved)
            slots = max(slots, used + 1 + request.following, min(held * 2, held + SPARE_SLOTS))
        capacity = slot_capacity(request.length, request.growth, self._shape.slack)
        return slots, max(self.table.capacity, capacity)

    def _free_slot(self) -> int:
        holes = self._holes(0, len(self.table.lengths))
        inside = [index for index in holes if self.low <= index < self.high]
        if inside or not holes:
            return inside[0] if inside else len(self.table.lengths)
        return min(holes, key=lambda index: max(index - self.high, self.low - index))

    def _holes(self, low: int, high: int) -> list[int]:
        return [
            index for index in range(low, high) if index not in self._taken and index not in self._reserved
        ]

    def rewind(self, tokens: Mapping[int, int]) -> None:
        for cache in self.caches:
            cache.rewind(tokens)
        for index, count in tokens.items():
            self.table.rewind(index, count)

    def clear(self, index: int) -> None:
        """Between steps: forget all that a slot has. Its sequence begins anew there."""
        for cache in self.caches:
            cache.clear(index)
        self.table.fill(index, 0)

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """All tokens that steps add within this context are forgotten at its end, however many steps and rewinds there
        are. Unlike `rewind`, this computes nothing. The sequences stay in their slots meanwhile, and the steps may have
        no more tokens, with padding, than the shape has slack. If tokens of the step before are to be forgotten,
        `rewind` comes before."""
        lengths = {index: self.length(index) for index in self._taken}
        before = [cache.checkpoint() for cache in self.caches]
        yield
        for cache, own in zip(self.caches, before, strict=True):
            cache.restore(own)
        for index, length in lengths.items():
            self.table.rewind(index, self.length(index) - length)

    def view(self, index: int, stop: int) -> PromptCache:
        return self._shape.layout.for_model(cache.view(index, stop) for cache in self.caches)

    def compact(self) -> None:
        table = self.table
        computed = table.high - table.low
        # Once steps have read as much for want of order as it takes to read and write all.
        if self._excess > 2 * computed * table.capacity:
            self.order()
            return
        # This alone copies a single sequence that did not just join, one for each call, once a quarter of the computed
        # slots are holes that nobody came to fill: a hole costs a sequence's work in every step.
        if len(self._taken) == computed:
            self._sparse = 0
            return
        holes = self._holes(table.low, table.high)
        self._sparse = self._sparse + 1 if holes and len(holes) * 4 >= computed else 0
        if self._sparse <= SPARSE_STEPS:
            return
        source, target = table.high - 1, holes[0]
        for cache in self.caches:
            cache.adopt(target, cache, source)
        table.fill(target, table.lengths[source], table.shifts[source])
        table.fill(source, 0)
        moved = self._taken[target] = self._taken.pop(source)
        moved.index = target
        self._cover_taken()

    def order(self) -> None:
        """Have the computed slots lie in the order of their lengths, holes first."""
        table = self.table
        inside = sorted(range(table.low, table.high), key=self._length_in)
        self._arrange([*range(table.low), *inside, *range(table.high, len(table.lengths))], table.capacity)
        self._excess = 0
        self._cover_taken()

    def _length_in(self, index: int) -> int:
        """The tokens in a slot, or that will be there when its prompt is computed."""
        reserved = self._reserved.get(index)
        return self.table.lengths[index] if reserved is None else reserved.prompt_length

    def pack(self) -> None:
        table = self.table
        kept = sorted([*self._taken, *self._reserved])
        if not kept:
            return
        capacity = min(table.capacity, rounded(max(map(self._length_in, kept)) + self._shape.slack + 1))
        if len(kept) == len(table.lengths) and capacity == table.capacity:
            return
        self._arrange(kept, capacity)
        # No cache is told: those that have computed slots alone have kept just these.
        self._cover(min(self._taken, default=0), max(self._taken, default=-1) + 1)

    def _arrange(self, kept: list[int], capacity: int) -> None:
        """Have these slots alone, in this order, with such a capacity."""
        for cache in self.caches:
            cache.pack(kept, capacity)
            mx.eval(cache.arrays())  # so that no more than one layer lies there twice
        self.table.keep(kept, capacity)
        used = {**self._taken, **self._reserved}
        for new, old in enumerate(kept):
            if old in used:
                used[old].index = new
        self._taken = {slot.index: slot for slot in self._taken.values()}
        self._reserved = {slot.index: slot for slot in self._reserved.values()}

    def bytes_with(self, request: SlotRequest) -> int:
        slots, capacity = self._size_with(self._free_slot(), request)
        return slots * self._shape.slot_bytes(capacity)

    def bytes_after(self, count: int) -> int:
        return len(self.table.lengths) * self._shape.slot_bytes(self._capacity_after(count))

    def _capacity_after(self, count: int) -> int:
        table = self.table
        reach = max(table.lengths, default=0) + count
        return rounded(reach) if reach > table.capacity else table.capacity

    def _grow(self, slots: int, capacity: int) -> None:
        if self.table.grow(slots, capacity):
            for cache in self.caches:
                cache.grow(len(self.table.lengths), self.table.capacity)

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for cache in self.caches for array in cache.arrays())


class CacheGroups:
    """Sequences of a class of lengths share a group, so that a long one does not pad short ones."""

    def __init__(self, layout: CacheLayout, new_group: Callable[[], SlotGroup]) -> None:
        """`layout` is that of prompts."""
        self.layout = layout
        self._new_group = new_group
        self._groups: dict[int, SlotGroup] = {}  # by class of lengths
        # Sequences that have grown out of their group, in order, and by how much they may still grow.
        self._promoted: dict[Slot, int] = {}

    def reserve(self, request: SlotRequest, limit: int) -> Slot:
        """A slot for a sequence whose prompt will be computed in it, or is computed. `limit`: bytes that all
        sequences may take."""
        allowed = self._allowed(request, limit)
        return self._groups[request.length_class].reserve(allowed)

    def leave(self, slots: Iterable[Slot]) -> None:
        """These sequences end, or will not come."""
        for slot in slots:
            slot.group.leave(slot)
            self._promoted.pop(slot, None)
        self._forget_empty()

    def promote(self, slot: Slot, length_class: int, growth: int) -> None:
        """A sequence has grown into another class: `fit` takes it there."""
        slot.length_class = length_class
        self._promoted[slot] = growth

    def _allowed(self, request: SlotRequest, limit: int) -> SlotRequest:
        """The request with as many tokens to grow by, and as many sequences to follow, as there may be before the group
        has to grow again: none where memory is short. Makes the group if there is none."""
        key = request.length_class
        if key not in self._groups:
            self._groups[key] = self._new_group()
        charged = replace(request, growth=charged_growth(request.growth))
        needed = self._groups[key].bytes_with(charged)
        others = sum(group.bytes_after(1) for other, group in self._groups.items() if other != key)
        if others + needed <= limit:
            return charged
        self._pack()
        return replace(request, growth=0, following=0)

    def fit(self, limit: int, count: int = 1) -> bool:
        """Before a step of so many tokens: give up slots and capacity to spare where `limit`, the bytes that sequences
        may take, asks for it; whether the step fits then. The scheduler sees to it that a step of one token does once
        it has preempted."""
        if self._promoted:
            promoted, self._promoted = self._promoted, {}
            for slot, growth in promoted.items():
                key = slot.length_class
                request = SlotRequest(length=slot.length, growth=growth, length_class=key)
                allowed = self._allowed(request, limit)
                self._groups[key].adopt(slot, allowed)
            self._forget_empty()
        taken: Callable[[SlotGroup], int] = methodcaller("bytes_after", count)
        if sum(map(taken, self._groups.values())) <= limit:
            return True
        self._pack()
        return sum(map(taken, self._groups.values())) <= limit

    def _pack(self) -> None:
        for group in self._groups.values():
            group.pack()

    def compact(self) -> None:
        """Move sequences into holes where it pays."""
        for group in self._groups.values():
            group.compact()

    def _forget_empty(self) -> None:
        for key in [key for key, group in self._groups.items() if group.empty]:
            del self._groups[key]

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self._groups.values())
