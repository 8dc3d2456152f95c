"""The filters that narrow a distribution before a token is drawn, each for all rows at once.

They take scaled logits `x` [R, N] (float32, `-inf` where a token is out), or weights `w` [R, N] in proportion to the
probabilities (0 where a token is out), and a parameter per row [R, 1], and return them with more tokens out. A row
whose parameter is the neutral value given in each docstring keeps everything. Tokens that tie with the last one kept
are kept too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.core import parameters as p
from pippin.core.parameters import Parameter
from pippin.core.requests import Sampling

Column = NDArray[Any]
"""A parameter of each row [R], on the host."""

OUT = -math.inf
BEST = 1024  # tokens searched first for a nucleus
BLOCK = 16  # tokens of which only the best is looked at first; most vocabularies are a multiple of it
MOST = 1 << 24  # tokens: no vocabulary has more, and float32 holds the number


def top_n_sigma(x: mx.array, n: mx.array) -> mx.array:
    """Keep tokens within `n` standard deviations of the best logit. Neutral: 0. (Tang et al. 2024)"""
    inside = x > OUT
    count = mx.sum(inside, axis=-1, keepdims=True)
    finite = mx.where(inside, x, 0.0)
    mean = mx.sum(finite, axis=-1, keepdims=True) / count
    variance = mx.sum(mx.where(inside, (x - mean) ** 2, 0.0), axis=-1, keepdims=True) / count
    floor = mx.max(x, axis=-1, keepdims=True) - n * mx.sqrt(variance)
    return mx.where((x >= floor) | (n <= 0), x, OUT)


def top_k(x: mx.array, last: mx.array, descends: bool = False) -> mx.array:
    """Keep the best up to this place, `last_of` k. Neutral: N - 1 and more. `descends`: the best come first already."""
    ordered = x if descends else mx.sort(x, axis=-1)[:, ::-1]
    place = mx.minimum(last, x.shape[-1] - 1)
    return mx.where(x >= mx.take_along_axis(ordered, place, axis=-1), x, OUT)


def last_of(k: Column) -> Column:
    """The place of the last token that top-k keeps; 0 keeps all."""
    return (np.minimum(np.where(k > 0, k, MOST), MOST) - 1).astype(np.int32)


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


def p_less(x: mx.array, on: mx.array) -> mx.array:
    """Keep tokens at least as probable as two draws giving the same token; the most probable token always is. Neutral:
    0. (arXiv:2509.23234)"""
    probabilities = mx.softmax(x, axis=-1)
    collision = mx.sum(probabilities * probabilities, axis=-1, keepdims=True)
    return mx.where((probabilities >= collision) | (on <= 0), x, OUT)


def weights(x: mx.array, descends: bool = False) -> mx.array:
    """Unnormalised probabilities: 1 for the best token, 0 for those that are out. The filters below narrow these.
    `descends`: the best come first already."""
    return mx.exp(x - (x[:, :1] if descends else mx.max(x, axis=-1, keepdims=True)))


def top_p(w: mx.array, rest: mx.array, ordered: mx.array | None = None) -> mx.array:
    """Keep the fewest best tokens that leave no more than this share of the mass, `rest_of` p. Neutral: 0. (Holtzman et
    al. 2019)

    `ordered`: the same weights in ascending order, where they are known.
    """
    # Ascending: the small masses are summed first, which is more exact.
    ordered = mx.sort(w, axis=-1) if ordered is None else ordered
    mass = mx.cumsum(ordered, axis=-1)
    # The best token is never outside: its mass is all.
    outside = mx.sum(mass <= rest * mass[:, -1:], axis=-1, keepdims=True)
    return w * (w >= mx.take_along_axis(ordered, outside, axis=-1))


def rest_of(p: Column) -> Column:
    """The share of the mass that top-p may leave out; some token is always kept."""
    return np.float32(1) - np.maximum(p, np.float32(1e-6))


def top_p_of_best(w: mx.array, rest: mx.array) -> mx.array:
    """Like `top_p`, but sorts only the `BEST` tokens of rows whose nucleus lies within them. Waits for the device: on a
    CPU, MLX takes ten times as long as numpy, which sorts many numbers at once."""
    if w.shape[-1] <= 2 * BEST:
        return top_p(w, rest)
    ordered = mx.array(np.sort(np.partition(np.asarray(w), -BEST, axis=-1)[:, -BEST:], axis=-1))
    total = mx.sum(w, axis=-1, keepdims=True)
    mass = total - mx.sum(ordered, axis=-1, keepdims=True) + mx.cumsum(ordered, axis=-1)
    outside = mx.sum(mass <= rest * total, axis=-1, keepdims=True)
    floor = mx.take_along_axis(ordered, mx.minimum(outside, BEST - 1), axis=-1)
    kept = w * ((w >= floor) | (rest <= 0))
    wide = np.flatnonzero(np.array((outside == 0) & (rest > 0))[:, 0])
    if wide.size:  # the nucleus extends beyond the best: sort these rows whole
        rows = mx.array(wide)
        kept[rows] = top_p(w[rows], rest[rows], mx.array(np.sort(np.asarray(w[rows]), axis=-1)))
    return kept


def min_p(w: mx.array, p: mx.array) -> mx.array:
    """Keep tokens at least `p` times as probable as the best. Neutral: 0. (Nguyen et al. 2024)"""
    return w * (w >= p)


def xtc(w: mx.array, threshold: mx.array, on: mx.array, protected: mx.array) -> mx.array:
    """Exclude top choices: where `on`, of the tokens with at least `threshold`, drop all but the least probable.

    `protected` [R, N] marks tokens that are never dropped (line ends and ends of text).
    """
    high = w >= threshold * mx.sum(w, axis=-1, keepdims=True)
    least = mx.min(mx.where(high, w, math.inf), axis=-1, keepdims=True)
    return w * mx.logical_not((w > least) & on & mx.logical_not(protected))


def mask(x: mx.array, bits: NDArray[np.int32]) -> mx.array:
    """`x` without the tokens whose bit in `bits` [R, words] is not set; tokens beyond its words are out."""
    width = x.shape[-1]
    octets = np.zeros((len(bits), -(-width // 8)), np.uint8)
    given = bits.view(np.uint8)[:, : octets.shape[1]]
    octets[:, : given.shape[1]] = given
    # A lookup for eight tokens at a time is several times faster than a choice for each, and uploads only the bits.
    table = mx.array(
        np.where(np.unpackbits(_OCTETS, axis=1, bitorder="little"), np.float32(0), np.float32(OUT))
    )
    return x + table[mx.array(octets).astype(mx.uint32)].reshape(len(bits), -1)[:, :width]


_OCTETS = np.arange(256, dtype=np.uint8)[:, None]


def draw(w: mx.array, uniform: mx.array) -> mx.array:
    """The column [R] of the cumulative weights that `uniform` [R, 1], in [0, 1), falls on."""
    mass = mx.cumsum(w, axis=-1)
    # A blocked scan may decrease by a rounding error, so columns without weight are excluded explicitly.
    return mx.argmax((mass > uniform * mass[:, -1:]) & (w > 0), axis=-1)


@dataclass(frozen=True)
class Drawing:
    """What a filter may know of the rows besides their parameters."""

    chance: Callable[[], NDArray[np.float32]]
    """Makes a number in [0, 1) for each row [R], for filters that act by chance."""
    protected: Callable[[], mx.array]
    """Makes the mask [R, N] of the tokens that XTC never drops: line ends and ends of text."""
    sorts_slowly: bool
    """Whether sorting few tokens and waiting for the host is faster than sorting all."""
    descends: bool = False
    """Whether the best tokens come first, with none that is out before one that is not."""


def _top_p(w: mx.array, rest: mx.array, drawing: Drawing) -> mx.array:
    slowly = drawing.sorts_slowly and not drawing.descends
    return top_p_of_best(w, rest) if slowly else top_p(w, rest, w[:, ::-1] if drawing.descends else None)


def _xtc(w: mx.array, probability: mx.array, threshold: mx.array, drawing: Drawing) -> mx.array:
    return xtc(w, threshold, mx.array(drawing.chance())[:, None] < probability, drawing.protected())


@dataclass(frozen=True)
class Filter:
    """A filter and its place: what it narrows, which parameters it reads, and how it is computed."""

    narrows: Literal["logits", "weights"]
    parameters: tuple[Parameter, ...]
    """The first one switches the filter on if it is not neutral."""
    apply: Callable[..., mx.array]
    """Takes `x` or `w`, a column [R, 1] for each parameter, and the `Drawing`."""
    reckon: Callable[[Column], Column] = lambda column: column
    """Makes a column of a parameter's values when a row joins, so that a step need not."""
    keeps_best: bool = True
    """Whether no token that it keeps is less likely than one that it does not, until weights are narrowed."""


FILTERS: Final = (
    Filter("logits", (p.TOP_N_SIGMA,), lambda x, n, _: top_n_sigma(x, n)),
    Filter("logits", (p.TOP_K,), lambda x, last, drawing: top_k(x, last, drawing.descends), last_of),
    Filter("logits", (p.P_LESS,), lambda x, on, _: p_less(x, on)),
    Filter("logits", (p.TYPICAL_P,), lambda x, mass, _: typical_p(x, mass), keeps_best=False),
    Filter("weights", (p.TOP_P,), _top_p, rest_of),
    Filter("weights", (p.MIN_P,), lambda w, share, _: min_p(w, share)),
    Filter("weights", (p.XTC_PROBABILITY, p.XTC_THRESHOLD), _xtc),
)
"""All filters, in the order in which they are applied: those of logits first. A new one is a line here."""


@dataclass(frozen=True)
class Filters:
    """Rows that are drawn the same way, with their temperatures and the filters that at least one of them uses."""

    rows: list[int]
    temperature: mx.array  # [R, 1]
    used: tuple[tuple[Filter, tuple[mx.array, ...]], ...]  # with a column [R, 1] for each parameter

    @classmethod
    def of(cls, rows: list[int], samplings: list[Sampling]) -> "Filters":
        used = []
        for each in FILTERS:
            columns = [values(parameter, samplings) for parameter in each.parameters]
            if any(value != each.parameters[0].neutral for value in columns[0]):
                reckoned = (each.reckon(np.array(column, np.float32)) for column in columns)
                used.append((each, tuple(mx.array(column)[:, None] for column in reckoned)))
        # Rows with a temperature of 0 are greedy and never reach a filter.
        return cls(rows, mx.array(values(p.TEMPERATURE, samplings))[:, None], tuple(used))

    def narrow(self, x: mx.array, drawing: Drawing) -> mx.array:
        """The weights that the filters leave of the scaled logits `x` [R, N]."""
        for each, columns in self.used:
            if each.narrows == "logits":
                x = each.apply(x, *columns, drawing)
                drawing = drawing if each.keeps_best else replace(drawing, descends=False)
        w = weights(x, drawing.descends)
        for each, columns in self.used:
            if each.narrows == "weights":
                w = each.apply(w, *columns, drawing)
        return w


def values(parameter: Parameter, samplings: Sequence[Sampling]) -> list[float]:
    """The value of the parameter for each row; its value when unset, if a row does not name it."""
    given = [getattr(sampling, parameter.name) for sampling in samplings]
    return [parameter.unset if value is None else value for value in given]


def best(x: mx.array, count: int, sorts_slowly: bool = True) -> tuple[mx.array, mx.array]:
    """The ids and values [R, count] of the best of `x` [R, N], best first. `sorts_slowly`: finding the best before they
    are sorted is faster than sorting all."""
    rows, width = x.shape
    if not count:
        return mx.zeros((rows, 0), mx.uint32), x[:, :0]
    if width % BLOCK or width < 2 * BLOCK * count:
        return _best(x, count, sorts_slowly)
    # They lie in the blocks with the best maxima: so many blocks hold at least as many tokens that are as good. In the
    # order of the vocabulary, so that tokens that tie come as if all had been sorted.
    blocks = x.reshape(rows, -1, BLOCK)
    chosen = mx.sort(_best(mx.max(blocks, axis=-1), count, sorts_slowly)[0], axis=-1)[..., None]
    ids = (chosen * BLOCK + mx.arange(BLOCK, dtype=mx.uint32)).reshape(rows, -1)
    inside = mx.take_along_axis(blocks, chosen, axis=1).reshape(rows, -1)
    found, values = _best(inside, count, sorts_slowly)
    return mx.take_along_axis(ids, found, axis=-1), values


def _best(x: mx.array, count: int, sorts_slowly: bool) -> tuple[mx.array, mx.array]:
    width = x.shape[-1]
    # A GPU has no partition: MLX sorts all for it.
    if sorts_slowly and count < width:
        found = mx.argpartition(x, width - count, axis=-1)[:, width - count :]
        order = mx.argsort(-mx.take_along_axis(x, found, axis=-1), axis=-1)
        ids = mx.take_along_axis(found, order, axis=-1)
    else:
        ids = mx.argsort(-x, axis=-1)[:, :count]
    return ids, mx.take_along_axis(x, ids, axis=-1)
