"""Sequences with the model's own caches, one after the other: for models with a cache that has no batched form."""

from collections.abc import Mapping
from copy import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.language.kv_cache import slots as sizes
from pippin.engines.language.kv_cache.layout import CacheLayout, leaves, regrouped, without_padding
from pippin.engines.language.kv_cache.slots import PromptCache, Slot, SlotRequest


class SoloGroup:
    """A `SlotGroup` of caches as the model makes them."""

    def __init__(self, model: nn.Module, layout: CacheLayout, *, shares: bool = False) -> None:
        """`shares`: a prompt's cache goes on as its sequence's. Then prompts have one sequence each."""
        self._model = model
        self._layout = layout
        self._shares = shares
        self._slots: list[Slot | None] = []
        self._caches: list[PromptCache | None] = []  # None for a slot that is free, or reserved
        self._lengths: list[int] = []
        self._shifts: list[int] = []

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return len(self._slots)

    @property
    def empty(self) -> bool:
        return not self._slots

    def length(self, index: int) -> int:
        return self._lengths[index]

    def reserve(self, request: SlotRequest, growth: int, following: int) -> Slot:
        slot = Slot(request=request, length_class=request.length_class, group=self, index=len(self._slots))
        self._append(slot, None, 0, 0)
        return slot

    def _append(self, slot: Slot, cache: PromptCache | None, length: int, shift: int) -> None:
        self._slots.append(slot)
        self._caches.append(cache)
        self._lengths.append(length)
        self._shifts.append(shift)

    def prompt_cache(self, slot: Slot) -> PromptCache:
        return self._layout.new_prompt_cache(slot.request.length)

    def join(self, slot: Slot, cache: PromptCache, shift: int) -> None:
        index = slot.index
        self._caches[index] = cache if self._shares else copied(cache)
        self._lengths[index], self._shifts[index] = slot.request.length, shift

    def leave(self, slot: Slot) -> None:
        self._free(slot.index)

    def _free(self, index: int) -> None:
        self._slots[index] = self._caches[index] = None
        while self._slots and self._slots[-1] is None:
            for held in (self._slots, self._caches, self._lengths, self._shifts):
                held.pop()

    def adopt(self, slot: Slot, growth: int) -> None:
        source, theirs = slot.group, slot.index
        assert isinstance(source, SoloGroup)  # all groups of a model are alike
        slot.group, slot.index = self, len(self._slots)
        self._append(slot, source._caches[theirs], source._lengths[theirs], source._shifts[theirs])
        source._free(theirs)

    def rewind(self, tokens: Mapping[int, int]) -> None:
        for index, count in tokens.items():
            for cache in self._caches[index] or ():
                cache.trim(count)
            self._lengths[index] -= count

    def forward(self, tokens: mx.array) -> mx.array:
        tokens = without_padding(self._model, tokens)
        results: list[mx.array | None] = []
        for index, cache in enumerate(self._caches):
            shifted = {"shift": self._shifts[index]} if self._shifts[index] else {}
            results.append(
                None if cache is None else self._model(tokens[index : index + 1], cache=cache, **shifted)
            )
            self._lengths[index] += tokens.shape[1]
        filled = next(result for result in results if result is not None)
        return mx.concatenate([mx.zeros_like(filled) if result is None else result for result in results])

    def looks_back(self, index: int) -> bool:
        return all(part.is_trimmable() for part in self._caches[index] or ())

    def view(self, index: int, stop: int) -> PromptCache:
        cache = copied(self._caches[index] or [])
        if stop < self._lengths[index]:
            for part in cache:
                part.trim(self._lengths[index] - stop)
        return cache

    def compact(self) -> None:
        pass

    def pack(self) -> None:
        pass

    def bytes_with(self, request: SlotRequest, growth: int, following: int) -> int:
        return self.bytes_after(0) + self._layout.prompt_bytes(request.length + sizes.CAPACITY_STEP)

    def bytes_after(self, count: int) -> int:
        # A cache allots whole steps, from wherever it stands.
        return sum(
            self._layout.prompt_bytes(length + count + sizes.CAPACITY_STEP)
            for length, cache in zip(self._lengths, self._caches, strict=True)
            if cache is not None
        )

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for cache in self._caches for part in cache or () if not part.empty())


def copied(cache: PromptCache) -> PromptCache:
    """A sequence's cache to go on with by itself. Arrays are shared until one side writes: MLX copies then."""
    return regrouped(cache, map(_copied, leaves(cache)))


def _copied(leaf: Any) -> Any:
    # Not by `from_state`, which is not alike in all classes, and forgets in some what is not an array.
    found = copy(leaf)
    values = {name: _listed(value) for name, value in vars(leaf).items()}
    if hasattr(type(leaf), "step"):
        values.pop("step", None)  # the size of the prompt, by which a sequence does not grow
        vars(found).pop("step", None)
    vars(found).update(values)
    return found


def _listed(value: Any) -> Any:
    if isinstance(value, mx.array):
        return value[:] if value.ndim else value
    if isinstance(value, list):
        return [_listed(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_listed(item) for item in value)
    return _copied(value) if hasattr(value, "update_and_fetch") else value
