"""Chooses tokens at the places of proposals exactly as plain steps would, with each sequence's own draws, masks and
penalties."""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.engines.language.sampling.sampler import BatchSampler, SampledToken
from pippin.engines.language.step.sequences import Running
from pippin.engines.language.step.speculation.proposers import Proposal
from pippin.engines.language.text.tokenizer import Tokenizer

Masks = tuple[list[int], NDArray[np.int32] | None]
"""Indices of the sequences that need a mask, and the masks."""


class Way(NamedTuple):
    """The tokens chosen for a sequence, which are the accepted proposals and one token more, and the places of the pass
    at which they were chosen. The first place is that of the sequence's last token."""

    chosen: list[SampledToken]
    places: Sequence[int]


class _Walk:
    """A sequence's way through a tree: the token chosen at a place decides which place is next."""

    def __init__(self, proposal: Proposal) -> None:
        places = enumerate(zip(proposal.ways, proposal.tokens, strict=True), start=1)
        self._next = {(parent + 1, token): place for place, (parent, token) in places}
        self.places = [0]
        self.chosen: list[SampledToken] = []
        self.goes_on = True

    @property
    def passed(self) -> list[int]:
        """The chosen tokens that are in the tree."""
        return [each.token for each in self.chosen[: len(self.places) - 1]]

    def take(self, sampled: SampledToken) -> None:
        if not self.goes_on:
            return
        self.chosen.append(sampled)
        following = self._next.get((self.places[-1], sampled.token))
        if following is None:
            self.goes_on = False
        else:
            self.places.append(following)


def masks_after(running: list[Running], passed: Sequence[list[int]], words: int) -> Masks:
    """The masks of allowed tokens [sequences with a mask, words], each after the tokens `passed` of its sequence."""
    masked = [index for index, each in enumerate(running) if each.sequence.decoder.needs_mask]
    if not masked:
        return [], None
    masks = np.zeros((len(masked), words), np.int32)
    for mask, index in zip(masks, masked, strict=True):
        running[index].sequence.decoder.mask_after(passed[index], mask)
    return masked, masks


class Judge:
    """Chooses with a sampler, whose state it leaves as it is."""

    def __init__(self, sampler: BatchSampler, tokenizer: Tokenizer, mask_words: int) -> None:
        """`mask_words`: words of a mask, each of which has bits for 32 tokens."""
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._mask_words = mask_words

    def choose(self, running: list[Running], logits: mx.array, proposals: list[Proposal]) -> list[Way]:
        """From the logits [n, width, vocabulary] of a pass over the last token of each sequence and its proposals."""
        if any(each.parents is not None for each in proposals):
            return self._through_trees(running, logits, proposals)
        return self._along_chains(running, logits, [each.tokens for each in proposals])

    def _along_chains(
        self, running: list[Running], logits: mx.array, proposals: list[list[int]]
    ) -> list[Way]:
        """Draws at all places at once."""
        width = logits.shape[1]
        tokens = np.zeros((len(running), width - 1), np.int32)
        for row, proposed in zip(tokens, proposals, strict=True):
            row[: len(proposed)] = proposed
        masked, masks = self._masks(running, proposals, width)
        each_place = [] if masks is None else list(masks)
        drawn = self._sampler.sample_ahead(logits, tokens, each_place, [masked] * len(each_place))
        wanted = [each.sequence.logprobs for each in running]
        sampled = [each.read(self._tokenizer, wanted) for each in drawn]
        found = []
        for index, proposed in enumerate(proposals):
            chosen = [each[index] for each in sampled]
            count = 1 + agreed(proposed, [each.token for each in chosen])
            found.append(Way(chosen[:count], range(count)))
        return found

    def _through_trees(
        self, running: list[Running], logits: mx.array, proposals: list[Proposal]
    ) -> list[Way]:
        """Draws at one place of each sequence at a time, because the drawn token decides which place is next."""
        walks = [_Walk(proposal) for proposal in proposals]
        wanted = [each.sequence.logprobs for each in running]
        rows = mx.arange(len(walks))
        ahead = self._sampler.ahead()
        while True:
            here = logits[rows, mx.array([walk.places[-1] for walk in walks])]
            masked, masks = masks_after(running, [walk.passed for walk in walks], self._mask_words)
            sampled = ahead.choose(here, masks, masked).read(self._tokenizer, wanted)
            for walk, each in zip(walks, sampled, strict=True):
                walk.take(each)
            if not any(walk.goes_on for walk in walks):
                return [Way(walk.chosen, walk.places) for walk in walks]
            ahead.take(np.array([each.token for each in sampled], np.int32))

    def _masks(self, running: list[Running], passed: list[list[int]], width: int) -> Masks:
        """The masks of allowed tokens [width, sequences with a mask, words], at each place as if the tokens of `passed`
        before it had been chosen."""
        masked = [index for index, each in enumerate(running) if each.sequence.decoder.needs_mask]
        if not masked:
            return [], None
        masks = np.full((width, len(masked), self._mask_words), -1, dtype=np.int32)
        for number, index in enumerate(masked):
            own = np.full((len(passed[index]) + 1, self._mask_words), -1, dtype=np.int32)
            running[index].sequence.decoder.masks_ahead(passed[index], own)
            masks[: len(own), number] = own
        return masked, masks


def agreed(proposed: list[int], chosen: list[int]) -> int:
    """How many of the proposed tokens were chosen, up to the first that was not, or for which no choice is known."""
    pairs = list(zip(proposed, chosen, strict=False))
    return next((place for place, (ours, its) in enumerate(pairs) if ours != its), len(pairs))
