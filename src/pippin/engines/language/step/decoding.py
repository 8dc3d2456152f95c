"""Gives the running sequences their next tokens: one in each step, or several where proposals are checked.

Which of the two classes an engine has is decided when its model is loaded. The loops of `engine.py` call `begin`, or
`resume` if the pass was built in the step before, then `draw` and `read`; between them prompts are computed.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from pippin.engines.language.sampling.sampler import SampledToken
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.lifecycle import Lifecycle
from pippin.engines.language.step.scheduler import Scheduler
from pippin.engines.language.step.sequences import Running, Sequence
from pippin.engines.language.step.speculation.proposers import Proposal
from pippin.engines.language.step.speculation.verification import Judged, Speculation

NOTHING_JUDGED: Final = Judged()
TRIED: Final = 16  # steps, half of them each way
SETTLED: Final = 256  # steps of which the last are to try both ways
SMOOTHING: Final = 0.2  # of rates: the share of the newest step


@dataclass
class Counters:
    """Counts since the load, and smoothed rates."""

    steps: int = 0
    prompt_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    draft_seconds: float = 0.0
    weight_bytes: int = 0
    agreement: str = ""
    generation_tps: float = 0.0
    prompt_tps: float = 0.0
    _completed_before: int = 0

    def step_done(self, seconds: float, prompt_tokens: int, completion_tokens: int, *, decoded: bool) -> None:
        """Note a step. `completion_tokens` counts since the load."""
        drawn = completion_tokens - self._completed_before
        self._completed_before = completion_tokens
        if seconds <= 0:
            return
        if decoded:
            self.generation_tps += SMOOTHING * (drawn / seconds - self.generation_tps)
        elif prompt_tokens:
            self.prompt_tps += SMOOTHING * (prompt_tokens / seconds - self.prompt_tps)


@dataclass(frozen=True)
class Turn:
    """How a step has begun."""

    sequences: int  # that decode in it
    began: float = 0.0  # monotonic seconds, where it is timed
    timed: bool = False  # its time tells whether proposals pay
    looked: bool = False  # proposals were looked for
    judged: Judged = NOTHING_JUDGED
    checked: bool = False  # proposals were judged, so that the sequences have their tokens of this step
    passes: bool = False  # a pass is under way instead, behind which they wait for a draw


@dataclass
class Queueing:
    """Whether the next pass is queued before the last draw is read, or behind it, as steps turn out to take less time.

    Before, the device never waits. But MLX writes keys and values in place only where no command under way reads them,
    and copies them whole otherwise: where they are large and passes are short, that takes longer than the wait.
    """

    early: bool = True  # how the next pass is queued
    _before: bool = True  # how the pass was whose step is measured next
    _steps: int = 0
    _seconds: dict[bool, list[float]] = field(default_factory=dict)

    def observe(self, seconds: float) -> None:
        """Learn from a step that has only decoded."""
        self._steps = (self._steps + 1) % SETTLED
        if self._steps == SETTLED - TRIED:
            self._seconds = {True: [], False: []}
        if self._seconds:
            self._seconds[self._before].append(seconds)
            self._before = self.early
            self.early = not self.early
        if self._seconds and not self._steps:
            self.early = median(self._seconds[True]) <= median(self._seconds[False])
            self._seconds = {}


class Decoding:
    """A pass of the model over the last token of each sequence, and a draw for each."""

    def __init__(self, batch: Batch, lifecycle: Lifecycle, scheduler: Scheduler, counters: Counters) -> None:
        self.batch = batch
        self.lifecycle = lifecycle
        self.scheduler = scheduler
        self.counters = counters
        self.queueing = Queueing()

    def fit(self) -> bool:
        """Make room for the next pass as far as possible, and return whether it fits in the memory."""
        return self.batch.fit(self.scheduler.for_running())

    def begin(self) -> Turn:
        """Begin a step for which no pass is under way."""
        self.fit()
        turn = self._turn()
        if turn.passes:
            self.batch.forward()
        return turn

    def resume(self, *, admitted: bool) -> Turn:
        """Begin a step whose pass is under way. `admitted`: prompts have been, which take memory."""
        if admitted:
            self.fit()
        return self._turn()

    def _turn(self) -> Turn:
        sequences = len(self.batch.running)
        return Turn(sequences, passes=sequences > 0)

    def draw(self) -> None:
        """Draw a token for each sequence, those that have joined since the pass was built among them."""
        self.batch.sample()
        self.lifecycle.keep_states()

    def build_ahead(self) -> None:
        """Build the pass of the next step. It takes the drawn tokens as its input on the device, so that the host need
        not know them. It would be wasted if a sequence gets its last token now."""
        for each in self.batch.running:
            if each.growth <= 1:
                return
        if self.fit():
            self.batch.forward(queues=self.queueing.early)

    def read(self) -> None:
        """Wait for the draw, and let the sequences take their tokens."""
        drawn = self.batch.read()
        if not self.queueing.early:
            self.batch.queue()
        for each, sampled in drawn:
            if each.sequence.stage is each:  # false if the token of another choice has failed the request
                self.lifecycle.accept(each, sampled)

    def learn(self, turn: Turn) -> None:
        """A step that was timed has only decoded, and is done."""


class SpeculativeDecoding(Decoding):
    """The same where there is nothing to propose. Else the model checks proposals, several tokens of each sequence at
    once, which gives each as many tokens as it agrees with and one more."""

    def __init__(
        self,
        speculation: Speculation,
        batch: Batch,
        lifecycle: Lifecycle,
        scheduler: Scheduler,
        counters: Counters,
    ) -> None:
        super().__init__(batch, lifecycle, scheduler, counters)
        self.speculation = speculation
        # Whether the next step looks for proposals. It is decided with the draw, before the pass of that step is built.
        self._looks = False
        self._checked = False  # proposals, in the last step
        lifecycle.on_leave.append(self._forget)

    def fit(self) -> bool:
        left = self.scheduler.for_running()
        self._looks = self._looks and self.batch.fit(left, 1 + self.speculation.most)
        return self._looks or self.batch.fit(left)

    def _turn(self) -> Turn:
        sequences = len(self.batch.running)
        checked, self._checked = self._checked, False
        if not sequences or not self._may_propose():
            return Turn(sequences, passes=sequences > 0)
        turn = Turn(sequences, time.monotonic(), timed=True, looked=self._looks, passes=True)
        # Prompts that are computed join before proposals are checked again: whoever waits for a first token is served
        # before others get several once more. Where prompts end in every step, proposals are checked in every other.
        if not self._looks or (checked and self.scheduler.done()):
            return turn
        judged = self._check()
        self._checked = bool(judged.proposals)
        return replace(turn, judged=judged, checked=self._checked, passes=not self._checked)

    def begin(self) -> Turn:
        # All tokens are known here, so that one of them may have begun what a grammar forces.
        self._looks = self._looks or (self._may_propose() and self.speculation.forces(self.batch.running))
        return super().begin()

    def _may_propose(self) -> bool:
        """Whether any sequence can have proposals: without options, those alone whose client predicts the answer, or
        wants it in a grammar, which forces some tokens."""
        if self.speculation.always:
            return True
        for each in self.batch.running:
            job = each.sequence.request.job
            if job.prediction or job.grammar is not None:
                return True
        return False

    def _check(self) -> Judged:
        """Let the model check proposals, if there are any that may pay."""
        running = list(self.batch.running)
        began = time.monotonic()
        proposals = self.speculation.proposals(running)
        self.counters.draft_seconds += time.monotonic() - began
        self._looks = any(each.tokens for each in proposals)
        if not self._looks:
            return NOTHING_JUDGED
        chosen = self.batch.check(proposals)
        for each, proposal, sampled in zip(running, proposals, chosen, strict=True):
            self._accept(each, proposal, sampled)
        self.lifecycle.keep_states()
        self._looks = self.speculation.wanted(self.batch.running)
        # Those that got their last token have left: their caches are copied before prompts look into the prefix cache.
        self.lifecycle.keep_left()
        return Judged(proposals, sum(map(len, chosen)))

    def _accept(self, running: Running, proposal: Proposal, chosen: Many[SampledToken]) -> None:
        """Let a sequence take the tokens that the model chose, all of which but the last were proposed."""
        sequence = running.sequence
        for counted in () if proposal.certain else (sequence, self.counters):
            counted.draft_tokens += len(proposal.tokens)
            counted.accepted_tokens += len(chosen) - 1
        self.speculation.judged(sequence, proposal, [each.token for each in chosen])
        for sampled in chosen:
            if sequence.stage is running:  # false after its last token, or if the request has failed
                self.lifecycle.accept(running, sampled)

    def draw(self) -> None:
        super().draw()
        self._looks = self._may_propose() and self.speculation.wanted(self.batch.running)

    def build_ahead(self) -> None:
        if not self._looks:
            super().build_ahead()

    def learn(self, turn: Turn) -> None:
        seconds = time.monotonic() - turn.began
        self.speculation.learn(seconds, turn.sequences, turn.judged, looked=turn.looked)

    def _forget(self, sequence: Sequence) -> None:
        """A sequence has left the batch."""
        if self.speculation.always or sequence.request.job.prediction:
            self.speculation.forget(sequence)


@dataclass(frozen=True, kw_only=True)
class Decodes:
    """How an engine decodes."""

    # Makes the decoding of its other parts.
    open: Callable[[Batch, Lifecycle, Scheduler, Counters], Decoding] = Decoding
    overlaps: bool = True  # the device computes a pass while the host goes on
