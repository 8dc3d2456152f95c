"""Penalties on earlier tokens: repetition, presence and frequency, from histories on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.core import parameters as p
from pippin.core.requests import Sampling

CAPACITY_STEP = 256

PENALTIES: Final = (p.REPETITION_PENALTY, p.PRESENCE_PENALTY, p.FREQUENCY_PENALTY)
"""The parameters that switch a penalty on. Rows that use one have a history."""


@dataclass(frozen=True)
class History:
    """The tokens of some rows, left-aligned. Lengths are on the host, so reading them never waits for the device."""

    tokens: mx.array  # [R, capacity] int32
    lengths: NDArray[np.int32]  # [R]
    prompts: NDArray[np.int32]  # [R] prompt tokens of each

    @classmethod
    def empty(cls) -> "History":
        none = np.zeros(0, np.int32)
        return cls(mx.zeros((0, CAPACITY_STEP), mx.int32), none, none)

    def joined(self, tokens: Sequence[int], generated: int, vocabulary: int | None) -> "History":
        """A history with one more row of `tokens`, the last `generated` of which are no prompt.

        Tokens from `vocabulary` on are left out: their penalty would be written beyond the logits.
        """
        known = np.array(tokens, np.int32)
        known = known if vocabulary is None else known[known < vocabulary]
        wide = self._wider(len(known))
        row = np.zeros((1, wide.tokens.shape[1]), np.int32)
        row[0, : len(known)] = known
        return History(
            mx.concatenate([wide.tokens, mx.array(row)]),
            np.append(self.lengths, np.int32(len(known))),
            np.append(self.prompts, np.int32(len(known) - generated)),
        )

    def kept(self, rows: list[int]) -> "History":
        if not rows:
            return History.empty()
        return History(self.tokens[mx.array(rows)], self.lengths[rows], self.prompts[rows])

    def extended(self, tokens: mx.array, counts: NDArray[np.int32] | int) -> "History":
        """A history with the first `counts` [R] of `tokens` [R, T] for each row."""
        count = tokens.shape[1]
        wide = self._wider(int(self.lengths.max(initial=0)) + count)
        # Nobody reads behind the lengths, so that all are written.
        places = mx.array(self.lengths[:, None] + np.arange(count, dtype=np.int32))
        updated = mx.put_along_axis(wide.tokens, places, tokens.astype(mx.int32), axis=1)
        return History(updated, self.lengths + np.int32(counts), self.prompts)

    def _wider(self, length: int) -> "History":
        missing = length - self.tokens.shape[1]
        if missing <= 0:
            return self
        more = -(-missing // CAPACITY_STEP) * CAPACITY_STEP
        return History(mx.pad(self.tokens, [(0, 0), (0, more)]), self.lengths, self.prompts)


class Penalties:
    """The penalties of some rows, one entry for each; neutral where a row does not use one."""

    def __init__(self, rows: Sequence[Sampling]) -> None:
        self._columns: dict[str, NDArray[Any]] = {
            each.name: np.array(each.of(rows), np.int32 if each.type == "int" else np.float32)
            for *pair, _ in APPLIED
            for each in pair
        }

    def apply(self, logits: mx.array, history: History) -> mx.array:
        """The logits [R, V] of the next token after `history`, penalised."""
        for penalty, context, lower in APPLIED:
            by = self._columns[penalty.name]
            if np.any(by != penalty.neutral):
                logits = lower(logits, history, by, self._columns[context.name])
        return logits


def _window(history: History, starts: NDArray[np.int32]) -> tuple[mx.array, mx.array]:
    """The tokens from `starts` on, right-aligned to the width of the longest [R, W], and a mask of those inside."""
    sizes = history.lengths - starts
    width = max(int(sizes.max(initial=0)), 1)
    columns = history.lengths[:, None] - width + np.arange(width, dtype=np.int32)[None]
    tokens = mx.take_along_axis(history.tokens, mx.array(np.maximum(columns, 0)), axis=1)
    return tokens, mx.array(columns >= starts[:, None])


def _uniform_window(history: History, starts: NDArray[np.int32]) -> tuple[mx.array, NDArray[np.bool_]]:
    """Like `_window`, with places outside filled with the newest token, so that writing to all of them is safe; and
    which rows have any token inside."""
    tokens, inside = _window(history, starts)
    return mx.where(inside, tokens, tokens[:, -1:]), history.lengths > starts


def _repetition(
    logits: mx.array, history: History, penalty: NDArray[np.float32], context: NDArray[np.int32]
) -> mx.array:
    """Divide positive and multiply negative logits of tokens in prompt and output (Keskar et al. 2019)."""
    tokens, any_inside = _uniform_window(history, np.maximum(history.lengths - context, 0))
    by = mx.array(np.where(any_inside, penalty, np.float32(1))[:, None])
    found = mx.take_along_axis(logits, tokens, axis=1)
    return mx.put_along_axis(logits, tokens, mx.where(found < 0, found * by, found / by), axis=1)


def _presence(
    logits: mx.array, history: History, penalty: NDArray[np.float32], context: NDArray[np.int32]
) -> mx.array:
    """Lower the logits of tokens in the output, once each."""
    starts = np.maximum(history.prompts, history.lengths - context)
    tokens, any_inside = _uniform_window(history, starts)
    by = mx.array(np.where(any_inside, penalty, np.float32(0))[:, None])
    return mx.put_along_axis(logits, tokens, mx.take_along_axis(logits, tokens, axis=1) - by, axis=1)


def _frequency(
    logits: mx.array, history: History, penalty: NDArray[np.float32], context: NDArray[np.int32]
) -> mx.array:
    """Lower the logits of tokens in the output, once for each occurrence."""
    tokens, inside = _window(history, np.maximum(history.prompts, history.lengths - context))
    loss = inside.astype(mx.float32) * mx.array(penalty[:, None])
    return logits.at[mx.arange(tokens.shape[0])[:, None], tokens].subtract(loss)


APPLIED: Final = (
    (p.REPETITION_PENALTY, p.REPETITION_CONTEXT, _repetition),
    (p.FREQUENCY_PENALTY, p.FREQUENCY_CONTEXT, _frequency),
    (p.PRESENCE_PENALTY, p.PRESENCE_CONTEXT, _presence),
)
"""Penalties, how many tokens each looks back, and what applies it, in order."""
