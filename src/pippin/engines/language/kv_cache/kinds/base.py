"""What a kind of cache is: all that the engine must know of one of mlx-lm's caches to batch sequences with it.

mlx-lm gives each layer of a model a cache: keys and values of full attention (`KVCache`) or of a window that slides
(`RotatingKVCache`), states of a recurrent layer (`ArraysCache`). For each there is a `CacheKind`, which makes the
`BatchedCache` that the model is given in a batch, and knows how the cache of a single prompt is sized, computed in its
slot, cut into the prefix cache's blocks and put together again. Nothing else asks what type a cache has.
"""

# ruff: noqa: B027 (a method that is empty here is one for which most kinds have nothing to do)

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import mlx.core as mx

from pippin.engines.language.kv_cache.slots import Slot, SlotTable

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
        Called before the table of slots is told. The checkpoint can be restored again."""

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

    @abstractmethod
    def prompt_bytes(self, capacity: int, chunk: int) -> int:
        """Bytes of a prompt's own cache with capacity for so many tokens, while a chunk is added to it."""

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
        """Bits and group size of the form in which blocks are kept; None where they are kept as they are cut."""
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
