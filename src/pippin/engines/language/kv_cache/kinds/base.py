"""What a kind of cache is: all that the engine must know of one of mlx-lm's caches to batch sequences in its slots.

A slot is the place of one sequence along the first axis of a group's arrays. A `SlotTable` knows how far each is
filled; a `Slot` is the handle that is given out.

mlx-lm gives each layer of a model a cache: keys and values of full attention (`KVCache`) or of a window that slides
(`RotatingKVCache`), states of a recurrent layer (`ArraysCache`). For each there is a `CacheKind`, which makes the
`BatchedCache` that the model is given in a batch, and knows how the cache of a single prompt is sized, computed in its
slot, cut into the prefix cache's blocks and put together again. Nothing else asks what type a cache has.
"""

# ruff: noqa: B027 (a method that is empty here is one for which most kinds have nothing to do)

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Protocol, Self

import mlx.core as mx
from msgspec import Struct

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


class SlotRequest(Struct, frozen=True, kw_only=True):
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

    @property
    def bytes(self) -> int:
        """What its arrays take now."""

    def forward(self, tokens: mx.array) -> mx.array:
        """Run tokens [slots, n] through the model and its caches: logits [slots, n, vocabulary]."""

    def reserve(self, request: SlotRequest) -> "Slot":
        """A slot with capacity for the request's tokens and its growth. As many sequences as are `following` will ask
        soon. With no growth nothing is made to spare."""

    def prompt_cache(self, slot: "Slot") -> PromptCache:
        """A new cache in which to compute the prompt of a reserved slot: in the slot, as far as the kinds of cache
        allow it. The slot then keeps the cache that it is joined with."""

    def join(self, slot: "Slot", cache: PromptCache, shift: int) -> None:
        """Let steps compute a reserved slot, whose prompt is in `cache`; what does not lie in the slot yet is copied,
        and may be used again. `shift` is what rotary positions of later tokens differ by from their indexes."""

    def leave(self, slot: "Slot") -> None:
        """The sequence goes, or will not come."""

    def adopt(self, slot: "Slot", request: SlotRequest) -> None:
        """Take a sequence over from another group of the model, as it is stored there, into what it would be given for
        this request. The handle stays the same."""

    def length(self, index: int) -> int: ...

    def rewind(self, tokens: Mapping[int, int]) -> None:
        """After a step of several tokens: of each slot named the last so many are forgotten. Only where sequences lie
        together."""

    def view(self, index: int, stop: int) -> PromptCache: ...

    def compact(self) -> None:
        """Move a sequence into a hole between others where that pays."""

    def pack(self) -> None:
        """Give up all slots and capacity to spare."""

    def bytes_with(self, request: SlotRequest) -> int:
        """Bytes at most, after `reserve` with the same."""

    def bytes_after(self, count: int) -> int:
        """Bytes at most, after a step of so many tokens."""


class Slot(Struct, eq=False, kw_only=True):
    """Where one sequence's cache lies, from its reservation until it leaves.

    `group` and `index` change as slots are compacted, packed, or promoted to another group. Only `kv_cache` writes
    them; whoever holds the handle reads them anew for every step.
    """

    length_class: int
    group: SlotGroup
    index: int
    prompt_length: int  # in tokens
    cache: PromptCache | None = None  # in which its prompt is computed in the slot

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.group.length(self.index)

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
        self.longest = 0
        self.level = True  # all sequences are equally long
        # Slots side by side of one length: from, to, and the length.
        self.runs: list[tuple[int, int, int]] = []
        # Where the next token of each slot is written, for arrays of a shape and a ring's size; only where not level.
        self._places: dict[tuple[tuple[int, ...], int | None], mx.array] = {}

    def begin(self, count: int) -> None:
        """A step of `count` tokens for each sequence begins."""
        self.step += 1
        self.count = count
        lengths = self.lengths[self.low : self.high]
        self.longest = max(lengths)
        self.runs, start = [], self.low
        for at, (one, other) in enumerate(pairwise(lengths), self.low + 1):
            if one != other:
                self.runs.append((start, at, one))
                start = at
        self.runs.append((start, self.high, lengths[-1]))
        self.level = len(self.runs) == 1
        self.starts = lengths[0] if self.level else mx.array(lengths, dtype=mx.int32)
        self._places.clear()
        self.offset_before = self.starts
        for made in ("offset_after", "mask"):
            vars(self).pop(made, None)

    @cached_property
    def offset_after(self) -> int | mx.array:
        """What the offset is once the step's tokens are there, for which few models ask."""
        return self.offset_before + self.count

    @cached_property
    def mask(self) -> mx.array:
        """Which keys each of the step's tokens sees where all are kept, [computed slots or 1, 1, count, keys]."""
        return (mx.arange(self.longest + self.count) <= self.positions()[..., None])[:, None]

    def places(self, shape: tuple[int, ...], ring: int | None) -> mx.array:
        """The index of each slot's next token, modulo a ring's size if there is one, for an array of this shape [slots,
        heads, 1, size]. The layers of a step share it."""
        found = self._places.get((shape, ring))
        if found is None:
            indexes = self.lengths if ring is None else [length % ring for length in self.lengths]
            column = mx.array(indexes, dtype=mx.int32).reshape(-1, 1, 1, 1)
            found = self._places[shape, ring] = mx.broadcast_to(column, shape)
        return found

    def advance(self, taken: Iterable[int]) -> None:
        """The step's tokens lie in these slots."""
        for index in taken:
            self.lengths[index] += self.count

    def rewind(self, index: int, tokens: int) -> None:
        self.lengths[index] -= tokens

    def fill(self, index: int, length: int, shift: int = 0) -> None:
        """So many tokens lie in a slot. A step that computes it in passing writes behind them."""
        self.lengths[index], self.shifts[index] = length, shift

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

    def positions(self) -> mx.array:
        """Indexes of this step's tokens in their sequences, [computed slots, count] or [1, count]."""
        starts = mx.array([self.starts]) if isinstance(self.starts, int) else self.starts
        return starts[:, None] + mx.arange(self.count)


Snapshot = tuple[mx.array | None, ...]
"""The state of one layer's cache after some tokens."""


@dataclass(frozen=True)
class TokenArray:
    """The shape of an array [slots, heads, capacity, size] that holds something for each token."""

    heads: int
    size: int
    dtype: mx.Dtype

    @classmethod
    def of(cls, array: mx.array) -> Self:
        return cls(array.shape[1], array.shape[3], array.dtype)

    @cached_property
    def token_bytes(self) -> int:
        return self.heads * self.size * self.dtype.size

    def zeros(self, slots: int, capacity: int) -> mx.array:
        return mx.zeros((slots, self.heads, capacity, self.size), dtype=self.dtype)


class BatchedCache(ABC):
    """One layer's cache of all slots of a group, which the model is given as that layer's cache.

    Towards the model it answers as mlx-lm's cache of its kind does. The layers of a group share one `SlotTable`. A
    sequence lies in its slot whatever its neighbours do: joining writes one slot, leaving writes nothing.
    """

    def __init__(self, slots: SlotTable) -> None:
        self.slots = slots

    @abstractmethod
    def store(self, slot: int, cache: Any) -> None:
        """Copy what a prompt's own cache of this kind holds into a slot."""

    @abstractmethod
    def adopt(self, slot: int, other: Any, theirs: int) -> None:
        """Copy a sequence from a slot of another batched cache of the same layer, or from another slot of this one."""

    @abstractmethod
    def view(self, slot: int, stop: int) -> Any:
        """A sequence as mlx-lm's cache of this kind, as of position `stop`, without copies where that is possible."""

    def rewind(self, tokens: Mapping[int, int]) -> None:
        """After a step of several tokens: of each slot named the last so many are forgotten, fewer than the step had.
        Called once after the step, before the table of slots is told."""

    def clear(self, slot: int) -> None:
        """Between steps: the sequence in a slot begins anew, with no tokens. Nothing is to be done where lengths tell
        all."""

    def checkpoint(self) -> Any:
        """The state of all sequences now, for `restore`: what does not follow from their lengths. None for keys and
        values, which nobody reads behind the end of a sequence. The returned value must not change later. It must not
        refer to an array that the next steps write into in place, which MLX would copy then. Called after `rewind` of
        the last step, if there is one."""
        return None

    def restore(self, checkpoint: Any) -> None:
        """Return all sequences to their state at `checkpoint`, however many steps came since. They are in the same
        slots as then, and the steps since had no more tokens, with padding and rewound ones, than the table's slack.
        Called before the table of slots is told."""

    def grow(self, slots: int, capacity: int) -> None:
        """Have as many slots of such a capacity; never fewer than before."""

    @abstractmethod
    def pack(self, kept: Sequence[int], capacity: int) -> None:
        """Have these slots alone, in this order, with such a capacity. The table of slots is told afterwards."""

    def cover(self, low: int, high: int) -> None:
        """Steps compute the slots `low` to `high` from now on. The table of slots is told afterwards."""

    @abstractmethod
    def arrays(self) -> list[mx.array]:
        """All that it holds."""


class CacheKind(ABC):
    """One layer's kind of cache with the shapes of one model, as a value: equal for layers that are alike.

    A subclass is a frozen dataclass in a file of `kinds/`, which names it `KIND`.
    """

    serves: ClassVar[tuple[type, ...]]
    """Classes of mlx-lm's caches, by identity: a subclass may behave otherwise."""

    twins: ClassVar[tuple[str, ...]] = ()
    """Names of classes of mlx-vlm that keep the same as those, beside those of the same name."""

    replays: ClassVar[bool] = False
    """Whether batched sequences forget tokens by calling the layer's modules again, for there is no state but the
    newest: see `replay.py`."""
    joins: ClassVar[bool] = False
    """Whether prompts of different lengths can be computed together: `joined` gives what the model then sees."""

    @property
    def batches(self) -> bool:
        """Whether there is a batched form. Sequences of a model with a layer that has none run one at a time."""
        return True

    @classmethod
    @abstractmethod
    def of(cls, cache: Any) -> Self:
        """The kind of a layer, from its cache of a prompt that the model has run."""

    @classmethod
    def like(cls, cache: Any, beside: Sequence[Any]) -> Any:
        """A new cache of a class that is served, for a layer that mlx-vlm made its twin of that class for; the twin
        itself if it is not served among the caches `beside` it in the layer, of which there are none where it is
        alone."""
        return cls.serves[0]()

    @abstractmethod
    def slot_bytes(self, capacity: int, slack: int) -> int:
        """Bytes of one slot with capacity for so many tokens, as `batched` holds it."""

    def prompt_bytes(self, capacity: int, chunk: int) -> int:
        """Bytes of a prompt's own cache with capacity for so many tokens, while a chunk is added to it."""
        return self.slot_bytes(capacity, chunk)  # in both the chunk lies beside what it attends to

    def presize(self, cache: Any, tokens: int) -> None:
        """Have a new cache take memory for so many tokens at once, instead of growing step by step with a copy each."""

    @abstractmethod
    def batched(self, slots: SlotTable) -> BatchedCache:
        """An empty cache of all slots of a table."""

    @property
    def in_slots(self) -> bool:
        """Whether prompts are computed where their sequence will decode: `in_slot` gives what the model then sees."""
        return False

    def in_slot(self, batched: Any, slot: Slot) -> Any:
        """What a prompt's cache is to the model while it is computed in its slot. `slot` may move meanwhile."""
        raise NotImplementedError

    def joined(self, caches: Sequence[Any], counts: Sequence[int]) -> Any:
        """The caches of several prompts as the model sees one, in a pass over the next `counts` tokens of each, padded
        on the right."""
        raise NotImplementedError

    def quantized(self, key_bits: int, value_bits: int, group_size: int) -> "CacheKind":
        """The kind that keeps the same in few bits; itself where there is none."""
        return self

    def rounded(self, cache: Any) -> Any:
        """A prompt's cache whose content, and what comes to it, is rounded as a batch keeps it: the judge of
        `quantized`."""
        return cache

    # What the prefix cache keeps of a prompt's cache. Arrays for each token are cut into blocks; what cannot be cut is
    # copied whole, as a snapshot of how it stands after a block.

    @property
    def token_arrays(self) -> tuple[TokenArray, ...]:
        """The shapes of what is cut into blocks; the prompt's own cache holds it unpacked. Without any, sequences need
        a snapshot to go on from."""
        return ()

    @property
    def block_form(self) -> tuple[int, int] | None:
        """Group size and bits of the form in which blocks are kept; None where they are kept as they are cut."""
        return None

    def cut(self, cache: Any) -> list[mx.array]:
        """The arrays that are cut, [1, heads, capacity, size] each."""
        return []

    def fill(self, cache: Any, arrays: Sequence[mx.array]) -> None:
        """Give a new cache what was cut, [1, heads, tokens, size] each."""
        raise NotImplementedError

    def snapshot(self, cache: Any) -> Snapshot:
        """Copies of what cannot be cut."""
        return ()

    def restore(self, cache: Any, snapshot: Snapshot, tokens: int) -> None:
        """Give a new cache a snapshot that was made after so many tokens."""
        raise NotImplementedError
