"""The slots of sequences in a drafter's own caches, so that all sequences of a batch are drafted for together."""

from collections.abc import Callable, Mapping
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape, CacheGroups
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.kinds.base import PromptCache, Slot, SlotRequest, rounded
from pippin.engines.language.step.sequences import Running, Sequence

Draft = Callable[[BatchedGroup, Mapping[int, Sequence]], mx.array]
"""Drafts tokens [slots, count] for the sequences of a group, which are given by the indexes of their slots, or none."""


class DrafterSlots:
    """Like the model's own groups. They take no more memory than the scheduler charges the sequences for, which knows
    it from `sequence_bytes`."""

    def __init__(self, drafter: nn.Module, shape: BatchShape) -> None:
        self._shape = shape
        self.groups = CacheGroups(shape.layout, partial(BatchedGroup, drafter, shape))
        self.of: dict[Sequence, Slot] = {}

    def join(self, running: Running, cache: PromptCache, length: int) -> Slot:
        """Give a sequence a slot, and copy the cache of its first `length` tokens into it."""
        request = SlotRequest(length=length, growth=running.growth, length_class=running.length_class)
        slot = self.groups.reserve(request, self._limit(request))
        slot.group.join(slot, cache, shift=0)
        self.of[running.sequence] = slot
        return slot

    def leave(self, sequence: Sequence) -> None:
        """Free the slot of a sequence, if it has one."""
        slot = self.of.pop(sequence, None)
        if slot is not None:
            self.groups.leave([slot])
            self.groups.fit(self._limit())  # at once: there may be no further draft

    def settle(self) -> None:
        """Move sequences to the groups of their lengths, and give up what is to spare. Called before a draft."""
        for sequence, slot in self.of.items():
            stage = sequence.stage
            if isinstance(stage, Running) and stage.length_class != slot.length_class:
                self.groups.promote(slot, stage.length_class, stage.growth)
        self.groups.fit(self._limit(), max(1, self._shape.slack))  # no draft is longer than the slack
        self.groups.compact()

    def drafted(self, draft: Draft) -> dict[Sequence, list[int]]:
        """The tokens that `draft` gives for the sequences of each group."""
        groups: dict[BatchedGroup, dict[int, Sequence]] = {}
        for sequence, slot in self.of.items():
            assert isinstance(slot.group, BatchedGroup)
            groups.setdefault(slot.group, {})[slot.index] = sequence
        drafts = {group: draft(group, slots) for group, slots in groups.items()}
        mx.eval(list(drafts.values()))
        found: dict[Sequence, list[int]] = {}
        for group, tokens in drafts.items():
            rows = np.array(tokens).tolist()
            found |= {each: rows[slot - group.low] for slot, each in groups[group].items() if rows}
        return found

    def sequence_bytes(self, capacity: int) -> int:
        """Bytes of the slot of a sequence with so many tokens, if no other in its group is longer."""
        return self._shape.slot_bytes(rounded(capacity + self._shape.slack + 1))

    def _limit(self, *joining: SlotRequest) -> int:
        """Bytes that all slots may take, with those of sequences that are `joining`: no more than the scheduler charges
        for, which pads each sequence to the longest of its class."""
        held = [(slot.length_class, slot.length) for slot in self.of.values()]
        held += [(request.length_class, request.length) for request in joining]
        longest: dict[int, int] = {}
        for length_class, length in held:
            longest[length_class] = max(longest.get(length_class, 0), length)
        return sum(self.sequence_bytes(longest[own] + sizes.CAPACITY_STEP) for own, _ in held)
