"""Which slots of the arenas a step computes, and where their rows stand."""

from itertools import groupby

import mlx.core as mx

from pippin.engines.cpu.functions import steady


class Window:
    """The slots that a step computes, `low` to `high`, and where each of their rows stands.

    A slot without a row stands at position 0 and computes what nobody reads.
    """

    def __init__(self) -> None:
        self.low = 0
        self.high = 0
        self.count = 1  # tokens for each row in this step
        self.tick = 0
        self.capacity = 0
        self.lengths: list[int] = []  # of each slot, before this step
        self.shifts: list[int] = []  # of each slot, by which rotary positions differ from places
        self.before: int | mx.array = 0
        self.after: int | mx.array = 0
        self.longest = 0
        self.level = True  # all rows stand at the same position
        # Slots side by side that stand at one position: from, to, and where.
        self.runs: list[tuple[int, int, int]] = []
        # Of each slot's next token, [slots, 1, 1, 1]; only where not level.
        self.places = mx.array([], dtype=mx.int32)

    def begin(self, count: int) -> None:
        """A step of `count` tokens for each row begins."""
        self.tick += 1
        self.count = count
        lengths = self.lengths[self.low : self.high]
        self.longest = max(lengths)
        self.runs, start = [], self.low
        for length, run in groupby(lengths):
            stop = start + len(list(run))
            self.runs.append((start, stop, length))
            start = stop
        self.level = len(self.runs) == 1
        if self.level:
            self.before = lengths[0]
        else:
            self.before = steady(mx.array(lengths, dtype=mx.int32))
            self.places = mx.array(self.lengths, dtype=mx.int32).reshape(-1, 1, 1, 1)
        self.after = self.before + count

    @property
    def rows(self) -> int:
        return self.high - self.low

    @property
    def slots(self) -> mx.array:
        return mx.arange(self.low, self.high)

    def over_all_slots(self, array: mx.array) -> mx.array:
        """An array [rows, ...] with zeros for the slots that this step does not compute."""
        before, after = self.low, len(self.lengths) - self.high
        return mx.pad(array, [(before, after), (0, 0), (0, 0), (0, 0)]) if before or after else array

    def positions(self) -> mx.array:
        """Of this step's tokens, [rows, count]."""
        starts = mx.array([self.before]) if isinstance(self.before, int) else self.before
        return starts[:, None] + mx.arange(self.count)

    def shifted_positions(self) -> mx.array:
        """As `positions`, as rotary embeddings count them: media in the prompt take fewer than they have tokens."""
        shifts = self.shifts[self.low : self.high]
        positions = self.positions()
        return positions + mx.array(shifts, dtype=mx.int32)[:, None] if any(shifts) else positions
