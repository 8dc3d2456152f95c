"""Drafts by a smaller model with the same vocabulary, for all sequences of a batch at once.

The draft model has caches of its own, in which each sequence has a slot. A draft is one pass over the new tokens of all
sequences, then one pass of a token each for every further proposal. The state before these passes is restored
afterwards, so that a slot always holds a beginning of its sequence and nothing that was only proposed: no kind of cache
has to take tokens back one by one. A sequence with many new tokens, such as a prompt, is first read in a cache of its
own, a chunk in each step.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from msgspec import Struct

from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.kv_cache.layout import PADDING, arrays_of, worth_joining
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.weights import weight_bytes
from pippin.engines.language.step.sequences import Running, Sequence
from pippin.engines.language.step.speculation.drafter_slots import DrafterSlots
from pippin.engines.language.step.speculation.proposers import NOTHING, Proposal, Proposer

MOST_NEW = 32
"""The most new tokens of a sequence that are read in a pass over all sequences, unless a draft can be longer. All are
padded to the sequence with the most."""


class _Reading(Struct, eq=False):
    """A sequence that is read in a cache of its own."""

    cache: PromptCache
    count: int  # tokens in the cache


class DraftModel(Proposer):
    """Proposes what a smaller model says, greedily."""

    def __init__(self, model: nn.Module, shape: BatchShape, head: Head, *, chunk: int) -> None:
        """`shape`: how its sequences run together; no draft and no pass over new tokens is longer than the slack.
        `head`: its projection onto the vocabulary. `chunk`: the most tokens that it reads of a sequence in a step."""
        self.model = model
        self._head = head
        self.weight_bytes = weight_bytes(model)
        self._chunk = chunk
        self._layout = shape.layout
        self._most_new = shape.slack
        self.slots = DrafterSlots(model, shape)
        self.reading: dict[Sequence, _Reading] = {}

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        asked = {sequence: most for sequence, most in wanted if most}
        self._catch_up(asked)
        self.slots.settle()
        ready = {each: most for each, most in asked.items() if each in self.slots.of and self._new(each) > 0}
        found = self.slots.drafted(partial(self._draft, ready))
        return [Proposal(found[each][:most]) if each in ready else NOTHING for each, most in wanted]

    def forget(self, sequence: Sequence) -> None:
        self.reading.pop(sequence, None)
        self.slots.leave(sequence)

    def sequence_bytes(self, capacity: int) -> int:
        """Bytes of a sequence in its slot, or in a cache of its own, whichever takes more."""
        alone = self._layout.prompt_bytes(capacity, self._chunk)
        return max(self.slots.sequence_bytes(capacity), alone)

    # How a sequence with many new tokens is read

    def _new(self, sequence: Sequence) -> int:
        """The number of tokens of a sequence that are not read yet."""
        held = self.reading.get(sequence)
        return len(sequence.tokens) - (self.slots.of[sequence].length if held is None else held.count)

    def _catch_up(self, sequences: Iterable[Sequence]) -> None:
        """Read a chunk of each sequence that has more new tokens than a pass over all reads. A sequence of which only
        the last token is left afterwards has a slot then."""
        for sequence in sequences:
            if sequence not in self.slots.of and sequence not in self.reading:
                cache = self._layout.new_prompt_cache(len(sequence.tokens))
                self.reading[sequence] = _Reading(cache, 0)
            elif sequence in self.slots.of and self._new(sequence) > self._most_new:
                slot = self.slots.of[sequence]
                self.reading[sequence] = _Reading(slot.view(slot.length), slot.length)
                self.slots.leave(sequence)
        # The last token is left for the pass over all, which gives the logits after it.
        left = {sequence: self._new(sequence) - 1 for sequence in sequences if sequence in self.reading}
        self._read_chunks({sequence: min(count, self._chunk) for sequence, count in left.items() if count})
        for sequence in left:
            running, reading = sequence.stage, self.reading[sequence]
            if self._new(sequence) == 1 and isinstance(running, Running):
                del self.reading[sequence]
                self.slots.join(running, reading.cache, reading.count)

    def _read_chunks(self, counts: Mapping[Sequence, int]) -> None:
        """Read the next tokens of these sequences, in one pass where that pays."""
        readings = [(sequence, self.reading[sequence], count) for sequence, count in counts.items()]
        before = [reading.count for _, reading, _ in readings]
        together = self._layout.joins and len(readings) > 1 and worth_joining(list(counts.values()), before)
        for some in [readings] if together else [[each] for each in readings]:
            new = [each.tokens[reading.count : reading.count + count] for each, reading, count in some]
            caches = [reading.cache for _, reading, _ in some]
            tokens, layers = self._layout.together(new, caches)
            with self._head.only([0] * len(some)):  # the logits are not used
                self.model(tokens, cache=layers)
            mx.eval([arrays_of(cache) for cache in caches])
            for _, reading, count in some:
                reading.count += count

    # How it drafts

    def _draft(
        self, asked: Mapping[Sequence, int], group: BatchedGroup, slots: Mapping[int, Sequence]
    ) -> mx.array:
        # The number of tokens to draft for the group's sequences, by their slots.
        wanted = {slot: asked[sequence] for slot, sequence in slots.items() if sequence in asked}
        if not wanted:
            return mx.zeros((0, 0), mx.int32)
        return self._chains(group, self._read_new(group, slots, wanted), max(wanted.values()))

    def _read_new(
        self, group: BatchedGroup, slots: Mapping[int, Sequence], wanted: Iterable[int]
    ) -> mx.array:
        """Read the new tokens of all sequences of a group, as many as the `wanted` slots have. Returns the logits
        [slots, 1, vocabulary] after the last token of each."""
        width = max(self._new(slots[slot]) for slot in wanted)
        tokens = np.full((group.high - group.low, width), PADDING, np.int32)
        # Each slot needs a token; where a sequence has no new one, it is taken back again.
        tokens[:, 0] = 0
        counts = {slot: min(self._new(sequence), width) for slot, sequence in slots.items()}
        for slot, count in counts.items():
            start = self.slots.of[slots[slot]].length
            tokens[slot - group.low, :count] = slots[slot].tokens[start : start + count]
        last = [max(counts.get(slot, 0) - 1, 0) for slot in range(group.low, group.high)]
        with self._head.only(last):
            logits = self._head.last(group.forward(mx.array(tokens)), last)
        group.rewind({slot: width - count for slot, count in counts.items()})
        return logits[:, None]

    def _chains(self, group: BatchedGroup, logits: mx.array, most: int) -> mx.array:
        """Draft tokens [slots, most] from the logits [slots, 1, vocabulary] after the text. The caches are as before
        then."""
        tokens = [mx.argmax(logits, axis=-1)]
        with group.forgetting():
            while len(tokens) < most:
                tokens.append(mx.argmax(group.forward(tokens[-1]), axis=-1))
        return mx.concatenate(tokens, axis=1)
