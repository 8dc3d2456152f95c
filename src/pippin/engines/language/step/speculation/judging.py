"""Chooses tokens at the places of proposals exactly as plain steps would, with each sequence's own draws, masks and
penalties."""

import mlx.core as mx
import numpy as np

from pippin.engines.language.sampling.sampler import BatchSampler, Masks, SampledToken
from pippin.engines.language.step.sequences import Running
from pippin.engines.language.step.speculation.proposers import agreed
from pippin.engines.language.text.tokenizer import Tokenizer


class Judge:
    """Chooses with a sampler, whose state it leaves as it is."""

    def __init__(self, sampler: BatchSampler, tokenizer: Tokenizer, mask_words: int) -> None:
        """`mask_words`: words of a mask, each of which has bits for 32 tokens."""
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._mask_words = mask_words

    def choose(
        self, running: list[Running], logits: mx.array, proposals: list[list[int]]
    ) -> list[list[SampledToken]]:
        """The tokens that each sequence takes: its proposals as far as the model agrees, and one token more. `logits`
        [n, width, vocabulary] are those of a pass over the last token of each sequence and its proposals."""
        width = logits.shape[1]
        tokens = np.zeros((len(running), width - 1), np.int32)
        for row, proposed in zip(tokens, proposals, strict=True):
            row[: len(proposed)] = proposed
        drawn = self._sampler.sample_ahead(logits, tokens, self._masks(running, proposals, width))
        sampled = [each.read(self._tokenizer) for each in drawn]
        found = []
        for index, proposed in enumerate(proposals):
            chosen = [each[index] for each in sampled]
            found.append(chosen[: 1 + agreed(proposed, [each.token for each in chosen])])
        return found

    def choose_behind(
        self, running: list[Running], logits: mx.array, chains: list[list[int]]
    ) -> list[list[SampledToken]]:
        """The tokens that each sequence takes: its chain, which is certain, and the token behind it. `logits`
        [n, vocabulary] are those at the ends of the chains."""
        counts = np.array([len(chain) for chain in chains], np.int32)
        tokens = np.zeros((len(running), counts.max()), np.int32)
        for row, chain in zip(tokens, chains, strict=True):
            row[: len(chain)] = chain
        masks = self._masks(running, chains, len(tokens[0]) + 1)
        if masks is not None:
            masks = Masks(masks.rows, masks.bits[counts[masks.rows], np.arange(len(masks.rows))])
        ends = self._sampler.sample_behind(logits, tokens, counts, masks).read(self._tokenizer)
        return [
            [*(SampledToken(token) for token in chain), end] for chain, end in zip(chains, ends, strict=True)
        ]

    def _masks(self, running: list[Running], passed: list[list[int]], width: int) -> Masks | None:
        """The masks of each of `width` places, as if the tokens of `passed` before it had been chosen."""
        masked = [index for index, each in enumerate(running) if each.sequence.decoder.needs_mask]
        if not masked:
            return None
        masks = np.full((width, len(masked), self._mask_words), -1, dtype=np.int32)
        for number, index in enumerate(masked):
            own = np.full((len(passed[index]) + 1, self._mask_words), -1, dtype=np.int32)
            running[index].sequence.decoder.masks_ahead(passed[index], own)
            masks[: len(own), number] = own
        return Masks(masked, masks)
