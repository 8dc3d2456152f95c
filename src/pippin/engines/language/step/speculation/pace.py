"""How many tokens are worth proposing, from measured acceptance and step times. Numbers in, numbers out.

A pass over several tokens of each sequence takes longer than one over a single token; by how much depends on the
machine, the model and the number of sequences. It gives more tokens where the model agrees with proposals. `Pace`
proposes the number of tokens that gives the most tokens a second, which may be none. The time that trials and wrong
proposals cost is bounded by a budget: a share of all time, which becomes smaller with each trial that was in vain.

Where a pass computes no padding, its tokens go to the proposals that are likeliest to be right, of whichever sequence:
one that has nothing to propose takes nothing from one that copies a page.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import ceil, log
from statistics import median

import numpy as np
from msgspec import Struct

REMEMBERED = 9  # measurements of each kind of step
FIRST_GUESS = 0.1  # of a step's time: what a proposed token is assumed to add before that is measured
NEVER_PAYS = 1.1  # plain steps for each token of a sequence: a pass that takes longer does not pay
LEAP = 2.0  # times the tokens of the widest measured pass: how wide a pass may be whose time is guessed
OUTLIER = 2.0  # times the expected time: longer steps count as so long, because something else held them up
STALE = 128  # steps with proposals after which a plain one is measured again
FRESH = 2  # plain steps to measure before others are compared with them
FADING = 0.85  # weight that earlier observations of a sequence keep with each step that judges it
PRIOR = 2.0  # judged tokens for which the acceptance of earlier sequences stands
HOPE = 0.5  # assumed chance of a proposal before any was judged
TOO_RARE = 0.05  # proposals with a smaller chance of being reached and right are left out
FARTHEST = 1 << 10  # tokens
SMOOTHING = 0.1
WORTH = 1.02  # times the tokens a second of plain steps: proposals that give less are not worth it
# The same while the budget is overdrawn, which it may be by as much as may be lost at once.
WORTH_IN_DEBT = 1.1
ALLOWANCE = 0.02  # share of the time that may be lost
LEAST_INTEREST = 1 / 8  # of that share: what is left of it after many trials in vain
SAVINGS = 0.04  # seconds that may be lost at once
SAVED_STEPS = 2.0  # plain steps that may be lost at once, if they take longer than that
DOUBT = 0.2  # by how much a chance may be higher than estimated
CHEAPER = 0.8  # times the guessed time: what a pass that is wider than any measured one may really take
CURIOUS = 16  # checks: one in so many that pay tries another number of proposals
GOLDEN = (5**0.5 - 1) / 2  # the golden ratio


class Acceptance(Struct):
    """How often the model agrees with what is proposed for a sequence."""

    prior: float = HOPE
    _agreed: float = 0.0
    _judged: float = 0.0

    def observe(self, proposed: int, accepted: int) -> None:
        """Learn that `accepted` of `proposed` tokens were right; those after a wrong one were not judged."""
        if proposed:
            self._agreed = self._agreed * FADING + accepted
            self._judged = self._judged * FADING + accepted + (accepted < proposed)

    @property
    def chance(self) -> float:
        """The chance that the next proposal is right."""
        return (self._agreed + PRIOR * self.prior) / (self._judged + PRIOR)


def expected_tokens(chance: float, proposed: int) -> float:
    """Tokens that a step gives a sequence: those accepted, and one more."""
    return proposed + 1 if chance >= 1 else (1 - chance ** (proposed + 1)) / (1 - chance)


def reach(chance: float) -> int:
    """The last place at which a proposal is reached and right often enough: see `TOO_RARE`."""
    if chance >= 1:
        return FARTHEST
    return int(log(TOO_RARE) / log(chance)) if chance > TOO_RARE else 0


_last = partial(deque[float], maxlen=REMEMBERED)


def _shared_out(chosen: Sequence[tuple[float, int]], count: int) -> list[int]:
    """How many of these proposals each sequence has."""
    lengths = [0] * count
    for _, index in chosen:
        lengths[index] += 1
    return lengths


Points = Sequence[tuple[float, float]]
"""Points of a curve, ascending."""


def _on_line(points: Points, place: float) -> float:
    """The value at `place` on the line through the nearest points; beyond the last, on that through the last two."""
    index = bisect_left(points, (place,))
    if index < len(points) and points[index][0] == place:
        return points[index][1]
    index = min(max(index, 1), len(points) - 1)
    (low, below), (high, above) = points[index - 1], points[index]
    return below + (above - below) * (place - low) / (high - low)


def _useless(width: float) -> float:
    """The time of a pass, in plain steps, above which it does not pay even where all proposals are right. How much
    longer it takes does not matter, and mostly something else held it up."""
    return NEVER_PAYS * ceil(width)


@dataclass
class StepTimes:
    """The time of steps, by the number of sequences and the number of tokens of all of them.

    A pass over several tokens is measured in plain steps, by width: the mean number of tokens that it computes for a
    sequence. What it takes beyond a plain step is guessed first. Other widths are as much above or below the guess as
    the nearest measured ones: lines through those alone would mislead where costs grow in steps, for one pass over five
    vectors, which costs what one over six does, would set the slope for all longer ones."""

    # Of passes without padding, before they are measured: numbers of tokens, and the time of a pass over so many as a
    # multiple of that over one. Empty where passes have padding: their time depends on the tokens of each sequence.
    costs: Points = ()
    _plain: dict[int, deque[float]] = field(default_factory=dict)  # seconds of plain steps, by sequences
    _medians: dict[int, float] = field(default_factory=dict)
    # In plain steps, by sequences and width.
    _measured: dict[int, dict[float, deque[float]]] = field(default_factory=dict)
    _ratios: dict[tuple[int, float], float] = field(default_factory=dict)  # results of `_ratio`

    def observe(self, sequences: int, computed: int, seconds: float) -> None:
        if computed == sequences:
            known = self._plain.setdefault(sequences, _last())
            known.append(min(seconds, OUTLIER * median(known)) if len(known) > FRESH else seconds)
            self._medians[sequences] = median(known)
        elif plain := self.plain(sequences):
            width = computed / sequences
            ratio = min(seconds / plain, OUTLIER * self._ratio(sequences, width), _useless(width))
            self._measured.setdefault(sequences, {}).setdefault(width, _last()).append(ratio)
            self._ratios.clear()

    def widest(self, sequences: int) -> float:
        """The largest mean number of tokens of a sequence of passes whose time is known."""
        return max(self._nearest(sequences), default=1.0)

    def measured(self, sequences: int) -> bool:
        """Whether the time of a plain step of this many sequences is known."""
        return len(self._plain.get(sequences, ())) >= FRESH

    def plain(self, sequences: int) -> float:
        """Seconds of a step of one token for each sequence; 0 before any was measured."""
        return self._medians.get(sequences, 0.0)

    def expected(self, sequences: int, computed: int) -> float:
        """Seconds of a step that computes `computed` tokens of all sequences."""
        return self.plain(sequences) * self._ratio(sequences, computed / sequences)

    @property
    def shortest(self) -> float:
        """Seconds of a plain step for the fewest sequences that there were."""
        return self.plain(min(self._plain, default=0))

    def _ratio(self, sequences: int, width: float) -> float:
        """How many plain steps a pass takes: at least 1, since a plain step that seems to take longer was held up."""
        if (found := self._ratios.get((sequences, width))) is None:
            taken = 1.0 if width == 1 else self._reckoned(sequences, width)
            found = self._ratios[sequences, width] = max(1.0, min(taken, _useless(width)))
        return found

    def _reckoned(self, sequences: int, width: float) -> float:
        known: dict[float, float] = {}
        # A pass that seems to take longer than one over more tokens was held up.
        least = float("inf")
        for each, found in sorted(self._nearest(sequences).items(), reverse=True):
            least = known[each] = min(least, median(found))
        if width in known:
            return known[width]
        factors = {each: self._factor(sequences, each, known[each]) for each in sorted(known)}
        factor = np.interp(width, list(factors), list(factors.values())) if factors else 1.0
        taken = 1 + float(factor) * self._guessed(sequences, width)
        # A pass over fewer tokens takes no longer than one over more.
        longer = [ratio for each, ratio in known.items() if each > width]
        shorter = [ratio for each, ratio in known.items() if each < width]
        return max([min([taken, *longer]), *shorter])

    def _factor(self, sequences: int, width: float, ratio: float) -> float:
        """How many times what was guessed a measured pass takes beyond a plain step. Where costs are known, the guess
        counts as two more measurements, so that the first one does not decide alone."""
        found = (ratio - 1) / self._guessed(sequences, width)
        count = len(self._nearest(sequences)[width])
        return (count * found + 2) / (count + 2) if self.costs else found

    def _guessed(self, sequences: int, width: float) -> float:
        """What a pass is taken to cost beyond a plain step, in plain steps, before any was measured."""
        if not self.costs:
            return FIRST_GUESS * (width - 1)
        return _on_line(self.costs, sequences * width) / _on_line(self.costs, sequences) - 1

    def _nearest(self, sequences: int) -> dict[float, deque[float]]:
        """What was measured of this many sequences; where there is nothing and passes have padding, of the most similar
        number."""
        if sequences not in self._measured and not self.costs and self._measured:
            sequences = min(self._measured, key=lambda count: abs(count - sequences))
        return self._measured.get(sequences, {})


class Pace:
    """Decides how many tokens to propose for each of the sequences that a step computes."""

    def __init__(self, most: int, *, overlaps: bool = False, costs: Points = ()) -> None:
        """`most`: most tokens proposed for a sequence. `overlaps`: a step in which proposals are looked for takes
        longer even where there are none, because it cannot be built while the last one is computed. `costs`: as in
        `StepTimes`; where they are empty, a pass computes as many tokens of each sequence as of that with the most."""
        self.times = StepTimes(costs)
        self._pads = not costs
        self._overlaps = overlaps
        self._hits = 1.0  # of the steps that looked for proposals, the share that found some
        self._vain = 0.0  # seconds by which steps that found none were longer
        self.most = most
        self._budget = SAVINGS  # seconds that may be lost now
        self._interest = 1.0  # times `ALLOWANCE`: what is spent on trials
        self._since_plain = 0  # steps with proposals since the last plain one
        self._plain_before = 0  # sequences of the last step if that was a plain one, else 0
        self._trial = 0  # counts steps with proposals: whose turn it is among trials

    @property
    def rests(self) -> bool:
        """Whether proposals have not paid for so long that they are hardly tried any more."""
        return self._interest <= LEAST_INTEREST

    def lengths(self, chances: Sequence[float], available: Sequence[int]) -> list[int]:
        """How many tokens to propose for each sequence. `chances`: that a proposal is right. `available`: proposals
        that there can be."""
        none = [0] * len(chances)
        # What is certain to be right is no trial: where the budget is used up, it is taken all the same.
        least = 0.0 if self._solvent else 1.0
        rooms = [
            min(self.most, own) * (chance >= least) for chance, own in zip(chances, available, strict=True)
        ]
        if not any(rooms) or self._plain_is_due(len(chances)):
            return none
        best = self._best(chances, rooms, self._leap(len(chances)))
        worth = WORTH if self._budget >= 0 else WORTH_IN_DEBT
        pays = self.rate(chances, best) > worth * self.rate(chances, none)
        if pays and self._trial % CURIOUS:
            return best
        tried = self._tried(chances, rooms, self._leap(len(chances)))
        # What is unlikely to pay is tried now and then, from full savings, so that a change is noticed.
        worth_trying = self._budget >= self._savings or self._may_pay(chances, tried)
        if worth_trying and self._loss(chances, tried) < self._budget:
            return tried
        return best if pays else none

    def _may_pay(self, chances: Sequence[float], lengths: Sequence[int]) -> bool:
        """Whether these would pay at best: with chances higher by `DOUBT`, and guessed times lower by `CHEAPER`."""
        count, computed = len(lengths), self.computed(lengths)
        at_best = (min(1.0, chance + DOUBT) for chance in chances)
        tokens = sum(map(expected_tokens, at_best, lengths))
        seconds = self.times.expected(count, computed)
        seconds *= 1 if computed <= count * self.times.widest(count) else CHEAPER
        return tokens / count * self.times.plain(count) > WORTH * seconds

    def may_propose(self, sequences: int) -> bool:
        """Whether no plain step is due to be measured, and the budget is not used up."""
        return self._solvent and not self._plain_is_due(sequences)

    def _plain_is_due(self, sequences: int) -> bool:
        return self._since_plain >= STALE or not self.times.measured(sequences)

    @property
    def _solvent(self) -> bool:
        return self._budget > -self._savings

    def _leap(self, sequences: int) -> int:
        """The largest mean number of proposals for a sequence whose time may be guessed: twice as many tokens as in the
        widest pass that was measured. Guesses are too low where vectors are multiplied a few at a time."""
        return int(LEAP * self.times.widest(sequences)) - 1

    def _best(self, chances: Sequence[float], rooms: Sequence[int], leap: int) -> list[int]:
        """The numbers of proposals that give the most tokens a second: at least one in all, up to `leap` for each."""
        if self._pads:
            choices = (
                [min(longest, room, reach(chance)) for chance, room in zip(chances, rooms, strict=True)]
                for longest in range(1, min(leap, max(rooms)) + 1)
            )
            return max(choices, key=lambda lengths: self.rate(chances, lengths))
        count = len(rooms)
        likeliest = self._likeliest(chances, rooms)[: leap * count]
        tokens = accumulate((right for right, _ in likeliest), initial=float(count))
        rates = [given / self.times.expected(count, count + number) for number, given in enumerate(tokens)]
        return _shared_out(likeliest[: max(range(1, len(rates)), key=rates.__getitem__)], count)

    def _likeliest(self, chances: Sequence[float], rooms: Sequence[int]) -> list[tuple[float, int]]:
        """The chance of each proposal to be reached and right, and the index of its sequence, the likeliest first.
        Proposals that are hardly ever reached are left out."""
        rated = [
            (chance**place, -place, index)
            for index, (chance, room) in enumerate(zip(chances, rooms, strict=True))
            for place in range(1, min(room, max(1, reach(chance))) + 1)
        ]
        return [(right, index) for right, _, index in sorted(rated, reverse=True)]

    def _tried(self, chances: Sequence[float], rooms: Sequence[int], leap: int) -> list[int]:
        """The numbers of proposals to try next, though they are not expected to pay. All numbers up to `leap` for each
        take turns, in an order in which numbers that are far apart follow one another."""
        turn = self._trial * GOLDEN % 1
        if self._pads:
            number = 1 + int(turn * min(leap, max(rooms)))
            return [
                min(number, room, max(1, reach(chance))) for chance, room in zip(chances, rooms, strict=True)
            ]
        likeliest = self._likeliest(chances, rooms)[: leap * len(rooms)]
        return _shared_out(likeliest[: 1 + int(turn * len(likeliest))], len(rooms))

    def worth_looking(self, chances: Sequence[float]) -> bool:
        """Whether the next step should look for proposals that cost nothing to make. There may be none."""
        if not self._overlaps:
            return self.may_propose(len(chances))
        lengths = self.lengths(chances, [self.most] * len(chances))
        if not any(lengths):
            return False
        won, lost = -self._hits * self._loss(chances, lengths), (1 - self._hits) * self._vain
        return won > lost or self._budget > lost

    def looked_in_vain(self, sequences: int, seconds: float) -> None:
        """A step looked for proposals, and there were none."""
        if not self._overlaps:
            self.observe(sequences, sequences, seconds, sequences)
            return
        if not self.times.measured(sequences):
            return
        plain = self.times.plain(sequences)
        spent = min(seconds, OUTLIER * plain)
        self._spend(spent, spent - plain)
        self._vain += SMOOTHING * (spent - plain - self._vain)
        self._hits -= SMOOTHING * self._hits

    def computed(self, lengths: Sequence[int]) -> int:
        """Tokens that a pass computes with so many proposals for each sequence."""
        return len(lengths) * (1 + max(lengths)) if self._pads else len(lengths) + sum(lengths)

    def observe(self, sequences: int, computed: int, seconds: float, tokens: int) -> None:
        """A step computed `computed` tokens and gave `tokens`, of all sequences. It was a plain one where it computed
        one token for each sequence."""
        plain, is_plain = self.times.plain(sequences), computed == sequences
        if self.times.measured(sequences):
            spent = min(seconds, OUTLIER * self.times.expected(sequences, computed))
            lost = 0.0 if is_plain else spent - plain * tokens / sequences
            self._spend(spent, lost)
            if not is_plain:
                self._interest = 1.0 if lost < 0 else max(self._interest / 2, LEAST_INTEREST)
        # Only a plain step right after another shows the time of steps without proposals: it was begun while the one
        # before it was computed. A first one takes half as long again.
        follows = self._plain_before == sequences
        self._plain_before = sequences if is_plain else 0
        if not is_plain or follows:
            self.times.observe(sequences, computed, seconds)
        if is_plain:
            self._since_plain = 0 if follows else self._since_plain
        else:
            self._since_plain += 1
            self._trial += 1
            self._hits += SMOOTHING * (1 - self._hits)

    def _spend(self, seconds: float, lost: float) -> None:
        """Take from the budget what a step `lost` of its seconds beside plain steps; less than 0 where it won some."""
        self._budget = min(self._budget + ALLOWANCE * self._interest * seconds - lost, self._savings)

    @property
    def _savings(self) -> float:
        return max(SAVINGS, SAVED_STEPS * self.times.shortest)

    def rate(self, chances: Sequence[float], lengths: Sequence[int]) -> float:
        """Tokens a second of all sequences."""
        tokens = sum(map(expected_tokens, chances, lengths))
        return tokens / self.times.expected(len(lengths), self.computed(lengths))

    def _loss(self, chances: Sequence[float], lengths: Sequence[int]) -> float:
        """Seconds by which a step is expected to be slower than plain steps that give as many tokens."""
        count = len(lengths)
        tokens = sum(map(expected_tokens, chances, lengths))
        return self.times.expected(count, self.computed(lengths)) - self.times.plain(count) * tokens / count
