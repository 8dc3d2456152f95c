"""How many tokens are worth proposing, by what acceptance and time were measured to be. Numbers in, numbers out.

A pass over several tokens of each sequence takes longer than one over a single token, by how much depends on the
machine, the model and how many sequences there are. It gives more tokens where the model agrees with proposals. `Pace`
proposes as many as give most tokens a second, none where that is none. What it spends on finding that out, and on being
wrong, is bounded by a budget: a share of all time, which becomes smaller with each trial that was in vain.

Where a pass computes no padding, the tokens that it may compute go to the proposals that are likeliest to be right,
whosesoever they are: a sequence that has none to offer takes nothing from one that copies a page.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, log
from statistics import median

REMEMBERED = 9  # measurements of a kind of step
FIRST_GUESS = 0.1  # of a step's time, that a proposed token adds, before that is measured
Costs = tuple[tuple[int, float], ...]
"""What products of so many vectors take, times what those of one do."""
WITH_VNNI: Costs = (
    (1, 1.0),
    (2, 1.1),
    (3, 1.22),
    (4, 1.4),
    (5, 1.92),
    (6, 1.96),
    (8, 2.36),
    (9, 2.9),
    (12, 3.3),
    (16, 3.9),
    (17, 5.4),
    (24, 6.0),
    (25, 7.1),
    (32, 7.4),
    (36, 8.5),
    (48, 10.6),
    (64, 13.6),
    (1024, 214.0),  # in proportion
)
"""Of kernels for CPUs that multiply int8 by one instruction. They take 1, 2, 3, 4, 6, 8, 12 or 16 vectors at a time, so
that some cost next to nothing more than fewer, and the next one much. Measured by `benchmarks.speculation_policy
--measure`; elsewhere the height differs, hardly the shape."""
WITH_AVX2: Costs = (
    (1, 1.0),
    (2, 1.7),
    (3, 1.95),
    (4, 2.4),
    (6, 3.4),
    (8, 4.2),
    (9, 6.0),
    (12, 6.7),
    (16, 7.6),
    (17, 9.1),
    (24, 11.6),
    (25, 13.6),
    (32, 16.0),
    (36, 17.5),
    (48, 21.5),
    (64, 30.2),
    (1024, 480.0),  # in proportion
)
"""The same of those on AVX2, where a product takes several instructions: one vector leaves the processor less idle."""
NEVER_PAYS = 1.1  # times as many plain steps as a pass computes tokens of a sequence
LEAP = 2.0  # times the tokens of passes that were measured
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
WORTH_IN_DEBT = 1.1  # times that, where more was lost than may be: up to as much again as may be lost at once
ALLOWANCE = 0.02  # share of the time that may be lost
LEAST_INTEREST = 1 / 8  # of that share, after trials that were all in vain
SAVINGS = 0.04  # seconds that may be lost at once, or
SAVED_STEPS = 2.0  # plain steps of one token, if those take longer
DOUBT = 0.2  # by which a chance may be higher than it is taken to be
CHEAPER = 0.8  # times what is guessed, that a pass may take which is longer than any that was measured
CURIOUS = (
    16  # checks that pay, after which there is one to find out whether other numbers of proposals pay more
)
GOLDEN = (5**0.5 - 1) / 2  # the golden ratio


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


def _shared_out(chosen: Sequence[tuple[float, int]], count: int) -> list[int]:
    """How many of these proposals are whose."""
    lengths = [0] * count
    for _, index in chosen:
        lengths[index] += 1
    return lengths


Points = Sequence[tuple[float, float]]
"""Of a curve, ascending."""


def _on_line(points: Points, place: float) -> float:
    """On the line through the nearest points; past the last one it goes on as between the last two."""
    index = bisect_left(points, (place,))
    if index < len(points) and points[index][0] == place:
        return points[index][1]
    index = min(max(index, 1), len(points) - 1)
    (low, below), (high, above) = points[index - 1], points[index]
    return below + (above - below) * (place - low) / (high - low)


def _between(points: Points, place: float) -> float:
    """On the line between the nearest points, or what the last one has."""
    return points[-1][1] if place >= points[-1][0] else _on_line(points, place)


def _useless(width: float) -> float:
    """Times a plain step with which a pass does not pay even where all proposals are right. How much longer one takes
    than that does not matter, and mostly something else held it up."""
    return NEVER_PAYS * ceil(width)


@dataclass
class _Ratios:
    """What passes of some number of sequences take, by the tokens that they compute for a sequence in the mean: times
    what a plain step takes.

    What was measured is taken as it is. Between and beyond, it is on the line through the nearest widths that were; or
    where the shape of the curve is known, as much above or below it as those are. A line would have one pass over five
    vectors, which costs what one over six does, speak for all longer ones by its slope."""

    shape: Points | None = None  # from the plain step on
    # By width, those of other numbers of sequences that computed as many tokens: they correct the shape.
    transferred: dict[float, float] = field(default_factory=dict)
    widest: float = 1.0  # that was measured
    _measured: dict[float, deque[float]] = field(default_factory=dict)
    _known: dict[float, float] = field(default_factory=dict)
    _found: dict[float, float] = field(default_factory=dict)  # what `at` gave
    _first: Points = ((1.0, 1.0),)  # times the shape, by what others have measured
    _second: Points = ((1.0, 1.0),)  # times that, by what was measured itself

    def __post_init__(self) -> None:
        self._known = _ascending(self.transferred)
        self._first = [
            (1.0, 1.0),
            *((each, ratio / self._shaped(each)) for each, ratio in self._known.items()),
        ]
        self.widest = max(self._known, default=1.0)

    def observe(self, width: float, ratio: float) -> None:
        self._measured.setdefault(width, _last()).append(ratio)
        self.widest = max(self.widest, width)
        self._known = _ascending({each: median(found) for each, found in self._measured.items()})
        self._second = [
            (1.0, 1.0),
            *((each, self._factor(each, known)) for each, known in self._known.items()),
        ]
        self._found.clear()

    @property
    def measured(self) -> dict[float, float]:
        return self._known if self._measured else {}

    def at(self, width: float) -> float:
        """At least 1: where a longer pass seems to take less than a plain step, that one was held up."""
        if (found := self._found.get(width)) is None:
            found = self._found[width] = max(1.0, min(self._expected(width), _useless(width)))
        return found

    def _expected(self, width: float) -> float:
        if width == 1 or width in self.measured:
            return self.measured.get(width, 1.0)
        if self.shape is None:
            points = [(1.0, 1.0), *self.measured.items()]
            return _on_line(points if len(points) > 1 else [*points, (2.0, 1.0 + FIRST_GUESS)], width)
        taken = self._corrected(width) * _between(self._second, width)
        # A pass over fewer tokens takes no longer than one over more.
        longer = [ratio for each, ratio in self.measured.items() if each > width]
        shorter = [ratio for each, ratio in self.measured.items() if each < width]
        return max([min([taken, *longer]), *shorter])

    def _factor(self, width: float, ratio: float) -> float:
        """How many times as long as was to be expected passes like those of this width take: the shape stands for one
        more measurement, so that the first one does not decide alone."""
        count = len(self._measured[width])
        return float((max(1.0, ratio) / self._corrected(width)) ** (count / (count + 1)))

    def _corrected(self, width: float) -> float:
        return self._shaped(width) * _between(self._first, width)

    def _shaped(self, width: float) -> float:
        return 1.0 if self.shape is None else _on_line(self.shape, width)


def _ascending(ratios: Mapping[float, float]) -> dict[float, float]:
    """By width: a pass over fewer tokens takes no longer than one over more; what says otherwise was held up."""
    known = sorted(ratios.items(), reverse=True)
    least = accumulate((ratio for _, ratio in known), min)
    return dict(reversed([(width, ratio) for (width, _), ratio in zip(known, least, strict=True)]))


@dataclass
class StepTimes:
    """What steps take, by how many sequences they compute and how many tokens of all of them."""

    pads: bool = (
        True  # what passes take depends on their tokens for each sequence, else on those of all of them
    )
    costs: Costs = WITH_VNNI  # of passes without padding, before they are measured
    _plain: dict[int, deque[float]] = field(default_factory=dict)  # seconds, of a token for each of so many
    _medians: dict[int, float] = field(default_factory=dict)
    _ratios: dict[int, _Ratios] = field(default_factory=dict)

    def observe(self, sequences: int, computed: int, seconds: float) -> None:
        if computed == sequences:
            known = self._plain.setdefault(sequences, _last())
            known.append(min(seconds, OUTLIER * median(known)) if len(known) > FRESH else seconds)
            self._medians[sequences] = median(known)
            if not self.pads and len(known) == FRESH and sequences not in self._ratios:
                self._ratios[sequences] = self._unknown(sequences)
        elif plain := self.plain(sequences):
            width = computed / sequences
            ratio = min(seconds / plain, OUTLIER * self._nearest(sequences).at(width), _useless(width))
            if sequences not in self._ratios:
                self._ratios[sequences] = self._unknown(sequences)
            self._ratios[sequences].observe(width, ratio)

    def _unknown(self, sequences: int) -> _Ratios:
        """Before a pass of so many sequences was measured."""
        if self.pads:
            return _Ratios()
        plain = _on_line(self.costs, sequences)
        more = [(vectors / sequences, taken / plain) for vectors, taken in self.costs if vectors > sequences]
        shape = [(1.0, 1.0), *(more or [(2.0, 2.0)])]
        return _Ratios(shape, self._transferred(sequences) if self.measured(sequences) else {})

    def _transferred(self, sequences: int) -> dict[float, float]:
        """What passes of other numbers of sequences have taken, which computed more tokens than a plain one of this."""
        known = dict(self._medians)
        for count, ratios in self._ratios.items():
            known |= {
                round(width * count): ratio * self.plain(count) for width, ratio in ratios.measured.items()
            }
        plain = self.plain(sequences)
        return {
            computed / sequences: max(1.0, seconds / plain)
            for computed, seconds in known.items()
            if computed > sequences
        }

    def widest(self, sequences: int) -> float:
        """The most tokens of a sequence, in the mean, of passes whose time is known."""
        return self._nearest(sequences).widest

    def measured(self, sequences: int) -> bool:
        """Whether it is known what a plain step for so many takes."""
        return len(self._plain.get(sequences, ())) >= FRESH

    def plain(self, sequences: int) -> float:
        """Seconds of a step of one token for each; 0 before any was measured."""
        return self._medians.get(sequences, 0.0)

    @property
    def shortest(self) -> float:
        """Seconds of a plain step for the fewest sequences that there were."""
        return self._medians[min(self._medians)] if self._medians else 0.0

    def expected(self, sequences: int, computed: int) -> float:
        """Seconds of a step of so many tokens in all."""
        if computed == sequences:
            return self.plain(sequences)
        return self.plain(sequences) * self._nearest(sequences).at(computed / sequences)

    def _nearest(self, sequences: int) -> _Ratios:
        """Of so many sequences, else, where what passes take depends on the tokens for each, of the most similar number
        that there were."""
        if sequences in self._ratios:
            return self._ratios[sequences]
        nearest = min(self._ratios, key=lambda count: abs(count - sequences), default=None)
        if nearest is None or not self.pads:
            return self._unknown(sequences)
        return self._ratios[nearest]


class Pace:
    """Says how many tokens to propose for each of the sequences that a step computes."""

    def __init__(
        self, most: int, *, overlaps: bool = False, pads: bool = True, costs: Costs = WITH_VNNI
    ) -> None:
        """`most`: tokens proposed for a sequence. `overlaps`: a step in which proposals are looked for takes longer
        even where there are none, because it cannot be built while the last one is computed. `pads`: a pass computes
        as many tokens of each sequence as of that with the most. `costs`: of passes that do not."""
        self.times = StepTimes(pads, costs)
        self.tree_times = StepTimes(pads, costs)  # of steps that check trees, see `TreePace`
        self._pads = pads
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
        none = [0] * len(chances)
        rooms = [min(self._most, own) for own in available]
        if not any(rooms) or not self.may_propose(len(chances)):
            return none
        best = self._best(chances, rooms, self._leap(len(chances)))
        worth = WORTH if self._budget >= 0 else WORTH_IN_DEBT
        pays = self.rate(chances, best) > worth * self.rate(chances, none)
        if pays and self._trial % CURIOUS:
            return best
        tried = self._tried(chances, rooms, self._leap(len(chances)))
        # What is not even likely to pay is tried now and then, so that a change is noticed: from full savings.
        worth_trying = self.has_savings or self._may_pay(chances, tried)
        if worth_trying and self._loss(chances, tried) < self._budget:
            return tried
        return best if pays else none

    def _may_pay(self, chances: Sequence[float], lengths: Sequence[int]) -> bool:
        """Whether these would pay if as much more were right, and a pass took as much less, as may well be."""
        count, computed = len(lengths), self.computed(lengths)
        tokens = sum(
            expected_tokens(min(1.0, chance + DOUBT), own)
            for chance, own in zip(chances, lengths, strict=True)
        )
        seconds = self.times.expected(count, computed)
        seconds *= 1 if computed <= count * self.times.widest(count) else CHEAPER
        return tokens / count * self.times.plain(count) > WORTH * seconds

    def may_propose(self, sequences: int) -> bool:
        """Whether nothing else is due."""
        due = self._since_plain >= STALE or not self.times.measured(sequences)
        return not due and self._budget > -self._savings

    def _leap(self, sequences: int) -> int:
        """Proposals for a sequence in the mean, of which it may be guessed what they take: twice as many tokens as in a
        pass that was measured. Guesses are low where vectors are multiplied a few at a time."""
        return int(LEAP * self.times.widest(sequences)) - 1

    def _best(self, chances: Sequence[float], rooms: Sequence[int], leap: int) -> list[int]:
        """Of all numbers of proposals, but none, up to `leap` for each, those that give most tokens a second."""
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
        """How likely each proposal is to be reached and right, and whose it is, the likeliest first. What is hardly
        ever reached is left out."""
        rated = [
            (chance**place, -place, index)
            for index, (chance, room) in enumerate(zip(chances, rooms, strict=True))
            for place in range(1, min(room, max(1, reach(chance))) + 1)
        ]
        return [(right, index) for right, _, index in sorted(rated, reverse=True)]

    def _tried(self, chances: Sequence[float], rooms: Sequence[int], leap: int) -> list[int]:
        """What to find out next, though it is not expected to pay: all numbers come in turn, up to `leap` for each, and
        soon after one another some that are far apart."""
        turn = self._trial * GOLDEN % 1
        if self._pads:
            number = 1 + int(turn * min(leap, max(rooms)))
            return [
                min(number, room, max(1, reach(chance))) for chance, room in zip(chances, rooms, strict=True)
            ]
        likeliest = self._likeliest(chances, rooms)[: leap * len(rooms)]
        return _shared_out(likeliest[: 1 + int(turn * len(likeliest))], len(rooms))

    def worth_looking(self, chances: Sequence[float]) -> bool:
        """Whether the next step should look for proposals that cost nothing, of which there may be none."""
        if not self._overlaps:
            return self.may_propose(len(chances))
        lengths = self.lengths(chances, [self._most] * len(chances))
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

    def observe(
        self, sequences: int, computed: int, seconds: float, tokens: int, *, trees: bool = False
    ) -> None:
        """A step gave so many tokens in all. It `computed` one for each sequence where nothing was looked for, else
        chains, or `trees`."""
        plain, is_plain = self.times.plain(sequences), computed == sequences
        times = self.tree_times if trees else self.times
        if self.times.measured(sequences):
            spent = min(seconds, OUTLIER * times.expected(sequences, computed))
            lost = 0.0 if is_plain else spent - plain * tokens / sequences
            self._spend(spent, lost)
            if not is_plain:
                self._interest = 1.0 if lost < 0 else max(self._interest / 2, LEAST_INTEREST)
        # A plain step right behind another is what there would be without proposals: it was begun while the one before
        # it was computed, and a first one takes half as long again.
        follows = self._plain_before == sequences
        self._plain_before = sequences if is_plain else 0
        if not is_plain or follows:
            times.observe(sequences, computed, seconds)
        if is_plain and follows:
            self.tree_times.observe(sequences, computed, seconds)
        if is_plain:
            self._since_plain = 0 if follows else self._since_plain
        else:
            self._since_plain += 1
            self._trial += 1
            self._hits += SMOOTHING * (1 - self._hits)

    def _spend(self, seconds: float, lost: float) -> None:
        """Of a step's seconds so many were lost, less than none where they were won."""
        self._budget = min(self._budget + ALLOWANCE * self._interest * seconds - lost, self._savings)

    @property
    def budget(self) -> float:
        """Seconds that may be lost now."""
        return self._budget

    @property
    def has_savings(self) -> bool:
        """Whether nothing of what may be lost at once is spent."""
        return self._budget >= self._savings

    @property
    def _savings(self) -> float:
        return max(SAVINGS, SAVED_STEPS * self.times.shortest)

    def rate(self, chances: Sequence[float], lengths: Sequence[int]) -> float:
        """Tokens a second of all sequences."""
        tokens = sum(map(expected_tokens, chances, lengths))
        return tokens / self.times.expected(len(lengths), self.computed(lengths))

    def _loss(self, chances: Sequence[float], lengths: Sequence[int]) -> float:
        """Seconds that a step is expected to lose to plain ones."""
        count = len(lengths)
        tokens = sum(map(expected_tokens, chances, lengths))
        return self.times.expected(count, self.computed(lengths)) - self.times.plain(count) * tokens / count
