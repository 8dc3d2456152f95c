"""The slots of a group: what is asked for, the handle that is given out, and the table of how far each is filled.

A slot is the place of one sequence along the first axis of a group's arrays. Kinds of cache and groups both build on
this module.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import mlx.core as mx

LENGTH_CLASSES = (2048, 16384)  # sequences of a class share arrays, so a long one does not pad short ones
CAPACITY_STEP = 256  # tokens by which a class's arrays grow, at least
# Steps in which longer arrays grow to twice their size: each copies all of their sequences.
STEPS_OF_DOUBLING = 8
# Tokens yet to be generated that a sequence is charged for at admission; more is preemption's matter.
GROWTH_CHARGED = 512


def length_class(tokens: int) -> int:
    return bisect_left(LENGTH_CLASSES, tokens)


def charged_growth(growth: int) -> int:
    """The tokens for which a sequence is charged at admission, of those by which it may still grow."""
    return min(growth, GROWTH_CHARGED)


def rounded(tokens: int) -> int:
    """The capacity that is allotted for so many tokens."""
    step = max(CAPACITY_STEP, (1 << max(tokens - 1, 0).bit_length()) // (2 * STEPS_OF_DOUBLING))
    return -(-tokens // step) * step


def slot_capacity(length: int, growth: int, slack: int) -> int:
    """The capacity of the slots that a sequence of so many tokens joins, which may grow by up to `growth`."""
    return rounded(length + min(growth, CAPACITY_STEP) + slack + 1)


PromptCache = list[Any]
"""The cache of one sequence by itself: one object for each layer, as mlx-lm's `make_prompt_cache` makes them."""


@dataclass(frozen=True, kw_only=True)
class SlotRequest:
    """What is known of a sequence when it asks for a slot."""

    length: int  # tokens that its prompt has
    growth: int  # tokens that may be added to these
    length_class: int  # sequences of one class share arrays, see `length_class` above
    following: int = 0  # sequences of its class that will ask soon


class SlotGroup(Protocol):
    """Sequences that go through the model together, as a batch sees them, whatever they lie in.

    `low` to `high` are the slots that a step computes; `forward` takes and gives one entry for each of them.
    """

    @property
    def low(self) -> int: ...

    @property
    def high(self) -> int: ...

    @property
    def empty(self) -> bool:
        """Whether no slot is reserved or taken."""
        ...

    @property
    def bytes(self) -> int:
        """What its arrays take now."""
        ...

    def forward(self, tokens: mx.array) -> mx.array:
        """Run tokens [slots, n] through the model and its caches: logits [slots, n, vocabulary]."""
        ...

    def reserve(self, request: SlotRequest, growth: int, following: int) -> "Slot":
        """A slot with capacity for the request's tokens and `growth` more. As many sequences as are `following` will
        ask soon. With no growth nothing is made to spare."""
        ...

    def prompt_cache(self, slot: "Slot") -> PromptCache:
        """A new cache in which to compute the prompt of a reserved slot: in the slot, as far as the kinds of cache
        allow it. The slot then keeps the cache that it is joined with."""
        ...

    def join(self, slot: "Slot", cache: PromptCache, shift: int) -> None:
        """Let steps compute a reserved slot, whose prompt is in `cache`; what does not lie in the slot yet is copied.
        `shift` is what rotary positions differ by from indexes of tokens."""
        ...

    def leave(self, slot: "Slot") -> None:
        """The sequence goes, or will not come."""
        ...

    def adopt(self, slot: "Slot", growth: int) -> None:
        """Take a sequence over from another group of the model, as it is stored there. The handle stays the same."""
        ...

    def length(self, index: int) -> int: ...

    def rewind(self, tokens: Mapping[int, int]) -> None:
        """After a step of several tokens: of each slot named the last so many are forgotten. Only where sequences lie
        together."""
        ...

    def view(self, index: int, stop: int) -> PromptCache: ...

    def compact(self) -> None:
        """Move a sequence into a hole between others where that pays."""
        ...

    def pack(self) -> None:
        """Give up all slots and capacity to spare."""
        ...

    def bytes_with(self, request: SlotRequest, growth: int, following: int) -> int:
        """Bytes at most, after `reserve` with the same."""
        ...

    def bytes_after(self, count: int) -> int:
        """Bytes at most, after a step of so many tokens."""
        ...


@dataclass(eq=False, kw_only=True)
class Slot:
    """Where one sequence's cache lies, from its reservation until it leaves.

    `group` and `index` change as slots are compacted, packed, or promoted to another group. Only `kv_cache` writes
    them; whoever holds the handle reads them anew for every step.
    """

    request: SlotRequest
    length_class: int
    group: SlotGroup
    index: int
    cache: PromptCache | None = None  # in which its prompt is computed in the slot

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.group.length(self.index)

    @property
    def growth(self) -> int:
        """Tokens that may still be added."""
        return self.request.length + self.request.growth - self.length

    def view(self, stop: int) -> PromptCache:
        """The sequence as a cache of its own, as of position `stop`; good until the next step. Sliding attention can
        look back by the table's slack, recurrent state is the newest whatever `stop` is."""
        return self.group.view(self.index, stop)


class SlotTable:
    """How far each slot of a group is filled, and which of them a step computes.

    The batched caches of all layers share one table and read its fields in every step, hence plain attributes; only
    the methods here assign to them. A step computes the slots `low` to `high`. One without a sequence among them
    stands at length 0 and computes what nobody reads.
    """

    def __init__(self, slack: int = 0) -> None:
        """`slack`: tokens by which a sequence can be rewound, and viewed as of an earlier position."""
        self.slack = slack
        self.step = 0  # counts the steps
        self.count = 1  # tokens of each sequence in this step
        self.clear()

    def clear(self) -> None:
        """No slots."""
        self.low = 0
        self.high = 0
        self.capacity = 0  # tokens that each slot has memory for
        self.lengths: list[int] = []  # of each slot, before this step
        self.shifts: list[int] = []  # of each slot, by which rotary positions differ from indexes of tokens
        # Of this step; the offsets are one number where all sequences are equally long.
        self.starts: int | mx.array = 0  # indexes of first tokens; offsets are rotary positions
        self.offset_before: int | mx.array = 0
        self.offset_after: int | mx.array = 0
        self.longest = 0
        self.level = True  # all sequences are equally long
        # Slots side by side of one length: from, to, and the length.
        self.runs: list[tuple[int, int, int]] = []
        # Indexes of each slot's next token, [slots, 1, 1, 1]; only where not level.
        self.next_indexes = mx.array([], dtype=mx.int32)

    def begin(self, count: int) -> None:
        """A step of `count` tokens for each sequence begins."""
        self.step += 1
        self.count = count
        lengths = self.lengths[self.low : self.high]
        self.longest = max(lengths)
        self.runs, start = [], self.low
        for length, run in groupby(lengths):
            stop = start + len(list(run))
            self.runs.append((start, stop, length))
            start = stop
        self.level = len(self.runs) == 1
        if self.level:
            self.starts = lengths[0]
        else:
            self.starts = mx.array(lengths, dtype=mx.int32)
            self.next_indexes = mx.array(self.lengths, dtype=mx.int32).reshape(-1, 1, 1, 1)
        self.offset_before = self.starts
        self.offset_after = self.offset_before + count

    def advance(self, taken: Iterable[int]) -> None:
        """The step's tokens lie in these slots."""
        for index in taken:
            self.lengths[index] += self.count

    def rewind(self, index: int, tokens: int) -> None:
        self.lengths[index] -= tokens

    def fill(self, index: int, length: int, shift: int = 0) -> None:
        """So many tokens lie in a slot. A step that computes it in passing writes behind them."""
        self.lengths[index], self.shifts[index] = length, shift

    def vacate(self, index: int) -> None:
        self.lengths[index] = self.shifts[index] = 0

    def move(self, source: int, target: int) -> None:
        """What lies in one slot lies in another now, and nothing where it was."""
        self.fill(target, self.lengths[source], self.shifts[source])
        self.vacate(source)

    def grow(self, slots: int, capacity: int) -> bool:
        """Have as many slots of such a capacity, if these are more; whether anything changed."""
        more = max(slots - len(self.lengths), 0)
        self.lengths.extend([0] * more)
        self.shifts.extend([0] * more)
        larger = capacity > self.capacity
        self.capacity = max(capacity, self.capacity)
        return bool(more) or larger

    def keep(self, kept: list[int], capacity: int) -> None:
        """Have these slots alone, in this order, with such a capacity."""
        self.lengths = [self.lengths[index] for index in kept]
        self.shifts = [self.shifts[index] for index in kept]
        self.capacity = capacity

    def cover(self, low: int, high: int) -> None:
        """Steps compute these slots from now on."""
        self.low, self.high = low, high

    @property
    def computed(self) -> int:
        """Slots that a step computes."""
        return self.high - self.low

    def over_all_slots(self, array: mx.array) -> mx.array:
        """An array [computed slots, ...] with zeros for the slots that this step does not compute."""
        before, after = self.low, len(self.lengths) - self.high
        return mx.pad(array, [(before, after), (0, 0), (0, 0), (0, 0)]) if before or after else array

    def positions(self) -> mx.array:
        """Indexes of this step's tokens in their sequences, [computed slots, count] or [1, count]."""
        starts = mx.array([self.starts]) if isinstance(self.starts, int) else self.starts
        return starts[:, None] + mx.arange(self.count)

    def rotary_shifts(self) -> mx.array | None:
        """The numbers [computed slots, 1] by which rotary positions differ from indexes of tokens; None where they are
        the same. Media in a prompt take fewer positions than they have tokens."""
        shifts = self.shifts[self.low : self.high]
        return mx.array(shifts, dtype=mx.int32)[:, None] if any(shifts) else None
