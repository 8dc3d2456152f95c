"""The filters that narrow a distribution before a token is drawn, each for all rows at once.

They take scaled logits `x` [R, N] (float32, `-inf` where a token is out), or weights `w` [R, N] in proportion to the
probabilities (0 where a token is out), and a parameter per row [R, 1], and give them back with more out. A row whose
parameter is the neutral value given in each docstring keeps everything. Tokens that tie with the last one kept are
kept too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.core.requests import Sampling

OUT = -math.inf
BEST = 1024  # tokens that a nucleus is looked for in first


def top_n_sigma(x: mx.array, n: mx.array) -> mx.array:
    """Keep what lies within `n` standard deviations of the best logit. Neutral: 0. (Tang et al. 2024)"""
    inside = x > OUT
    count = mx.sum(inside, axis=-1, keepdims=True)
    finite = mx.where(inside, x, 0.0)
    mean = mx.sum(finite, axis=-1, keepdims=True) / count
    variance = mx.sum(mx.where(inside, (x - mean) ** 2, 0.0), axis=-1, keepdims=True) / count
    floor = mx.max(x, axis=-1, keepdims=True) - n * mx.sqrt(variance)
    return mx.where((x >= floor) | (n <= 0), x, OUT)


def top_k(x: mx.array, k: mx.array) -> mx.array:
    """Keep the `k` best. Neutral: N or more."""
    width = x.shape[-1]
    ordered = mx.sort(x, axis=-1)
    place = mx.clip(width - k, 0, width - 1).astype(mx.int32)
    return mx.where(x >= mx.take_along_axis(ordered, place, axis=-1), x, OUT)


def typical_p(x: mx.array, p: mx.array) -> mx.array:
    """Keep the tokens whose surprise is nearest the entropy, up to a mass of `p`. Neutral: 1. (Meister et al. 2022)"""
    logprobs = x - mx.logsumexp(x, axis=-1, keepdims=True)
    probabilities = mx.exp(logprobs)
    surprise = -mx.where(probabilities > 0, logprobs, 0.0)
    entropy = mx.sum(probabilities * surprise, axis=-1, keepdims=True)
    distance = mx.where(probabilities > 0, mx.abs(surprise - entropy), math.inf)
    order = mx.argsort(distance, axis=-1)
    mass = mx.cumsum(mx.take_along_axis(probabilities, order, axis=-1), axis=-1)
    last = mx.minimum(mx.sum(mass < p, axis=-1, keepdims=True), x.shape[-1] - 1)
    limit = mx.take_along_axis(mx.take_along_axis(distance, order, axis=-1), last, axis=-1)
    return mx.where((distance <= limit) | (p >= 1), x, OUT)


def weights(x: mx.array) -> mx.array:
    """Probabilities in proportion: 1 for the best, 0 for what is out. The filters below narrow these."""
    return mx.exp(x - mx.max(x, axis=-1, keepdims=True))


def top_p(w: mx.array, p: mx.array) -> mx.array:
    """Keep the fewest best tokens whose mass reaches `p`. Neutral: 1. (Holtzman et al. 2019)"""
    ordered = mx.sort(w, axis=-1)  # ascending: the small masses are summed first, which is more exact
    mass = mx.cumsum(ordered, axis=-1)
    outside = mx.sum(mass <= (1 - mx.maximum(p, 1e-6)) * mass[:, -1:], axis=-1, keepdims=True)
    floor = mx.take_along_axis(ordered, mx.minimum(outside, w.shape[-1] - 1), axis=-1)
    return w * ((w >= floor) | (p >= 1))


def top_p_of_best(w: mx.array, p: mx.array) -> mx.array:
    """`top_p` that sorts the `BEST` tokens alone, for rows whose nucleus lies within them. Waits for the device."""
    if w.shape[-1] <= 2 * BEST:
        return top_p(w, p)
    ordered = mx.sort(mx.topk(w, BEST, axis=-1), axis=-1)
    total = mx.sum(w, axis=-1, keepdims=True)
    allowed = (1 - mx.maximum(p, 1e-6)) * total  # mass that may be left out
    mass = total - mx.sum(ordered, axis=-1, keepdims=True) + mx.cumsum(ordered, axis=-1)
    outside = mx.sum(mass <= allowed, axis=-1, keepdims=True)
    floor = mx.take_along_axis(ordered, mx.minimum(outside, BEST - 1), axis=-1)
    kept = w * ((w >= floor) | (p >= 1))
    wide = np.flatnonzero(np.array((outside == 0) & (p < 1))[:, 0])
    if wide.size:  # the nucleus goes on beyond the best: look at these rows whole
        rows = mx.array(wide)
        kept[rows] = top_p(w[rows], p[rows])
    return kept


def min_p(w: mx.array, p: mx.array) -> mx.array:
    """Keep what is at least `p` times as probable as the best. Neutral: 0. (Nguyen et al. 2024)"""
    return w * (w >= p)


def xtc(w: mx.array, threshold: mx.array, on: mx.array, protected: mx.array) -> mx.array:
    """Exclude top choices: where `on`, drop all tokens of at least `threshold` but the least probable of them.

    `protected` [R, N] marks tokens that are never dropped (line ends and ends of text).
    """
    high = w >= threshold * mx.sum(w, axis=-1, keepdims=True)
    least = mx.min(mx.where(high, w, math.inf), axis=-1, keepdims=True)
    return w * mx.logical_not((w > least) & on & mx.logical_not(protected))


def mask(x: mx.array, bits: NDArray[np.int32]) -> mx.array:
    """`x` without the tokens whose bit in `bits` [R, words] is not set; those beyond its words are out."""
    width = x.shape[-1]
    octets = np.zeros((len(bits), -(-width // 8)), np.uint8)
    given = bits.view(np.uint8)[:, : octets.shape[1]]
    octets[:, : given.shape[1]] = given
    # Looking eight tokens up at a time is several times quicker than a choice for each, and uploads only the bits.
    table = mx.array(
        np.where(np.unpackbits(_OCTETS, axis=1, bitorder="little"), np.float32(0), np.float32(OUT))
    )
    return x + table[mx.array(octets).astype(mx.uint32)].reshape(len(bits), -1)[:, :width]


_OCTETS = np.arange(256, dtype=np.uint8)[:, None]


def draw(w: mx.array, uniform: mx.array) -> mx.array:
    """The column [R] that `uniform` [R, 1] in [0, 1) falls on in the cumulated weights."""
    mass = mx.cumsum(w, axis=-1)
    # A blocked scan may step back by a rounding error, so a column of no weight is ruled out by itself.
    return mx.argmax((mass > uniform * mass[:, -1:]) & (w > 0), axis=-1)


@dataclass(frozen=True)
class Filters:
    """The rows that are drawn in one way, and their parameters [R, 1]; None where no row of them uses a filter."""

    rows: list[int]
    temperature: mx.array
    top_n_sigma: mx.array | None
    top_k: mx.array | None
    typical_p: mx.array | None
    top_p: mx.array | None
    min_p: mx.array | None
    xtc_threshold: mx.array | None
    xtc_probability: NDArray[np.float32]

    @classmethod
    def of(cls, rows: list[int], samplings: list[Sampling]) -> "Filters":
        def column(values: list[float | None], neutral: float) -> mx.array | None:
            known = [neutral if value is None else value for value in values]
            return mx.array(known)[:, None] if any(value != neutral for value in known) else None

        chances = np.array([sampling.xtc_probability or 0.0 for sampling in samplings], np.float32)
        thresholds = [0.1 if s.xtc_threshold is None else s.xtc_threshold for s in samplings]
        return cls(
            rows,
            mx.array([sampling.temperature or 1.0 for sampling in samplings])[:, None],
            column([sampling.top_n_sigma for sampling in samplings], 0.0),
            column([sampling.top_k or 2**30 for sampling in samplings], 2**30),
            column([sampling.typical_p for sampling in samplings], 1.0),
            column([sampling.top_p for sampling in samplings], 1.0),
            column([sampling.min_p for sampling in samplings], 0.0),
            mx.array(thresholds)[:, None] if chances.any() else None,
            chances,
        )

    def narrow(
        self,
        x: mx.array,
        chance: NDArray[np.float32],
        protected: mx.array | None,
        top_p: Callable[[mx.array, mx.array], mx.array],
    ) -> mx.array:
        """The weights that are left of `x` [R, N], scaled; `chance` [R] decides on XTC, `protected` [R, N] is as
        there, `top_p` is one of the two above."""
        if self.top_n_sigma is not None:
            x = top_n_sigma(x, self.top_n_sigma)
        if self.top_k is not None:
            x = top_k(x, self.top_k)
        if self.typical_p is not None:
            x = typical_p(x, self.typical_p)
        w = weights(x)
        if self.top_p is not None:
            w = top_p(w, self.top_p)
        if self.min_p is not None:
            w = min_p(w, self.min_p)
        if self.xtc_threshold is not None and protected is not None:
            on = mx.array((chance < self.xtc_probability)[:, None])
            w = xtc(w, self.xtc_threshold, on, protected)
        return w
