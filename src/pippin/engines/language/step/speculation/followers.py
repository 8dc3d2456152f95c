"""The interface of proposers that draft from the model's hidden states: they are told of each pass of the model."""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Protocol

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds.base import SlotGroup
from pippin.engines.language.step.sequences import Prefilling, Running
from pippin.engines.language.step.speculation.proposers import Proposer


class Follower(Proposer, Protocol):
    """A proposer that follows the passes of prompts, and then of the sequences in the batch."""

    rests: bool
    """Whether it is hardly asked any more, and need not read prompts that begin now."""

    def prompts_passed(self, prompts: Many[Prefilling], counts: Many[int], done: int = 0) -> list[mx.array]:
        """The model has computed the next `counts` tokens of these prompts. Returns the arrays that are to be
        evaluated. `done`: tokens before them that the scheduler does not know of yet."""

    def prompt_dropped(self, prompt: Prefilling) -> None:
        """No sequence of the prompt joins the batch any more."""

    def started(self, running: Running, prompt: Prefilling) -> None:
        """A sequence of the prompt joins the batch."""

    def passed(self, group: SlotGroup) -> None:
        """The sequences of a group have gone through the model."""

    def kept(self, counts: Mapping[Running, int]) -> list[mx.array]:
        """Keep so many of the first tokens of the last pass for each sequence, at least one.

        Returns the arrays that are to be evaluated.
        """
