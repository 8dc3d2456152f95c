"""Where the sequences of a model lie: the groups that go through it together, and the memory that they may take.

This is what a scheduler's step talks to. It tells lengths, and is given handles: `reserve` gives a `Slot`, `join` lets
it be computed, `leave` ends it, whatever was moved in between.
"""

from collections.abc import Callable, Iterable

from pippin.engines.language.kv_cache import capacity as sizes
from pippin.engines.language.kv_cache.layout import CacheLayout
from pippin.engines.language.kv_cache.slots import PromptCache, Slot, SlotGroup, SlotRequest

GroupKey = tuple[int, bool]
"""A class of lengths, and whether its sequences are too short yet for quantised keys and values."""


class CacheGroups:
    """Sequences of a class of lengths share a group, so that a long one does not pad short ones."""

    def __init__(
        self, layout: CacheLayout, new_group: Callable[[int], SlotGroup], plain_below: int = 0
    ) -> None:
        """`layout` is that of prompts. `new_group` is told the tokens of its first sequence; those of fewer than
        `plain_below` have groups apart."""
        self.layout = layout
        self._new_group = new_group
        self._plain_below = plain_below
        self._groups: dict[GroupKey, SlotGroup] = {}
        self._joined: dict[Slot, None] = {}  # in the order in which they joined

    def reserve(self, request: SlotRequest, limit: int) -> Slot:
        """A slot for a sequence whose prompt will be computed in it (see `prompt_cache`), or is computed. `limit`:
        bytes that all sequences may take."""
        key = self._key(request.length_class, request.length)
        growth, following = self._spare(key, request, limit)
        return self._groups[key].reserve(request, growth, following)

    def prompt_cache(self, slot: Slot) -> PromptCache:
        """A new cache for the prompt of a reserved slot, in the slot as far as the kinds of cache allow it."""
        return slot.group.prompt_cache(slot)

    def join(self, cache: PromptCache, slot: Slot, shift: int = 0) -> None:
        """Let steps compute a reserved slot, whose prompt is in `cache`. That may be used again if it is not the one of
        `prompt_cache`. `shift` is what rotary positions of later tokens differ by from their indexes."""
        slot.group.join(slot, cache, shift)
        self._joined[slot] = None

    def leave(self, slots: Iterable[Slot]) -> None:
        """These sequences end, or will not come."""
        for slot in slots:
            slot.group.leave(slot)
            self._joined.pop(slot, None)
        self._forget_empty()

    def promote(self, slot: Slot, length_class: int) -> None:
        """A sequence has grown into another class: `fit` takes it there."""
        slot.length_class = length_class

    def _key(self, length_class: int, length: int) -> GroupKey:
        return length_class, length < self._plain_below

    def _spare(self, key: GroupKey, request: SlotRequest, limit: int) -> tuple[int, int]:
        """By how many tokens such a sequence may grow, and how many may follow it, before the group has to grow again:
        none where memory is short. Makes the group if there is none."""
        if key not in self._groups:
            self._groups[key] = self._new_group(request.length)
        growth = min(request.growth, sizes.GROWTH_CHARGED)
        needed = self._groups[key].bytes_with(request, growth, request.following)
        others = sum(group.bytes_after(1) for other, group in self._groups.items() if other != key)
        if others + needed <= limit:
            return growth, request.following
        self._pack()
        return 0, 0

    def fit(self, limit: int, count: int = 1) -> bool:
        """Before a step of so many tokens: give up slots and capacity to spare where `limit`, the bytes that sequences
        may take, asks for it; whether the step fits then. The scheduler sees to it that a step of one token does once
        it has preempted."""
        self._move_grown(limit)
        if self._bytes_after(count) <= limit:
            return True
        self._pack()
        return self._bytes_after(count) <= limit

    def _move_grown(self, limit: int) -> None:
        """Sequences that have grown out of their group go over to another."""
        keys = {group: key for key, group in self._groups.items()}
        for slot in self._joined:
            length_class, plain = keys[slot.group]
            if length_class == slot.length_class and not (plain and slot.length >= self._plain_below):
                continue
            key = self._key(slot.length_class, slot.length)
            request = SlotRequest(length=slot.length, growth=slot.growth, length_class=slot.length_class)
            growth, _ = self._spare(key, request, limit)
            keys[self._groups[key]] = key
            self._groups[key].adopt(slot, growth)
        self._forget_empty()

    def _bytes_after(self, count: int) -> int:
        return sum(group.bytes_after(count) for group in self._groups.values())

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
