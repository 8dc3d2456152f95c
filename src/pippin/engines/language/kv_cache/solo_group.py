"""Sequences with the model's own caches, one after the other: for models with a cache that has no batched form."""

from collections.abc import Mapping
from copy import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.kinds.base import PromptCache, Slot, SlotRequest
from pippin.engines.language.kv_cache.layout import CacheLayout, leaves, regrouped


class SoloGroup:
    """A `SlotGroup` of caches as the model makes them."""

    def __init__(self, model: nn.Module, layout: CacheLayout) -> None:
        self.model = model
        self._layout = layout
        self._slots: list[Slot | None] = []
        self.caches: list[PromptCache | None] = []  # None for a slot that is free, or reserved
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
        self.caches.append(cache)
        self._lengths.append(length)
        self._shifts.append(shift)

    def prompt_cache(self, slot: Slot) -> PromptCache:
        return self._layout.new_prompt_cache(slot.request.length)

    def join(self, slot: Slot, cache: PromptCache, shift: int) -> None:
        index = slot.index
        self.caches[index] = copied(cache)
        self._lengths[index], self._shifts[index] = slot.request.length, shift

    def leave(self, slot: Slot) -> None:
        self._free(slot.index)

    def _free(self, index: int) -> None:
        self._slots[index] = self.caches[index] = None
        while self._slots and self._slots[-1] is None:
            for held in (self._slots, self.caches, self._lengths, self._shifts):
                held.pop()

    def adopt(self, slot: Slot, growth: int) -> None:
        source, theirs = slot.group, slot.index
        assert isinstance(source, SoloGroup)  # all groups of a model are alike
        slot.group, slot.index = self, len(self._slots)
        self._append(slot, source.caches[theirs], source._lengths[theirs], source._shifts[theirs])
        source._free(theirs)

    def forward(self, tokens: mx.array) -> mx.array:
        results = [
            None if cache is None else self._run(index, tokens[index : index + 1])
            for index, cache in enumerate(self.caches)
        ]
        self._lengths = [length + tokens.shape[1] for length in self._lengths]
        nothing = mx.zeros_like(next(result for result in results if result is not None))
        return mx.concatenate([nothing if result is None else result for result in results])

    def _run(self, index: int, tokens: mx.array) -> mx.array:
        shifted = {"shift": self._shifts[index]} if self._shifts[index] else {}
        logits: mx.array = self.model(tokens, cache=self.caches[index], **shifted)
        return logits

    def rewind(self, tokens: Mapping[int, int]) -> None:
        raise NotImplementedError("caches of a model's own forget nothing")

    def view(self, index: int, stop: int) -> PromptCache:
        cache = copied(self.caches[index] or [])
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
            for length, cache in zip(self._lengths, self.caches, strict=True)
            if cache is not None
        )

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for cache in self.caches for part in cache or () if not part.empty())


def copied(cache: PromptCache) -> PromptCache:
    """A sequence's cache, of any classes, to go on with by itself. Arrays are shared until one side writes into them,
    for MLX copies then."""
    return regrouped(cache, map(_copy_of, leaves(cache)))


def _copy_of(leaf: Any) -> Any:
    """One layer's cache, where that is no list of several."""
    # Not by `from_state`, which is not alike in all classes, and forgets in some what is not an array.
    found = copy(leaf)
    values = {name: _listed(value) for name, value in vars(leaf).items()}
    if hasattr(type(leaf), "step"):
        values.pop("step", None)  # the size of the prompt, by which a sequence does not grow
        vars(found).pop("step", None)
    vars(found).update(values)
    return found


def _listed(value: Any) -> Any:
    match value:
        case mx.array():
            return value[:] if value.ndim else value
        case list():
            return [_listed(item) for item in value]
        case tuple():
            return tuple(_listed(item) for item in value)
        case dict():
            return {name: _listed(item) for name, item in value.items()}
    return _copy_of(value) if hasattr(value, "update_and_fetch") else value
