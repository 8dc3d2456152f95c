"""How the next token of every row of a batch is chosen, in one pass over the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from pippin.core.events import TopToken
from pippin.core.requests import Sampling
from pippin.engines.language.tokenizer import Tokenizer


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice of a request; choice 0 has the request's own."""
    return (seed + choice * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Sampled:
    """One token for each row, still on the device.

    `scored` lists the rows that asked for logprobs, in ascending order; the arrays beside it have one entry for each
    of them. Logprobs are of the model's own distribution: before penalties, bias, masks and temperature.
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

    def read(self, tokenizer: Tokenizer, wanted: Sequence[int | None]) -> "list[Choice]":
        """The values on the host (waits for the device). `wanted` is each row's count of alternatives, or None."""
        tokens = np.array(self.tokens).tolist()
        choices = [Choice(token) for token in tokens]
        if self.logprobs is None:
            return choices
        logprobs = np.array(self.logprobs).tolist()
        ids = np.array(self.top_ids).tolist() if self.top_ids is not None else []
        tops = np.array(self.top_logprobs).tolist() if self.top_logprobs is not None else []
        for place, row in enumerate(self.scored):
            count = wanted[row] or 0
            top = (
                tuple(
                    TopToken(token, tokenizer.raw(token), logprob)
                    for token, logprob in zip(ids[place][:count], tops[place][:count], strict=True)
                )
                if count
                else ()
            )
            choices[row] = Choice(tokens[row], logprobs[place], top)
        return choices


@dataclass(frozen=True)
class Choice:
    """A sampled token on the host: the arguments of `RowDecoder.accept`."""

    token: int
    logprob: float | None = None
    top: tuple[TopToken, ...] = ()


class BatchSampler:
    """The sampling state of all rows of a batch, in the batch's order."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rows: list[tuple[Sampling, int, int, int | None]] = []

    def join(
        self,
        sampling: Sampling,
        *,
        seed: int,
        prompt: Sequence[int],
        logprobs: int | None,
        generated: int = 0,
    ) -> None:
        """Append a row. The last `generated` tokens of `prompt` are the row's own earlier output (after preemption)."""
        self._rows.append((sampling, seed, generated, logprobs))

    def leave(self, keep: list[int]) -> None:
        """Keep only these rows, in this order."""
        self._rows = [self._rows[row] for row in keep]

    def sample(
        self, logits: mx.array, masks: np.ndarray | None = None, masked_rows: list[int] | None = None
    ) -> Sampled:
        """Choose a token for each row of `logits` [B, V]; `masks` [len(masked_rows), ceil(V / 32)] int32 bit masks."""
        logits = logits.astype(mx.float32)
        if masks is not None and masked_rows:
            bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
            rows = mx.array(masked_rows)
            logits[rows] = mx.where(mx.array(bits.astype(bool)), logits[rows], -mx.inf)
        temperatures = mx.array([row[0].temperature or 0.0 for row in self._rows])
        greedy = mx.argmax(logits, axis=-1)
        drawn = mx.random.categorical(logits / mx.maximum(temperatures, 1e-5)[:, None])
        return Sampled(mx.where(temperatures > 0, drawn, greedy).astype(mx.int32))
