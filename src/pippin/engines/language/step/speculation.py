"""Proposals of next tokens, which the model then checks several at a time: where they come from, and when they pay.

What is accepted is what the model would have chosen by itself, so answers do not change; only the number of steps does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.engines.language.kv_cache.layout import CacheLayout, arrays_of, new_prompt_cache
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.step.sequences import Row

MOST_ROWS = 4  # with more, a step is busy enough without proposals
NGRAM = 3  # tokens at the end of a text that are looked for earlier in it
SHORTEST_NGRAM = 2
SMOOTHING = 0.1
UNPROPOSED = 4  # steps without proposals at first
PATIENCE = 16  # steps with proposals before they are judged
PAUSE = 128  # steps without, after they did not pay


class Proposer(Protocol):
    def propose(self, row: Row, most: int) -> list[int]:
        """Up to `most` tokens that may follow."""
        ...

    def forget(self, row: Row) -> None: ...

    def row_bytes(self, places: int) -> int:
        """Of what is kept for a row, with places for so many tokens."""
        ...


class PromptLookup:
    """Proposes what followed the last tokens where they stood before in the text."""

    def __init__(self) -> None:
        self._seen: dict[Row, tuple[int, dict[tuple[int, ...], int]]] = {}

    def propose(self, row: Row, most: int) -> list[int]:
        tokens = row.tokens
        done, places = self._seen.get(row, (0, {}))
        for end in range(max(done, SHORTEST_NGRAM), len(tokens)):  # the last tokens themselves come next time
            for size in range(SHORTEST_NGRAM, min(NGRAM, end) + 1):
                places[tuple(tokens[end - size : end])] = end
        self._seen[row] = (len(tokens), places)
        for size in range(min(NGRAM, len(tokens)), SHORTEST_NGRAM - 1, -1):
            place = places.get(tuple(tokens[-size:]))
            if place is not None:
                return tokens[place : place + most]
        return []

    def forget(self, row: Row) -> None:
        self._seen.pop(row, None)

    def row_bytes(self, places: int) -> int:
        return 0


@dataclass
class _Draft:
    cache: PromptCache
    tokens: list[int] = field(default_factory=list)  # that the cache holds


class DraftModel:
    """Proposes what a smaller model says, greedily. It reads a long prompt a chunk at a time."""

    def __init__(self, model: nn.Module, chunk: int, layout: CacheLayout) -> None:
        self._model = model
        self._chunk = chunk
        self._layout = layout
        self._drafts: dict[Row, _Draft] = {}

    def propose(self, row: Row, most: int) -> list[int]:
        draft = self._drafts.setdefault(row, _Draft(new_prompt_cache(self._model)))
        self._take_back(draft, row.tokens)
        new = row.tokens[len(draft.tokens) :]
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

    def _take_back(self, draft: _Draft, tokens: Sequence[int]) -> None:
        """Forget what the draft holds and the row does not; at least one token is left to be read."""
        held = draft.tokens
        same = next(
            (place for place, (a, b) in enumerate(zip(held, tokens, strict=False)) if a != b),
            min(len(held), len(tokens)),
        )
        same = min(same, len(tokens) - 1)
        if same < len(held):
            for layer in draft.cache:
                layer.trim(len(held) - same)
            del held[same:]

    def forget(self, row: Row) -> None:
        self._drafts.pop(row, None)

    def row_bytes(self, places: int) -> int:
        return self._layout.prompt_bytes(places)


class Speculation:
    """Decides, by what was measured, whether this step asks for proposals."""

    def __init__(self, proposer: Proposer, most: int) -> None:
        self.proposer = proposer
        self._most = most
        self._plain = 0.0  # seconds for a token, without proposals
        self._proposed = 0.0  # seconds for a token, with them
        self._measured = 0  # steps without
        self._judged = 0  # steps with
        self._paused = 0

    def wanted(self, rows: list[Row]) -> bool:
        """Whether this step should look for proposals."""
        if not rows or len(rows) > MOST_ROWS:
            return False
        if self._measured < UNPROPOSED:  # something to compare with
            return False
        if self._paused:
            self._paused -= 1
            return False
        if self._judged >= PATIENCE and self._proposed > self._plain:
            self._judged, self._paused = 0, PAUSE
            return False
        return True

    def proposals(self, rows: list[Row]) -> list[list[int]]:
        """One list for each row, all of whose tokens are known."""
        return [self._for_row(row) for row in rows]

    def _for_row(self, row: Row) -> list[int]:
        most = min(self._most, row.ticket.growth - 1)
        if most <= 0:
            return []
        proposed = self.proposer.propose(row, most)
        return proposed[: row.decoder.allowed(proposed)] if proposed else []

    def observe(self, seconds: float, tokens: float, *, proposed: bool) -> None:
        """A step took so long and gave so many tokens to each row, on average."""
        cost = seconds / max(tokens, 1)
        if proposed:
            self._judged += 1
            self._proposed = (
                cost if not self._proposed else self._proposed + SMOOTHING * (cost - self._proposed)
            )
        else:
            self._measured += 1
            self._plain = cost if not self._plain else self._plain + SMOOTHING * (cost - self._plain)
