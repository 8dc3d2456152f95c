"""Drafts by a head on the model's hidden states: each pass of the model tells what states its tokens have left.

The head has a KV cache of its own for each sequence. It reads a state together with the token that came after it, so
that it is one token behind: of the newest token there is a state only after the next pass. States wait until it is
asked, and are then read all at once. Only the newest wait: a head that is not asked for long costs nothing, and begins
anew with them.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from functools import partial

import mlx.core as mx
import numpy as np
from msgspec import Struct, field

from pippin.engines.language.drafters.heads import DraftHead
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds.base import PromptCache, Slot
from pippin.engines.language.kv_cache.layout import CacheLayout, arrays_of
from pippin.engines.language.model.states import HiddenStates
from pippin.engines.language.step.sequences import Prefilling, Running, Sequence
from pippin.engines.language.step.speculation.drafter_slots import DrafterSlots
from pippin.engines.language.step.speculation.proposers import NOTHING, Follower, Proposal

MOST_WAITING = 64  # states of a sequence that wait to be read; what came before them is forgotten


class _Stretch(Struct, frozen=True):
    """States [sequences, tokens, size] of a pass, of which a sequence has `count` of a row, from `start` on."""

    states: mx.array
    row: int
    count: int
    start: int = 0

    def rest(self, read: int) -> "_Stretch":
        return _Stretch(self.states, self.row, self.count - read, self.start + read)


class _Waiting:
    """States of a sequence that wait to be read, the oldest first."""

    def __init__(self, stretches: Iterable[_Stretch] = ()) -> None:
        self.stretches = deque(stretches)
        self.count = sum(each.count for each in self.stretches)  # states

    def add(self, stretch: _Stretch) -> None:
        self.stretches.append(stretch)
        self.count += stretch.count

    def drop(self, count: int) -> None:
        """Drop the oldest `count` states."""
        self.count -= count
        while count:
            oldest = self.stretches.popleft()
            if oldest.count > count:
                self.stretches.appendleft(oldest.rest(count))
            count -= min(count, oldest.count)


class _Prompt(Struct, eq=False):
    """What the head has read of a prompt. It does not know what the prefix cache gave."""

    first: int  # index of the first token whose state it was given, and has not forgotten
    cache: PromptCache
    reads: bool  # else the last states wait
    read: int = 0
    waiting: _Waiting = field(default_factory=_Waiting)
    whole: bool = False  # the state of the prompt's last token is there


class _Followed(Struct, eq=False):
    """A sequence in the batch."""

    slot: Slot
    first: int  # index of the first token whose state the head has not forgotten
    waiting: _Waiting

    def wait(self, stretch: _Stretch) -> None:
        """Add a stretch. If more than `MOST_WAITING` states wait then, the oldest are dropped, together with all that
        the head has read before them."""
        self.waiting.add(stretch)
        too_old = self.waiting.count - MOST_WAITING
        if too_old > 0:
            read = self.slot.length
            if read:
                group = self.slot.group
                assert isinstance(group, BatchedGroup)
                group.clear(self.slot.index)
            self.first += read + too_old
            self.waiting.drop(too_old)

    def following(self, tokens: list[int]) -> list[int]:
        """The tokens that came after the states that wait, as far as they are known."""
        start = self.first + self.slot.length + 1
        return tokens[start : start + self.waiting.count]


class Heads(Follower):
    """Proposes what a draft head says, greedily."""

    prompts: dict[Prefilling, _Prompt]
    followed: dict[Sequence, _Followed]

    def __init__(self, head: DraftHead, layout: CacheLayout, states: HiddenStates, *, most: int) -> None:
        """`most`: tokens that it is asked for at once."""
        super().__init__(states, head.own_bytes)
        self.head = head
        self._layout = layout
        # Of what waits, or of a block with the token before it, all can be forgotten again.
        slack = max(MOST_WAITING, most + 1)
        self._slots = DrafterSlots(head, BatchShape(layout=layout, slack=slack))

    # Notifications of the model's passes: see `Follower`

    def prompts_passed(self, prompts: Many[Prefilling], counts: Many[int], done: int = 0) -> list[mx.array]:
        states, arrays = self.states.take(), []
        for row, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            arrays += self._read_prompt(prompt, prompt.computed + done, states[row : row + 1, :count])
        return arrays

    def _read_prompt(self, prompt: Prefilling, start: int, states: mx.array) -> list[mx.array]:
        """The prompt's tokens from `start` on have left these states [1, n, size]."""
        held = self.prompts.get(prompt)
        if held is None:
            cache = self._layout.new_prompt_cache(prompt.length)
            held = self.prompts[prompt] = _Prompt(start, cache, reads=not self.rests)
        count = states.shape[1]
        tokens = prompt.tokens[start + 1 : start + 1 + count]
        held.whole = len(tokens) < count
        read = len(tokens) if held.reads else max(0, count - MOST_WAITING)
        if read < count:
            # A copy: the others need not be kept for it.
            held.waiting.add(_Stretch(mx.contiguous(states[:, read:]), 0, count - read))
        if held.reads and tokens:
            self.head(mx.array([tokens]), held.cache, states[:, :read])
            held.read += read
        elif not held.reads:
            first = max(held.first, start + count - MOST_WAITING)
            held.waiting.drop(held.waiting.count - (start + count - first))
            held.first = first
        waiting = (each.states for each in held.waiting.stretches)
        return [*(arrays_of(held.cache) if held.read else []), *waiting]

    def started(self, running: Running, prompt: Prefilling) -> None:
        held = self.prompts.get(prompt)
        if held is None or not held.whole:
            return
        slot = self._slots.join(running, held.cache, held.read)
        # Each choice of a request goes on by itself.
        self.followed[running.sequence] = _Followed(slot, held.first, _Waiting(held.waiting.stretches))

    def kept(self, counts: Mapping[Running, int]) -> list[mx.array]:
        passed, self._passed = self._passed, {}
        for running, count in counts.items():
            followed, group = self.followed.get(running.sequence), running.slot.group
            if followed is not None:
                followed.wait(_Stretch(passed[group], running.slot.index - group.low, count))
        return list(passed.values())

    # What is asked of it

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        most = max((count for sequence, count in wanted if sequence in self.followed), default=0)
        if not most:
            return [NOTHING for _ in wanted]
        most = most if self.head.most is None else min(most, self.head.most)
        self._slots.settle()
        drafts = self._slots.drafted(partial(self._draft, most))
        return [Proposal(drafts.get(sequence, [])[:count]) for sequence, count in wanted]

    def forget(self, sequence: Sequence) -> None:
        super().forget(sequence)
        self._slots.leave(sequence)

    def sequence_bytes(self, capacity: int) -> int:
        return max(self._slots.sequence_bytes(capacity), self._layout.prompt_bytes(capacity))

    # How it drafts

    def _read(self, group: BatchedGroup, slots: Mapping[int, Sequence]) -> mx.array:
        """Read all states of a group that wait and whose next tokens are known; gives the head's own state after the
        last one of each sequence [slots, 1, size]."""
        following = {
            slot: self.followed[sequence].following(sequence.tokens) for slot, sequence in slots.items()
        }
        # What is padding is forgotten again. Of a pass of one token states cannot forget that one.
        width = max(1, *(len(after) or 2 for after in following.values()))
        tokens = np.zeros((group.high - group.low, width), np.int32)
        for slot, after in following.items():
            tokens[slot - group.low, : len(after)] = after
        own = group.forward(mx.array(tokens), self._waiting_states(group, slots, width))
        group.rewind({slot: width - len(after) for slot, after in following.items()})
        ends = np.zeros(len(tokens), np.int32)
        for slot, after in following.items():
            ends[slot - group.low] = max(len(after) - 1, 0)
            self.followed[slots[slot]].waiting.drop(len(after))
        return own[mx.arange(len(tokens)), mx.array(ends)][:, None]

    def _waiting_states(self, group: BatchedGroup, slots: Mapping[int, Sequence], width: int) -> mx.array:
        """[slots, width, size], where what is beyond a sequence's own is anything."""
        waiting = {slot: self.followed[sequence].waiting.stretches for slot, sequence in slots.items()}
        none = deque[_Stretch]()
        rows = [waiting.get(slot, none) for slot in range(group.low, group.high)]
        if all(len(row) == 1 for row in rows):
            [*whole] = (row[0] for row in rows)
            first = whole[0]
            of_one_pass = all(each.states is first.states and each.start == first.start for each in whole)
            if of_one_pass and first.states.shape[1] >= first.start + width:
                return first.states[mx.array([each.row for each in whole])][
                    :, first.start : first.start + width
                ]
        dtype = next((row[0].states.dtype for row in rows if row), self.head.dtype)
        return mx.stack([self._padded(row, width, dtype) for row in rows])

    def _padded(self, waiting: Iterable[_Stretch], width: int, dtype: mx.Dtype) -> mx.array:
        """[width, size] that begins with what waits."""
        parts = [each.states[each.row, each.start : each.start + each.count] for each in waiting]
        count = sum(part.shape[0] for part in parts)
        if count < width:
            parts.append(mx.zeros((width - count, self.head.state_size), dtype))
        whole = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        return whole[:width]

    def _draft(self, most: int, group: BatchedGroup, slots: Mapping[int, Sequence]) -> mx.array:
        """Up to `most` tokens for each sequence of a group, by the head's own states after what it has read."""
        own, last = self._read(group, slots), np.zeros((group.high - group.low, 1), np.int32)
        for slot, sequence in slots.items():
            last[slot - group.low] = sequence.tokens[-1]
        with group.forgetting():
            return self.head.draft_ahead(group.forward, mx.array(last), own, most)
