"""What a proposer is, and those that cost next to nothing: they look into the text itself and a prediction."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
from msgspec import Struct, field

from pippin.engines.language.kv_cache.kinds.base import SlotGroup
from pippin.engines.language.model.states import HiddenStates
from pippin.engines.language.step.sequences import Prefilling, Running, Sequence

NGRAM = 3  # tokens at the end of a text that are looked for earlier in it
SHORTEST_NGRAM = 2
MOST_READ = 4096  # tokens of a text that are read in a step: everybody waits for it
MOST_COMPARED = 32  # tokens before two places, of which the one with more in common with the text is taken
MOST_PLACES = 8  # that are remembered of a run of tokens, the last ones
MOST_IN_FORMS = 4
"""Sequences that run at once, of which more do without lookups in forms: checking guesses against their grammars then
takes longer than what they save (measured with eight)."""


class Proposal(NamedTuple):
    """Tokens that may follow. Those that were found in a text have `agreed` tokens before them in common with the
    sequence, by which it is measured how often such are right; None for those that a model drafted. Those that a
    grammar forces are `certain`: nobody guessed them."""

    tokens: list[int]
    agreed: int | None = None
    certain: bool = False


NOTHING = Proposal([])


class Proposer(Protocol):
    """Guesses how sequences go on. What it keeps of a sequence it forgets when that leaves the batch."""

    weight_bytes: int = 0  # of the weights that it has beside the model's
    is_free: bool = False  # proposals take next to no time; there may be none then

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether there may be proposals for the sequence now."""
        return True

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        """Up to so many tokens that may follow each sequence, all of whose tokens are known."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence runs no more."""

    def sequence_bytes(self, capacity: int) -> int:
        """Bytes of what is kept for a sequence, with capacity for so many tokens."""
        return 0


class Follower(Proposer):
    """A proposer that follows the passes of prompts, and then of the sequences in the batch."""

    rests: bool = False
    """Whether it is hardly asked any more, and need not read prompts that begin now."""

    def __init__(self, states: HiddenStates, weight_bytes: int) -> None:
        self.states = states
        self.weight_bytes = weight_bytes
        self.prompts: dict[Prefilling, Any] = {}
        self.followed: dict[Sequence, Any] = {}
        self._passed: dict[SlotGroup, mx.array] = {}  # states [slots, tokens, size]

    def is_ready(self, sequence: Sequence) -> bool:
        return sequence in self.followed

    def forget(self, sequence: Sequence) -> None:
        self.followed.pop(sequence, None)

    def prompts_passed(self, prompts: Many[Prefilling], counts: Many[int], done: int = 0) -> list[mx.array]:
        """The model has computed the next `counts` tokens of these prompts. Returns the arrays that are to be
        evaluated. `done`: tokens before them that the scheduler does not know of yet."""
        raise NotImplementedError

    def prompt_dropped(self, prompt: Prefilling) -> None:
        """No sequence of the prompt joins the batch any more."""
        self.prompts.pop(prompt, None)

    def started(self, running: Running, prompt: Prefilling) -> None:
        """A sequence of the prompt joins the batch."""

    def passed(self, group: SlotGroup) -> None:
        """The sequences of a group have gone through the model."""
        self._passed[group] = self.states.take()

    def kept(self, counts: Mapping[Running, int]) -> list[mx.array]:
        """Keep so many of the first tokens of the last pass for each sequence, at least one.

        Returns the arrays that are to be evaluated.
        """
        raise NotImplementedError


def agreed(proposed: list[int], chosen: list[int]) -> int:
    """How many of the proposed tokens were chosen, up to the first that was not, or for which no choice is known."""
    pairs = list(zip(proposed, chosen, strict=False))
    return next((place for place, (ours, its) in enumerate(pairs) if ours != its), len(pairs))


def _runs(tokens: Many[int], end: int) -> Iterator[tuple[int, ...]]:
    """The short runs of tokens that end there, the longest first."""
    for size in range(min(NGRAM, end), SHORTEST_NGRAM - 1, -1):
        yield tuple(tokens[end - size : end])


class _Places(Struct):
    """The places in a text where each of its short runs of tokens ends, the last first."""

    ends: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    read: int = 0  # tokens

    def read_on(self, tokens: Many[int]) -> None:
        stop = min(len(tokens), self.read + MOST_READ)
        for end in range(self.read, stop):  # the last tokens themselves come next time
            for run in _runs(tokens, end):
                self.ends[run] = (end, *self.ends.get(run, ())[: MOST_PLACES - 1])
        self.read = stop

    def after(self, tokens: Many[int]) -> tuple[int, int | None]:
        """How many of the last tokens stood together before, where that is most, and the place behind them; None if
        they never did."""
        found = next((self.ends[run] for run in _runs(tokens, len(tokens)) if run in self.ends), ())
        rated = ((_agreement(tokens, end), end) for end in found)
        return max(rated, default=(0, None))


class _Prediction:
    """An answer as its client expects it, and where in it a sequence is."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._tokens = tokens
        self._ends: dict[tuple[int, ...], list[int]] = {}
        for end in range(len(tokens) + 1):
            for run in _runs(tokens, end):
                self._ends.setdefault(run, []).append(end)
        self._place = 0  # behind the last token that was found
        self._agreed = 0  # tokens that were found one after the other
        self._lost = False  # what came after that was not
        self._followed = 0  # tokens of the sequence

    def after(self, generated: Many[int], most: int) -> Proposal:
        """What comes next: where the answer has left what was predicted, from where its last tokens stand again."""
        for end in range(self._followed + 1, len(generated) + 1):
            self._follow(generated, end)
        self._followed = len(generated)
        found = () if self._lost else self._tokens[self._place : self._place + most]
        return Proposal(list(found), self._agreed)

    def _follow(self, generated: Many[int], end: int) -> None:
        place = self._place
        if not self._lost and self._tokens[place : place + 1] == (generated[end - 1],):
            self._place += 1
            self._agreed += 1
            return
        self._lost = True
        for run in _runs(generated, end):
            # Behind where it was left: what an edit has passed does not come again, and what stands there was wrong.
            ends = self._ends.get(run, [])
            if (index := bisect_right(ends, place)) < len(ends):
                self._place, self._agreed, self._lost = ends[index], len(run), False
                return


def _agreement(tokens: Many[int], end: int) -> int:
    """How many of the last tokens stand before the token `end` as well."""
    most = min(end, MOST_COMPARED)
    return next((count for count in range(most) if tokens[end - 1 - count] != tokens[-1 - count]), most)


class Lookup(Proposer):
    """Proposes what the client predicts, else what followed the last tokens where they stood before in the text."""

    is_free = True

    def __init__(self, *, in_text: bool, in_forms: bool = False) -> None:
        """`in_text`: look into the text too, not only into predictions; `in_forms`: where a grammar gives an answer its
        form, since forms repeat."""
        self._in_text, self._in_forms = in_text, in_forms
        self._places: dict[Sequence, _Places] = {}
        self._predictions: dict[Sequence, _Prediction] = {}

    def is_ready(self, sequence: Sequence) -> bool:
        return self._reads(sequence, in_forms=self._in_forms) or bool(sequence.request.job.prediction)

    def _reads(self, sequence: Sequence, *, in_forms: bool) -> bool:
        return self._in_text or (in_forms and sequence.request.job.grammar is not None)

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        in_forms = self._in_forms and len(wanted) <= MOST_IN_FORMS
        return [self._look(sequence, most, in_forms=in_forms) for sequence, most in wanted]

    def _look(self, sequence: Sequence, most: int, *, in_forms: bool) -> Proposal:
        job = sequence.request.job
        if job.prediction:
            if sequence not in self._predictions:
                self._predictions[sequence] = _Prediction(job.prediction)
            found = self._predictions[sequence].after(sequence.tokens[len(job.prompt) :], most)
            if found.tokens:
                return found
        if not most or not self._reads(sequence, in_forms=in_forms):
            return NOTHING
        tokens = sequence.tokens
        # A long prompt is read whole only where an operator has asked for that.
        first = 0 if self._in_text else max(0, len(job.prompt) - MOST_READ)
        places = self._places.setdefault(sequence, _Places(read=first))
        places.read_on(tokens)
        agreed, place = places.after(tokens)
        return NOTHING if place is None else Proposal(tokens[place : place + most], agreed)

    def forget(self, sequence: Sequence) -> None:
        self._places.pop(sequence, None)
        self._predictions.pop(sequence, None)


class Either(Proposer):
    """Proposes what is free, and where there is nothing, what another proposer says."""

    def __init__(self, free: Proposer, other: Proposer) -> None:
        self._free = free
        self.other = other
        self.weight_bytes = free.weight_bytes + other.weight_bytes

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        found = self._free.propose(wanted)
        rest = [
            (sequence, 0 if mine.tokens else most)
            for (sequence, most), mine in zip(wanted, found, strict=True)
        ]
        drafted = self.other.propose(rest)
        return [mine if mine.tokens else other for mine, other in zip(found, drafted, strict=True)]

    def forget(self, sequence: Sequence) -> None:
        self._free.forget(sequence)
        self.other.forget(sequence)

    def sequence_bytes(self, capacity: int) -> int:
        return self.other.sequence_bytes(capacity)
