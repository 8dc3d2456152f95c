"""Chooses the next token of every row of a batch, in one pass on the device.

The order for each row is: repetition, frequency and presence penalties, logit bias, mask, sequences, temperature,
top-n-sigma, top-k, p-less, typical-p, top-p, min-p, XTC, draw (temperature first and top-k before top-p, as in vLLM
and transformers). A greedy row stops after the sequences and takes the best token. The draw uses one uniform number, a
hash of the row's seed and its count of sampled tokens, so it does not depend on other rows. Logprobs are those of the
model's own distribution, before any of this.

Filters narrow a distribution before a token is drawn, each for all rows at once. They take scaled logits `x` [R, N]
(float32, `-inf` where a token is out), or weights `w` [R, N] in proportion to the probabilities (0 where a token is
out), and a parameter per row [R, 1], and return them with more tokens out. A row whose parameter is the neutral value
given in each docstring keeps everything. Tokens that tie with the last one kept are kept too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import mlx.core as mx
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from pippin.core import parameters as p
from pippin.core.events import TopToken
from pippin.core.parameters import Parameter
from pippin.core.requests import Sampling
from pippin.engines.language.sampling.penalties import PENALTIES, History, Penalties
from pippin.engines.language.sampling.sequences import Sequences
from pippin.engines.language.text.tokenizer import Tokenizer

Column = NDArray[Any]
"""A parameter of each row [R], on the host."""

OUT = -math.inf
BEST = 1024  # tokens searched first for a nucleus
BLOCK = 16  # tokens of which only the best is looked at first; most vocabularies are a multiple of it
MOST = 1 << 24  # tokens: no vocabulary has more, and float32 holds the number
COLDEST = 1e-6  # temperature: a colder row is greedy, for logits divided by so little are no float32


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


class Masks(NamedTuple):
    """The tokens that some rows may take."""

    rows: list[int]
    bits: NDArray[np.int32]
    """[rows, words] of 32 tokens, the lowest bit first, or [T, rows, words]; tokens beyond the words are out."""


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


class Drawing(Struct, frozen=True):
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


class Filter(Struct, frozen=True):
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


class Filters(Struct, frozen=True):
    """Rows that are drawn the same way, with their temperatures and the filters that at least one of them uses."""

    rows: list[int]
    temperature: mx.array  # [R, 1]
    used: tuple[tuple[Filter, tuple[mx.array, ...]], ...]  # with a column [R, 1] for each parameter

    @classmethod
    def of(cls, rows: list[int], samplings: list[Sampling]) -> "Filters":
        used = []
        for each in FILTERS:
            columns = [parameter.of(samplings) for parameter in each.parameters]
            if any(value != each.parameters[0].neutral for value in columns[0]):
                reckoned = (each.reckon(np.array(column, np.float32)) for column in columns)
                used.append((each, tuple(mx.array(column)[:, None] for column in reckoned)))
        # Rows with a temperature of 0 are greedy and never reach a filter.
        return cls(rows, mx.array(p.TEMPERATURE.of(samplings))[:, None], tuple(used))

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


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one choice of a request; choice 0 has the request's own."""
    return (seed + choice * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.uint64], stream: int) -> NDArray[np.float32]:
    """Numbers in [0, 1), one for each seed and position (SplitMix64's finaliser, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        mixed = seeds
        for word in (positions, np.full_like(positions, stream)):
            mixed = mixed + (word + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return ((mixed >> np.uint64(40)).astype(np.float64) / 2**24).astype(np.float32)


class SampledToken(Struct, frozen=True):
    """A sampled token on the host: the arguments of `SequenceDecoder.accept`."""

    token: int
    logprob: float | None = None
    top: tuple[TopToken, ...] = ()


@dataclass(frozen=True)
class Sampled:
    """One token for each row, still on the device.

    `scored` has the rows that asked for logprobs, in ascending order, and their counts of alternatives. For these there
    are `scores`: logprobs [R], and the ids and logprobs of alternatives [R, K], best first.
    """

    tokens: mx.array  # [B] int32
    scored: tuple[tuple[int, int], ...] = ()
    scores: tuple[mx.array, ...] = ()

    def arrays(self) -> list[mx.array]:
        """What to hand to `mx.async_eval`."""
        return [self.tokens, *self.scores]

    def read(self, tokenizer: Tokenizer) -> list[SampledToken]:
        """The values on the host; waits for the device."""
        tokens: list[int] = np.array(self.tokens).tolist()
        choices = list(map(SampledToken, tokens))
        if not self.scored:
            return choices
        scores = (np.array(each).tolist() for each in self.scores)
        for (row, count), logprob, ids, values in zip(self.scored, *scores, strict=True):
            pairs = zip(ids[:count], values[:count], strict=True)
            top = tuple(TopToken(token, tokenizer.raw(token), value) for token, value in pairs)
            choices[row] = SampledToken(tokens[row], logprob, top)
        return choices


def score(logits: mx.array, tokens: mx.array, scored: tuple[tuple[int, int], ...]) -> Sampled:
    """`tokens` [B] with the logprobs that rows of `logits` [B, V] want: `scored` as in `Sampled`."""
    if not scored:
        return Sampled(tokens)
    rows, total = [row for row, _ in scored], logits.shape[0]
    asked, chosen = _take_rows(logits, rows, total).astype(mx.float32), _take_rows(tokens, rows, total)
    norm = mx.logsumexp(asked, axis=-1, keepdims=True)
    logprobs = (mx.take_along_axis(asked, chosen[:, None], axis=-1) - norm)[:, 0]
    count = min(max(count for _, count in scored), asked.shape[-1])
    ids, values = best(asked, count)
    return Sampled(tokens, scored, (logprobs, ids, values - norm))


SHORT = 256
"""Rows with a top-k up to this are drawn from their best `SHORT` tokens alone."""


class _Row(Struct, frozen=True):
    sampling: Sampling
    seed: int
    logprobs: int | None
    tracked: bool
    """Whether earlier tokens matter, so that the row needs a history."""

    @property
    def kind(self) -> Literal["greedy", "short", "wide"]:
        if (self.sampling.temperature or 0) < COLDEST:
            return "greedy"
        return "short" if 0 < (self.sampling.top_k or 0) <= SHORT else "wide"


class _Plan(Struct, frozen=True):
    """What the rows have in common: made after a row joins or leaves, so that a step need not look at each row."""

    short: Filters | None
    wide: Filters | None
    greedy: bool  # any row is greedy
    tracked: list[int]
    penalties: Penalties | None
    bias: list[tuple[int, int, float]]  # row, token, and what is added to its logit
    scored: tuple[tuple[int, int], ...]  # as in `Sampled`
    seeds: NDArray[np.uint64]


class BatchSampler:
    """The sampling state of all rows of a batch, in the batch's order.

    A temperature of None is greedy, as is 0; everything else that is None is off.
    """

    def __init__(self, tokenizer: Tokenizer, sorts_slowly: bool = False) -> None:
        """`sorts_slowly`: the device sorts only the best tokens, although the host must wait for it."""
        self._tokenizer = tokenizer
        self._sorts_slowly = sorts_slowly
        self._rows: list[_Row] = []
        self._positions = np.zeros(0, np.uint64)
        self._history = History.empty()
        self._sequences = Sequences(tokenizer.asked)
        self._asks_history = bool(self._sequences)
        self._plan: _Plan | None = None
        self._protected: mx.array | None = None  # tokens that XTC never drops: line ends and ends of text

    def join(
        self,
        sampling: Sampling,
        *,
        seed: int,
        prompt: Sequence[int],
        logprobs: int | None,
        generated: int = 0,
        vocabulary: int | None = None,
    ) -> None:
        """Append a row. The last `generated` tokens of `prompt` are its own earlier output (after a preemption). Tokens
        from `vocabulary` on count for nothing: they have no logits, like media markers in some models."""
        penalised = any(penalty.acts(getattr(sampling, penalty.name)) for penalty in PENALTIES)
        row = _Row(sampling, seed & 0xFFFFFFFFFFFFFFFF, logprobs, penalised or self._asks_history)
        self._rows.append(row)
        self._positions = np.append(self._positions, np.uint64(generated))
        if row.tracked:
            self._history = self._history.joined(prompt, generated, vocabulary)
        self._plan = None

    def leave(self, keep: list[int]) -> None:
        """Keep only these rows, in this order."""
        places = {row: place for place, row in enumerate(r for r, x in enumerate(self._rows) if x.tracked)}
        if places:
            self._history = self._history.kept([places[row] for row in keep if row in places])
        self._rows = [self._rows[row] for row in keep]
        self._positions = self._positions[keep]
        self._plan = None

    def sample(self, logits: mx.array, masks: Masks | None = None) -> Sampled:
        """Choose a token for each row of `logits` [B, V] and remember it."""
        sampled = self._choose(logits, self._history, 0, masks)
        plan = self._planned()
        if plan.tracked:
            drawn = _take_rows(sampled.tokens, plan.tracked, len(self._rows))
            self._history = self._history.extended(drawn[:, None], 1)
        self._positions = self._positions + np.uint64(1)
        return sampled

    def read(self, drawn: Sampled) -> list[SampledToken]:
        """The values of a draw on the host; waits for the device."""
        return drawn.read(self._tokenizer)

    def sample_ahead(
        self, logits: mx.array, proposals: NDArray[np.int32], masks: Masks | None = None
    ) -> list[Sampled]:
        """Choose a token at each of T places of `logits` [B, T, V], as if `proposals` [B, T - 1] had been chosen
        before; there are `masks` for each place. Nothing is remembered until `commit`. The token at a place is the one
        that `sample` would choose there, so accepting proposals while they are equal keeps the distribution exact."""
        history, tracked, found = self._history, self._planned().tracked, []
        for place in range(logits.shape[1]):
            if place and tracked:
                history = history.extended(mx.array(proposals[tracked, place - 1 : place]), 1)
            here = None if masks is None else Masks(masks.rows, masks.bits[place])
            found.append(self._choose(logits[:, place], history, place, here))
        return found

    def sample_behind(
        self,
        logits: mx.array,
        chains: NDArray[np.int32],
        counts: NDArray[np.int32],
        masks: Masks | None = None,
    ) -> Sampled:
        """Choose a token for each row of `logits` [B, V], as if the first `counts[row]` tokens of `chains` [B, T] had
        been chosen before. Nothing is remembered until `commit`."""
        tracked, history = self._planned().tracked, self._history
        if tracked:
            history = history.extended(mx.array(chains[tracked]), counts[tracked])
        return self._choose(logits, history, counts.astype(np.uint64), masks)

    def commit(self, tokens: NDArray[np.int32], counts: NDArray[np.int32]) -> None:
        """Remember the first `counts[row]` of `tokens` [B, T] for each row."""
        plan = self._planned()
        if plan.tracked:
            self._history = self._history.extended(mx.array(tokens[plan.tracked]), counts[plan.tracked])
        self._positions = self._positions + counts.astype(np.uint64)

    def _choose(
        self,
        logits: mx.array,
        history: History,
        ahead: int | NDArray[np.uint64],
        masks: Masks | None,
    ) -> Sampled:
        plan = self._planned()
        edited = self._edited(plan, logits, history, masks)
        whole = plan.short or plan.wide
        if whole is None:
            return score(logits, self._likeliest(edited), plan.scored)
        positions = self._positions + np.asarray(ahead, np.uint64)
        if len(whole.rows) == len(self._rows):
            return score(logits, self._drawn(plan, whole, edited, positions), plan.scored)
        tokens = self._likeliest(edited) if plan.greedy else mx.zeros(len(self._rows), mx.int32)
        for group in (plan.short, plan.wide):
            if group is not None:
                tokens[mx.array(group.rows)] = self._drawn(plan, group, edited, positions)
        return score(logits, tokens, plan.scored)

    def _likeliest(self, logits: mx.array) -> mx.array:
        """The best token [B] of each row. Where sorting is slow, numpy finds it in a tenth of MLX's time."""
        if self._sorts_slowly and logits.dtype == mx.float32:
            return mx.array(np.asarray(logits).argmax(-1).astype(np.int32))
        return mx.argmax(logits, axis=-1).astype(mx.int32)

    def _edited(self, plan: _Plan, logits: mx.array, history: History, masks: Masks | None) -> mx.array:
        """The logits after penalties, bias, masks and sequences."""
        rows = len(self._rows)
        if plan.penalties is not None or plan.bias or masks is not None:
            logits = logits.astype(mx.float32)
        if plan.penalties is not None:
            penalised = plan.penalties.apply(_take_rows(logits, plan.tracked, rows), history)
            logits = _put_rows(logits, plan.tracked, penalised)
        if plan.bias:
            known = [entry for entry in plan.bias if entry[1] < logits.shape[-1]]  # others have no logit
            if known:
                biased, tokens, added = map(mx.array, zip(*known, strict=True))
                logits = logits.at[biased, tokens].add(added)
        if masks is not None:
            masked = mask(_take_rows(logits, masks.rows, rows), masks.bits)
            logits = _put_rows(logits, masks.rows, masked)
        # These are of the model: all rows have a history then.
        return self._sequences.apply(logits, history) if self._asks_history else logits

    def _drawn(
        self, plan: _Plan, group: Filters, logits: mx.array, positions: NDArray[np.uint64]
    ) -> mx.array:
        """The tokens [R] of one group of rows."""
        seeds, places = plan.seeds[group.rows], positions[group.rows]
        x, ids = _take_rows(logits, group.rows, len(self._rows)), None
        if group is plan.short:
            ids, x = best(x, min(SHORT, x.shape[-1]), self._sorts_slowly)
        x = x.astype(mx.float32)

        def protected() -> mx.array:
            width = logits.shape[-1]
            if self._protected is None or self._protected.size != width:
                ends = *self._tokenizer.line_ends, *self._tokenizer.eos
                self._protected = mx.array(np.isin(np.arange(width), ends))
            return self._protected[None] if ids is None else self._protected[ids]

        chance = partial(uniform, seeds, places, 1)
        drawing = Drawing(chance, protected, self._sorts_slowly, descends=ids is not None)
        left = group.narrow(x / group.temperature, drawing)
        column = draw(left, mx.array(uniform(seeds, places, 0))[:, None])
        if ids is not None:
            column = mx.take_along_axis(ids, column[:, None], axis=-1)[:, 0]
        return column.astype(mx.int32)

    def _planned(self) -> _Plan:
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def _make_plan(self) -> _Plan:
        rows = self._rows
        kinds = [row.kind for row in rows]

        def group(kind: str) -> Filters | None:
            members = [place for place, found in enumerate(kinds) if found == kind]
            return Filters.of(members, [rows[place].sampling for place in members]) if members else None

        tracked = [place for place, row in enumerate(rows) if row.tracked]
        samplings = [rows[place].sampling for place in tracked]
        bias = [
            (place, token, value)
            for place, row in enumerate(rows)
            for token, value in (row.sampling.logit_bias or {}).items()
        ]
        return _Plan(
            short=group("short"),
            wide=group("wide"),
            greedy="greedy" in kinds,
            tracked=tracked,
            penalties=Penalties(samplings) if tracked else None,
            bias=bias,
            scored=tuple((place, row.logprobs) for place, row in enumerate(rows) if row.logprobs is not None),
            seeds=np.array([row.seed for row in rows], np.uint64),
        )


def _take_rows(x: mx.array, rows: list[int], total: int) -> mx.array:
    return x if len(rows) == total else x[mx.array(rows)]


def _put_rows(x: mx.array, rows: list[int], part: mx.array) -> mx.array:
    if len(rows) == x.shape[0]:
        return part
    merged = mx.array(x)  # an assignment would change the caller's array
    merged[mx.array(rows)] = part
    return merged


USUAL: Final = (
    Sampling(temperature=0),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_p=0.8, top_k=20, min_p=0.05, xtc_probability=0.5),
    Sampling(temperature=0.6, top_p=0.95, min_p=0.05),
    Sampling(temperature=0, logit_bias={0: 1.0}, repetition_penalty=1.1),
    Sampling(temperature=0.8, frequency_penalty=0.1, presence_penalty=0.1),
    Sampling(temperature=0.9, top_n_sigma=1.0, typical_p=0.9, p_less=1, xtc_probability=0.5),
)
"""The draws that clients ask for most, to be computed before the first of them comes."""


def usual_draws(tokenizer: Tokenizer, logits: mx.array) -> list[mx.array]:
    """Draws from a model's logits [1, V], to be evaluated: two steps of a batch of the usual rows, with and without a
    grammar's mask, and of each alone. A GPU compiles what it has not computed before, for which a client would wait."""
    vocabulary, drawn = logits.shape[-1], []
    masks = Masks([0], np.full((1, -(-vocabulary // 32)), -1, np.int32))
    for usual in (USUAL, *((each,) for each in USUAL)):
        sampler = BatchSampler(tokenizer)
        for seed, sampling in enumerate(usual):
            sampler.join(sampling, seed=seed, prompt=(0,), logprobs=seed % 3, vocabulary=vocabulary)
        rows = logits[mx.array([0] * len(usual))]
        drawn += [*sampler.sample(rows).arrays(), *sampler.sample(rows, masks).arrays()]
    return drawn
