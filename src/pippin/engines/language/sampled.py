"""What sampling gives: tokens, and logprobs of the rows that asked."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from pippin.core.events import TopToken
from pippin.engines.language.tokenizer import Tokenizer


@dataclass(frozen=True)
class Choice:
    """A sampled token on the host: the arguments of `RowDecoder.accept`."""

    token: int
    logprob: float | None = None
    top: tuple[TopToken, ...] = ()


@dataclass(frozen=True)
class Sampled:
    """One token for each row, still on the device.

    `scored` lists the rows that asked for logprobs, in ascending order; the arrays beside it have one entry for each
    of them.
    """

    tokens: mx.array  # [B] int32
    scored: tuple[int, ...] = ()
    logprobs: mx.array | None = None  # [len(scored)] float32
    top_ids: mx.array | None = None  # [len(scored), K] int32, best first
    top_logprobs: mx.array | None = None  # [len(scored), K] float32

    def arrays(self) -> list[mx.array]:
        """What to hand to `mx.async_eval`."""
        found = (self.tokens, self.logprobs, self.top_ids, self.top_logprobs)
        return [array for array in found if array is not None]

    def read(self, tokenizer: Tokenizer, wanted: Sequence[int | None]) -> list[Choice]:
        """The values on the host; waits for the device. `wanted` is each row's count of alternatives, or None."""
        tokens: list[int] = np.array(self.tokens).tolist()
        choices = [Choice(token) for token in tokens]
        if self.logprobs is None:
            return choices
        logprobs: list[float] = np.array(self.logprobs).tolist()
        ids: list[list[int]] = [] if self.top_ids is None else np.array(self.top_ids).tolist()
        tops: list[list[float]] = [] if self.top_logprobs is None else np.array(self.top_logprobs).tolist()
        for place, row in enumerate(self.scored):
            count = wanted[row]
            top: tuple[TopToken, ...] = ()
            if count:
                pairs = zip(ids[place][:count], tops[place][:count], strict=True)
                top = tuple(TopToken(token, tokenizer.raw(token), logprob) for token, logprob in pairs)
            choices[row] = Choice(tokens[row], logprobs[place], top)
        return choices


def score(logits: mx.array, tokens: mx.array, wanted: Sequence[int | None]) -> Sampled:
    """`tokens` [B] with the logprobs that rows of `logits` [B, V] want: each a count of alternatives, or None."""
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return Sampled(tokens)
    scored = tuple(rows)
    whole = rows == list(range(logits.shape[0]))
    asked = (logits if whole else logits[mx.array(rows)]).astype(mx.float32)
    chosen = tokens if whole else tokens[mx.array(rows)]
    norm = mx.logsumexp(asked, axis=-1, keepdims=True)
    logprobs = (mx.take_along_axis(asked, chosen[:, None], axis=-1) - norm)[:, 0]
    count = min(max(wanted[row] or 0 for row in rows), asked.shape[-1])
    if not count:
        return Sampled(tokens, scored, logprobs)
    ids, values = best(asked, count)
    return Sampled(tokens, scored, logprobs, ids.astype(mx.int32), values - norm)


def best(x: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The ids and values [R, count] of the best of `x` [R, N], best first."""
    width = x.shape[-1]
    ids = mx.argpartition(x, width - count, axis=-1)[:, width - count :] if count < width else None
    values = x if ids is None else mx.take_along_axis(x, ids, axis=-1)
    order = mx.argsort(-values, axis=-1)
    values = mx.take_along_axis(values, order, axis=-1)
    return (order if ids is None else mx.take_along_axis(ids, order, axis=-1)), values
