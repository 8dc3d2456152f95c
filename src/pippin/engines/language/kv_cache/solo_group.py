"""Sequences with the model's own caches, one after the other: for models with a cache that has no batched form."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.engines.language.kv_cache import slots as sizes
from pippin.engines.language.kv_cache.copies import copied
from pippin.engines.language.kv_cache.layout import PADDING, CacheLayout
from pippin.engines.language.kv_cache.slots import PromptCache, Slot, SlotRequest
from pippin.engines.language.kv_cache.taking_back import Before, copied_bytes


class _Step(NamedTuple):
    """One sequence's part of a step of several tokens."""

    tokens: mx.array  # [1, count]
    padding: int  # tokens of the step beyond those
    before: Before | None  # None where all stay


class SoloGroup:
    """A `SlotGroup` of caches as the model makes them."""

    def __init__(self, model: nn.Module, layout: CacheLayout) -> None:
        self.model = model
        self._layout = layout
        self._slots: list[Slot | None] = []
        self.caches: list[PromptCache | None] = []  # None for a slot that is free, or reserved
        self._lengths: list[int] = []
        self._shifts: list[int] = []
        self._steps: dict[int, _Step] = {}  # of several tokens, until it is known which of them stay

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

    def rewind(self, tokens: Mapping[int, int]) -> None:
        for index, forgotten in tokens.items():
            self._lengths[index] -= forgotten
            step = self._steps.pop(index)
            if step.before is not None:
                step.before.forget(forgotten - step.padding, partial(self._run_again, index, step))

    def _run_again(self, index: int, step: _Step, count: int) -> None:
        self._run(index, step.tokens[:, :count])

    def forward(self, tokens: mx.array) -> mx.array:
        width = tokens.shape[1]
        self._steps = {}
        results = [
            None if cache is None else self._run(index, self._own(index, tokens[index : index + 1], cache))
            for index, cache in enumerate(self.caches)
        ]
        self._lengths = [length + width for length in self._lengths]
        filled = next(result for result in results if result is not None)
        shape = 1, width, filled.shape[-1]
        return mx.concatenate([_filled_up(result, shape, filled.dtype) for result in results])

    def _own(self, index: int, row: mx.array, cache: PromptCache) -> mx.array:
        """A slot's tokens [1, count] of a step without the padding, noted if some may be taken back."""
        width = row.shape[1]
        if width == 1:  # which nobody may know yet
            return row
        count = int((np.array(row) != PADDING).sum())
        before = Before(cache, count) if count > 1 else None
        step = self._steps[index] = _Step(row[:, :count], width - count, before)
        return step.tokens

    def _run(self, index: int, tokens: mx.array) -> mx.array:
        shifted = {"shift": self._shifts[index]} if self._shifts[index] else {}
        logits: mx.array = self.model(tokens, cache=self.caches[index], **shifted)
        return logits

    def row(self, index: int) -> int:
        """Where a slot lies in what the last pass's calls of the model gave, one after the other."""
        return sum(cache is not None for cache in self.caches[:index])

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
            self._layout.prompt_bytes(length + count + sizes.CAPACITY_STEP) + copied_bytes(cache, count)
            for length, cache in zip(self._lengths, self.caches, strict=True)
            if cache is not None
        )

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for cache in self.caches for part in cache or () if not part.empty())


def _filled_up(logits: mx.array | None, shape: tuple[int, int, int], dtype: mx.Dtype) -> mx.array:
    """Logits [1, tokens, vocabulary] with zeros for what is missing."""
    if logits is None:
        return mx.zeros(shape, dtype)
    return (
        logits if logits.shape == shape else mx.pad(logits, [(0, 0), (0, shape[1] - logits.shape[1]), (0, 0)])
    )
