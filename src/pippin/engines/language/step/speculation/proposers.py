"""Where proposals of next tokens come from: the text itself, or a smaller model."""

from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.engines.language.kv_cache.layout import CacheLayout, arrays_of, new_prompt_cache
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.step.sequences import Sequence

NGRAM = 3  # tokens at the end of a text that are looked for earlier in it
SHORTEST_NGRAM = 2


class Proposer(Protocol):
    """Guesses how sequences go on. What it keeps of a sequence it forgets when that leaves the batch."""

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """Up to `most` tokens that may follow."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence runs no more."""
        ...

    def sequence_bytes(self, capacity: int) -> int:
        """Of what is kept for a sequence, with capacity for so many tokens."""
        ...


class PromptLookup:
    """Proposes what followed the last tokens where they stood before in the text."""

    def __init__(self) -> None:
        self._seen: dict[Sequence, tuple[int, dict[tuple[int, ...], int]]] = {}

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        tokens = sequence.tokens
        done, positions = self._seen.get(sequence, (0, {}))
        for end in range(max(done, SHORTEST_NGRAM), len(tokens)):  # the last tokens themselves come next time
            for size in range(SHORTEST_NGRAM, min(NGRAM, end) + 1):
                positions[tuple(tokens[end - size : end])] = end
        self._seen[sequence] = (len(tokens), positions)
        for size in range(min(NGRAM, len(tokens)), SHORTEST_NGRAM - 1, -1):
            position = positions.get(tuple(tokens[-size:]))
            if position is not None:
                return tokens[position : position + most]
        return []

    def forget(self, sequence: Sequence) -> None:
        self._seen.pop(sequence, None)

    def sequence_bytes(self, capacity: int) -> int:
        return 0


@dataclass
class _Draft:
    cache: PromptCache
    tokens: list[int] = field(default_factory=list)  # that the cache holds


class DraftModel:
    """Proposes what a smaller model says, greedily. It reads a long prompt a chunk at a time."""

    def __init__(self, model: nn.Module, chunk: int, layout: CacheLayout) -> None:
        """`chunk`: most tokens that it reads in a step."""
        self._model = model
        self._chunk = chunk
        self._layout = layout
        self._drafts: dict[Sequence, _Draft] = {}

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        draft = self._drafts.setdefault(sequence, _Draft(new_prompt_cache(self._model)))
        self._take_back(draft, sequence.tokens)
        new = sequence.tokens[len(draft.tokens) :]
        if len(new) > self._chunk:
            self._model(mx.array([new[: self._chunk]]), cache=draft.cache)
            draft.tokens += new[: self._chunk]
            mx.eval(arrays_of(draft.cache))
            return []
        proposed: list[mx.array] = []
        inputs = mx.array([new])
        for _ in range(most):
            token = mx.argmax(self._model(inputs, cache=draft.cache)[:, -1:], axis=-1)
            proposed.append(token)
            inputs = token
        found: list[int] = np.array(mx.concatenate(proposed, axis=1))[0].tolist() if proposed else []
        draft.tokens += new + found[:-1] if proposed else []
        return found

    def _take_back(self, draft: _Draft, tokens: list[int]) -> None:
        """Forget what the draft holds and the sequence does not; at least one token is left to be read."""
        known = draft.tokens
        same = next(
            (position for position, (a, b) in enumerate(zip(known, tokens, strict=False)) if a != b),
            min(len(known), len(tokens)),
        )
        same = min(same, len(tokens) - 1)
        if same < len(known):
            for layer in draft.cache:
                layer.trim(len(known) - same)
            del known[same:]

    def forget(self, sequence: Sequence) -> None:
        self._drafts.pop(sequence, None)

    def sequence_bytes(self, capacity: int) -> int:
        return self._layout.prompt_bytes(capacity)
