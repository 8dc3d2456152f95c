"""How many tokens are worth proposing, by what acceptance and time were measured to be. Numbers in, numbers out.

A pass over several tokens of each sequence takes longer than one over a single token, by how much depends on the
machine, the model and how many sequences there are. It gives more tokens where the model agrees with proposals. `Pace`
proposes as many as give most tokens a second, none where that is none. What it spends on finding that out, and on being
wrong, is bounded by a budget: a share of all time, which becomes smaller with each trial that was in vain.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from statistics import median

REMEMBERED = 9  # measurements of a kind of step
FIRST_GUESS = 0.1  # of a step's time, that a proposed token adds, before that is measured
OUTLIER = 2.0  # times what was expected: longer steps count as so long, for something else held them up
STALE = 128  # steps with proposals after which a plain one is measured again
FRESH = 2  # plain steps that are measured before there is anything to compare with
FADING = 0.85  # of what was seen of a sequence, with each step that judges it
PRIOR = 2.0  # judged tokens that what others have seen stands for
HOPE = 0.5  # chance of a proposal before any was judged
TOO_RARE = 0.05  # proposals with a smaller chance of being reached and right are left out
FARTHEST = 1 << 10  # tokens
SMOOTHING = 0.1
WORTH = 1.02  # times the tokens a second of a plain step, for proposals to be worth it
ALLOWANCE = 0.02  # share of the time that may be lost
LEAST_INTEREST = 1 / 8  # of that share, after trials that were all in vain
SAVINGS = 0.3  # seconds that may be lost at once


@dataclass
class Acceptance:
    """How often the model agrees with what is proposed for a sequence."""

    prior: float = HOPE
    _agreed: float = 0.0
    _judged: float = 0.0

    def observe(self, proposed: int, accepted: int) -> None:
        """So many tokens were judged one after the other, up to the first that was wrong."""
        if proposed:
            self._agreed = self._agreed * FADING + accepted
            self._judged = self._judged * FADING + accepted + (accepted < proposed)

    @property
    def chance(self) -> float:
        """That the next proposal is right."""
        return (self._agreed + PRIOR * self.prior) / (self._judged + PRIOR)


def expected_tokens(chance: float, proposed: int) -> float:
    """Tokens that a step gives a sequence: those accepted, and one more."""
    return proposed + 1 if chance >= 1 else (1 - chance ** (proposed + 1)) / (1 - chance)


def reach(chance: float) -> int:
    """Up to which place proposals are right now and then."""
    if chance >= 1:
        return FARTHEST
    return int(log(TOO_RARE) / log(chance)) if chance > TOO_RARE else 0


def _last() -> deque[float]:
    return deque(maxlen=REMEMBERED)


@dataclass
class StepTimes:
    """What steps take, by how many sequences they compute and how many tokens of each."""

    _plain: dict[int, deque[float]] = field(default_factory=dict)  # seconds, of a token for each of so many
    _ratios: dict[int, dict[int, deque[float]]] = field(default_factory=dict)  # to that, by tokens for each

    def observe(self, sequences: int, width: int, seconds: float) -> None:
        if width == 1:
            known = self._plain.setdefault(sequences, _last())
            known.append(min(seconds, OUTLIER * median(known)) if len(known) > FRESH else seconds)
        elif plain := self.plain(sequences):
            ratio = min(seconds / plain, OUTLIER * self._ratio(sequences, width))
            self._ratios.setdefault(sequences, {}).setdefault(width, _last()).append(ratio)

    def measured(self, sequences: int) -> bool:
        """Whether it is known what a plain step for so many takes."""
        return len(self._plain.get(sequences, ())) >= FRESH

    def plain(self, sequences: int) -> float:
        """Seconds of a step of one token for each; 0 before any was measured."""
        known = self._plain.get(sequences)
        return median(known) if known else 0.0

    def expected(self, sequences: int, width: int) -> float:
        """Seconds of a step of `width` tokens for each."""
        return self.plain(sequences) * (1.0 if width == 1 else self._ratio(sequences, width))

    def _ratio(self, sequences: int, width: int) -> float:
        """As measured, else on the line through the nearest widths that were."""
        if not self._ratios:
            return 1 + FIRST_GUESS * (width - 1)
        nearest = min(self._ratios, key=lambda count: abs(count - sequences))
        known = {1: 1.0} | {each: median(found) for each, found in self._ratios[nearest].items()}
        if width in known:
            return known[width]
        below = max(each for each in known if each < width)
        above = min((each for each in known if each > width), default=None)
        low, high = (below, above) if above is not None else (1, below)
        if low == high:
            return known[low] + FIRST_GUESS * (width - low)
        slope = (known[high] - known[low]) / (high - low)
        return known[below] + slope * (width - below)


class Pace:
    """Says how many tokens to propose for each of the sequences that a step computes."""

    def __init__(self, most: int, *, overlaps: bool = False) -> None:
        """`most`: tokens proposed for a sequence. `overlaps`: a step in which proposals are looked for takes longer
        even where there are none, because it cannot be built while the last one is computed."""
        self.times = StepTimes()
        self._overlaps = overlaps
        self._hits = 1.0  # share of the steps that looked for proposals and had some
        self._vain = 0.0  # seconds by which the others were longer
        self._most = most
        self._budget = SAVINGS  # seconds that may be lost now
        self._interest = 1.0  # times `ALLOWANCE` is what is spent on trials
        self._since_plain = 0  # steps with proposals
        self._plain_before = 0  # sequences of the step before, if that was a plain one
        self._trial = 0  # counts steps whose length was tried for knowledge's sake

    @property
    def rests(self) -> bool:
        """Whether proposals have not paid for so long that they are hardly tried any more."""
        return self._interest <= LEAST_INTEREST

    def lengths(self, chances: Sequence[float], available: Sequence[int]) -> list[int]:
        """`chances` that a proposal is right, and how many proposals there can be, of each sequence."""
        count = len(chances)
        none = [0] * count
        most = min(self._most, max(available, default=0))
        due = self._since_plain >= STALE or not self.times.measured(count)
        if not most or due or self._budget < 0:
            return none
        widths = [self._limited(chances, available, longest) for longest in range(most + 1)]
        best = max(range(most + 1), key=lambda longest: self._rate(chances, widths[longest]))
        if self._rate(chances, widths[best]) > WORTH * self._rate(chances, none):
            return widths[best]
        longest = 1 + self._trial % most
        tried = [
            min(longest, own, max(1, reach(chance))) for chance, own in zip(chances, available, strict=True)
        ]
        return tried if self._loss(chances, tried) < self._budget else none

    def worth_looking(self, chances: Sequence[float]) -> bool:
        """Whether the next step should look for proposals that cost nothing, of which there may be none."""
        lengths = self.lengths(chances, [self._most] * len(chances))
        if not any(lengths) or not self._overlaps:
            return any(lengths)
        won, lost = -self._hits * self._loss(chances, lengths), (1 - self._hits) * self._vain
        return won > lost or self._budget > lost

    def looked_in_vain(self, sequences: int, seconds: float) -> None:
        """A step looked for proposals, and there were none."""
        if not self._overlaps:
            self.observe(sequences, 1, seconds, sequences)
            return
        if not self.times.measured(sequences):
            return
        plain = self.times.plain(sequences)
        spent = min(seconds, OUTLIER * plain)
        self._spend(spent, spent - plain)
        self._vain += SMOOTHING * (spent - plain - self._vain)
        self._hits -= SMOOTHING * self._hits

    def observe(self, sequences: int, width: int, seconds: float, tokens: int) -> None:
        """A step gave so many tokens in all. `width` is 1 where nothing was looked for."""
        plain = self.times.plain(sequences)
        if self.times.measured(sequences):
            spent = min(seconds, OUTLIER * self.times.expected(sequences, width))
            lost = spent - plain * tokens / sequences if width > 1 else 0.0
            self._spend(spent, lost)
            if width > 1:
                self._interest = 1.0 if lost < 0 else max(self._interest / 2, LEAST_INTEREST)
        # A plain step right behind another is what there would be without proposals: it was begun while the one before
        # it was computed, and a first one takes half as long again.
        follows = self._plain_before == sequences
        self._plain_before = sequences if width == 1 else 0
        if width > 1 or follows:
            self.times.observe(sequences, width, seconds)
        if width == 1:
            self._since_plain = 0 if follows else self._since_plain
        else:
            self._since_plain += 1
            self._trial += 1
            self._hits += SMOOTHING * (1 - self._hits)

    def _spend(self, seconds: float, lost: float) -> None:
        """Of a step's seconds so many were lost, less than none where they were won."""
        self._budget = min(self._budget + ALLOWANCE * self._interest * seconds - lost, SAVINGS)

    def _limited(self, chances: Sequence[float], available: Sequence[int], longest: int) -> list[int]:
        """Lengths of at most `longest`, without what is hardly ever reached."""
        return [min(longest, own, reach(chance)) for chance, own in zip(chances, available, strict=True)]

    def _rate(self, chances: Sequence[float], lengths: Sequence[int]) -> float:
        """Tokens a second of all sequences."""
        tokens = sum(map(expected_tokens, chances, lengths))
        return tokens / self.times.expected(len(lengths), max(lengths) + 1)

    def _loss(self, chances: Sequence[float], lengths: Sequence[int]) -> float:
        """Seconds that a step is expected to lose to plain ones."""
        count = len(lengths)
        tokens = sum(map(expected_tokens, chances, lengths))
        return self.times.expected(count, max(lengths) + 1) - self.times.plain(count) * tokens / count
