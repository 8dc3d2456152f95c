"""Drafts by an assistant that attends to the model's keys and values. It has no cache of its own and reads no prompt.

For each sequence it is given the model's state at the newest token that the model has computed, and the model's caches
of that sequence.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from pippin.engines.language.drafters.assistants import Assistant
from pippin.engines.language.model.states import HiddenStates
from pippin.engines.language.step.sequences import Prefilling, Running, Sequence
from pippin.engines.language.step.speculation.proposers import NOTHING, Follower, Proposal


class _End(NamedTuple):
    """How many tokens of a prompt are computed, and the state [1, 1, size] after the last of them."""

    tokens: int
    state: mx.array


class Assistants(Follower):
    """Proposes the tokens that an assistant drafts greedily."""

    prompts: dict[Prefilling, _End]
    followed: dict[Sequence, mx.array]  # the state [1, 1, size] after the newest token that a sequence keeps

    def __init__(self, assistant: Assistant, states: HiddenStates) -> None:
        super().__init__(states, assistant.own_bytes)
        self.assistant = assistant

    # Notifications of the model's passes: see `Follower`

    def prompts_passed(self, prompts: Many[Prefilling], counts: Many[int], done: int = 0) -> list[mx.array]:
        states = self.states.take()
        for row, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            self.prompts[prompt] = _End(prompt.computed + done + count, _state(states, row, count))
        return [self.prompts[prompt].state for prompt in prompts]

    def started(self, running: Running, prompt: Prefilling) -> None:
        end = self.prompts.get(prompt)
        if end is not None and end.tokens == prompt.length:
            self.followed[running.sequence] = end.state

    def kept(self, counts: Mapping[Running, int]) -> list[mx.array]:
        passed, self._passed = self._passed, {}
        found: list[mx.array] = []
        for running, count in counts.items():
            if running.sequence in self.followed:
                group = running.slot.group
                found.append(_state(passed[group], running.slot.index - group.low, count))
                self.followed[running.sequence] = found[-1]
        return found

    # Proposals: see `Proposer`

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        # One sequence at a time: in a batch, the keys and values of all would have to be copied.
        drafts = {
            sequence: self._draft(sequence, most)
            for sequence, most in wanted
            if most and self.is_ready(sequence)
        }
        mx.eval(list(drafts.values()))
        return [
            Proposal(np.array(drafts[sequence])[0].tolist()) if sequence in drafts else NOTHING
            for sequence, _ in wanted
        ]

    def _draft(self, sequence: Sequence, most: int) -> mx.array:
        running, state = sequence.stage, self.followed[sequence]
        assert isinstance(running, Running)
        length = running.slot.length
        return self.assistant.draft(sequence.tokens[-1], state, running.slot.view(length), length, most)


def _state(states: mx.array, row: int, count: int) -> mx.array:
    """The state [1, 1, size] after the first `count` tokens of a row; a copy, so that the other states can be freed."""
    return mx.contiguous(states[row : row + 1, count - 1 : count])
