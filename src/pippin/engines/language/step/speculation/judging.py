"""What the model chooses where it was given proposals: what plain steps would have chosen there, by each sequence's own
draws, masks and penalties."""

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
    """What the model chose for a sequence, the proposals as far as it agrees and one token more; and at which places of
    the pass it chose that. The first place is that of the sequence's last token."""

    chosen: list[SampledToken]
    places: Sequence[int]


class _Walk:
    """A sequence's way through a tree: what is chosen at a place says where it goes on."""

    def __init__(self, proposal: Proposal) -> None:
        places = enumerate(zip(proposal.ways, proposal.tokens, strict=True), start=1)
        self._next = {(parent + 1, token): place for place, (parent, token) in places}
        self.places = [0]
        self.chosen: list[SampledToken] = []
        self.goes_on = True

    @property
    def passed(self) -> list[int]:
        """The chosen tokens that the tree has."""
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
    """What each sequence allows [sequences with a mask, words] once its tokens have `passed`."""
    masked = [index for index, each in enumerate(running) if each.sequence.decoder.needs_mask]
    if not masked:
        return [], None
    masks = np.zeros((len(masked), words), np.int32)
    for mask, index in zip(masks, masked, strict=True):
        running[index].sequence.decoder.mask_after(passed[index], mask)
    return masked, masks


class Judge:
    """Chooses by a sampler, which is told nothing of it."""

    def __init__(self, sampler: BatchSampler, tokenizer: Tokenizer, mask_words: int) -> None:
        """`mask_words`: of a mask, 32 tokens in each."""
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
        """Drawn at all places at once."""
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
        """Drawn at one place of each sequence at a time, for what is drawn there says which is next."""
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
        """What each of `width` places allows [width, sequences with a mask, words], as if the tokens had `passed`."""
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
    """How many of the proposed tokens are what was chosen, up to the first that is not, or that nobody knows of."""
    pairs = list(zip(proposed, chosen, strict=False))
    return next((place for place, (ours, its) in enumerate(pairs) if ours != its), len(pairs))
