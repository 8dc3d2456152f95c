"""Sequences with the model's own caches, one after the other: for models with a cache that has no batched form."""

from collections.abc import Mapping
from copy import deepcopy

import mlx.core as mx
import mlx.nn as nn
from msgspec import Struct

from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.kinds.base import PromptCache, Slot, SlotRequest
from pippin.engines.language.kv_cache.layout import CacheLayout, leaves


class _Place(Struct):
    """What a slot has; neither tokens nor a cache while it is only reserved."""

    cache: PromptCache | None = None
    length: int = 0
    shift: int = 0


class SoloGroup:
    """A `SlotGroup` of caches as the model makes them."""

    low = 0

    def __init__(self, model: nn.Module, layout: CacheLayout) -> None:
        self.model = model
        self._layout = layout
        self._places: dict[int, _Place] = {}  # by the indexes of slots

    @property
    def high(self) -> int:
        return max(self._places, default=-1) + 1

    @property
    def empty(self) -> bool:
        return not self._places

    def length(self, index: int) -> int:
        return self._places[index].length

    def reserve(self, request: SlotRequest) -> Slot:
        slot = Slot(
            length_class=request.length_class, group=self, index=self.high, prompt_length=request.length
        )
        self._places[slot.index] = _Place()
        return slot

    def prompt_cache(self, slot: Slot) -> PromptCache:
        return self._layout.new_prompt_cache(slot.prompt_length)

    def join(self, slot: Slot, cache: PromptCache, shift: int) -> None:
        self._places[slot.index] = _Place(copied(cache), slot.prompt_length, shift)

    def leave(self, slot: Slot) -> None:
        del self._places[slot.index]

    def adopt(self, slot: Slot, request: SlotRequest) -> None:
        source = slot.group
        assert isinstance(source, SoloGroup)  # all groups of a model are alike
        place = source._places.pop(slot.index)
        slot.group, slot.index = self, self.high
        self._places[slot.index] = place

    def forward(self, tokens: mx.array) -> mx.array:
        results: dict[int, mx.array] = {}
        for index, place in self._places.items():
            if place.cache is not None:
                shifted = {"shift": place.shift} if place.shift else {}
                results[index] = self.model(tokens[index : index + 1], cache=place.cache, **shifted)
                place.length += tokens.shape[1]
        nothing = mx.zeros_like(next(iter(results.values())))
        return mx.concatenate([results.get(index, nothing) for index in range(self.high)])

    def rewind(self, tokens: Mapping[int, int]) -> None:
        raise NotImplementedError("caches of a model's own forget nothing")

    def view(self, index: int, stop: int) -> PromptCache:
        place = self._places[index]
        cache = copied(place.cache or [])
        if stop < place.length:
            for part in cache:
                part.trim(place.length - stop)
        return cache

    def compact(self) -> None:
        pass

    def pack(self) -> None:
        pass

    def bytes_with(self, request: SlotRequest) -> int:
        return self.bytes_after(0) + self._layout.prompt_bytes(request.length + sizes.CAPACITY_STEP)

    def bytes_after(self, count: int) -> int:
        # A cache allots whole steps, from wherever it stands.
        return sum(
            self._layout.prompt_bytes(place.length + count + sizes.CAPACITY_STEP)
            for place in self._places.values()
            if place.cache is not None
        )

    @property
    def bytes(self) -> int:
        caches = (place.cache or () for place in self._places.values())
        return sum(part.nbytes for cache in caches for part in cache if not part.empty())


def copied(cache: PromptCache) -> PromptCache:
    """A sequence's cache, of any classes, to go on with by itself. Arrays are shared until one side writes into them,
    for MLX copies then."""
    # Not by `from_state`, which is not alike in all classes, and forgets in some what is not an array.
    found = deepcopy(cache)
    for leaf in leaves(found):
        if hasattr(type(leaf), "step"):
            vars(leaf).pop("step", None)  # the size of the prompt, by which a sequence does not grow
    return found
