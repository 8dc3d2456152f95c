"""The language engine: jobs in, events out, one step at a time.

A step gives the running sequences their next tokens: one, or several where proposals are checked. Which of the two
classes of `Decoding` an engine has, and which of the two loops, is decided when its model is loaded. The loops
call `begin`, or `resume` if the pass was built in the step before, then `draw` and `read`; between them prompts
are computed.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any, Final, Literal

import mlx.core as mx
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import EngineStats, RequestStatus
from pippin.engines.base import Emission
from pippin.engines.device import MemoryShares
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.sampling.sampler import SampledToken
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.lifecycle import Lifecycle
from pippin.engines.language.step.prefill import Prefill
from pippin.engines.language.step.scheduler import Scheduler, StepLimits, target_gap
from pippin.engines.language.step.sequences import Prefilling, Request, Running, Sequence
from pippin.engines.language.step.speculation.proposers import Proposal
from pippin.engines.language.step.speculation.verification import Speculation
from pippin.engines.language.step.steering import ALONE, Steering

TRIED: Final = 16  # steps, half of them each way
SETTLED: Final = 256  # steps of which the last are to try both ways
SMOOTHING: Final = 0.2  # of rates: the share of the newest step


@dataclass
class Counters:
    """Counts since the load, and smoothed rates, as `EngineStats` has them."""

    steps: int = 0
    prompt_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    draft_seconds: float = 0.0
    weight_bytes: int = 0
    agreement: str = ""
    generation_tps: float = 0.0
    prompt_tps: float = 0.0


class Turn(Struct, frozen=True):
    """How a step has begun."""

    sequences: int  # that decode in it
    began: float = 0.0  # monotonic seconds, where it is timed
    timed: bool = False  # its time tells whether proposals pay
    looked: bool = False  # proposals were looked for
    # Proposals that the model has checked, one for each sequence: where there are any, the sequences have their tokens
    # of this step, so many in all.
    checked: Many[Proposal] = ()
    given: int = 0
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


@dataclass(eq=False)
class Decoding:
    """A pass of the model over the last token of each sequence, and a draw for each."""

    batch: Batch
    lifecycle: Lifecycle
    scheduler: Scheduler
    counters: Counters
    queueing: Queueing = field(default_factory=Queueing, init=False)

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
        if min(map(attrgetter("growth"), self.batch.running)) > 1 and self.fit():
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


@dataclass(eq=False)
class SpeculativeDecoding(Decoding):
    """The same where there is nothing to propose. Else the model checks proposals, several tokens of each sequence at
    once, which gives each as many tokens as it agrees with and one more."""

    speculation: Speculation = field(kw_only=True)
    # Whether the next step looks for proposals. It is decided with the draw, before the pass of that step is built.
    _looks: bool = field(default=False, init=False)
    _checked: bool = field(default=False, init=False)  # proposals, in the last step

    def __post_init__(self) -> None:
        self.lifecycle.on_leave.append(self._forget)

    def fit(self) -> bool:
        left = self.scheduler.for_running()
        self._looks = self._looks and self.batch.fit(left, 1 + self.speculation.pace.most)
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
        proposals, given = self._check()
        self._checked = bool(proposals)
        return replace(turn, checked=proposals, given=given, passes=not proposals)

    def begin(self) -> Turn:
        # All tokens are known here, so that one of them may have begun what a grammar forces.
        self._looks = self._looks or (self._may_propose() and self.speculation.forces(self.batch.running))
        return super().begin()

    def _may_propose(self) -> bool:
        """Whether any sequence can have proposals: without options, those alone of which something is known."""
        return self.speculation.always or bool(self.batch.foreseen)

    def _check(self) -> tuple[Many[Proposal], int]:
        """Let the model check proposals, if there are any that may pay; these, and how many tokens that gave."""
        running = list(self.batch.running)
        began = time.monotonic()
        proposals = self.speculation.proposals(running)
        self.counters.draft_seconds += time.monotonic() - began
        self._looks = any(each.tokens for each in proposals)
        if not self._looks:
            return (), 0
        chosen = self.batch.check(proposals)
        for each, proposal, sampled in zip(running, proposals, chosen, strict=True):
            self._accept(each, proposal, sampled)
        self.lifecycle.keep_states()
        self._looks = self.speculation.wanted(self.batch.running)
        # Those that got their last token have left: their caches are copied before prompts look into the prefix cache.
        self.lifecycle.keep_left()
        return proposals, sum(map(len, chosen))

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
        self.speculation.learn(seconds, turn.sequences, turn.checked, turn.given, looked=turn.looked)

    def _forget(self, sequence: Sequence) -> None:
        """A sequence has left the batch. Of most, nothing is known."""
        if self.speculation.always or sequence.foreseen:
            self.speculation.forget(sequence)


SMALL_REST = 4  # times less than a step's budget
DISK_PAUSE = 0.001  # seconds between checks for blocks that the disk is reading


class LanguageEngine:
    """Continuous batching over one model. Every method runs on the thread that loaded the weights.

    `scheduler` decides, `prefill` computes prompts, `decoding` gives running sequences their tokens, `lifecycle`
    changes stages, and `prefixes` is the prefix cache.
    """

    def __init__(
        self,
        *,
        options: ModelOptions,
        limits: StepLimits,
        share: Callable[[int], MemoryShares],
        batch: Batch,
        prefixes: PrefixCache,
        decoding: Callable[[Batch, Lifecycle, Scheduler, Counters], Decoding],
        overlaps: bool,
        steering: Steering = ALONE,
    ) -> None:
        """`share` divides the model's bytes between sequences and the prefix cache. `decoding` makes what gives running
        sequences their tokens. `overlaps`: the device computes a pass while the host goes on."""
        self.model = batch.model.module
        self.vision = batch.model.vision
        self.counters = Counters()
        self.warm_jobs: list[LanguageJob] = []  # prompts to compute again after the prefix cache is cleared
        self.scheduler = Scheduler(limits)
        self.batch = batch
        self.prefixes = prefixes
        self._upkeep = prefixes.upkeep
        self.prefill = Prefill(batch, self.scheduler, prefixes)
        parts = self.scheduler, self.prefill, batch, prefixes
        self.lifecycle = Lifecycle(*parts, stream_interval=options.stream_interval, steering=steering)
        self.decoding = decoding(batch, self.lifecycle, self.scheduler, self.counters)
        self._options, self._steering, self.share = options, steering, share
        self._overlaps = overlaps
        self._began = 0.0  # when the last step has begun, monotonic seconds
        self._completed = 0  # tokens, up to the last step
        self._advance = self._one_step_ahead if overlaps else self._in_order

    def submit(self, job: LanguageJob) -> None:
        self.lifecycle.submit(job)

    def cancel(self, id: str) -> None:
        self.lifecycle.cancel(id)

    @property
    def busy(self) -> bool:
        return self.lifecycle.busy or self.prefixes.busy

    def step(self) -> list[Emission]:
        """Give every running sequence a token, or several where proposals are checked, and compute a chunk of
        prompts."""
        started, self._began = self._steering.now(), time.monotonic()
        self.counters.steps += 1
        self.lifecycle.expire(started, self._options.queue_timeout)
        turn, prefilled = self._advance(self.lifecycle.admit(started))
        for act in self._upkeep:
            act()
        if not turn.sequences and not prefilled and not self.lifecycle.events:
            time.sleep(DISK_PAUSE)  # the only work left waits for the disk
        # After the tokens of this step are known: sequences that have ended need no memory for the next step.
        self.lifecycle.preempt()
        self._observe(time.monotonic() - started, prefilled, turn)
        events, self.lifecycle.events = self.lifecycle.events, []
        return events

    def _in_order(self, _: bool) -> tuple[Turn, int]:
        """A step where host and device are the same: its pass is built, computed and drawn from within it. Returns how
        it began, and how many prompt tokens were computed."""
        # Before a pass is built: views of sequences that have left still refer to the arrays of the KV cache. MLX
        # writes in place only if nothing else refers to an array; otherwise it copies the array whole.
        self.lifecycle.keep_left()
        turn = self.decoding.begin()
        prefilled = self._compute_prompts(turn)
        self._start(turn)
        if self.batch.running and not turn.checked:
            self.decoding.draw()
            self.decoding.read()
        return turn, prefilled

    def _one_step_ahead(self, admitted: bool) -> tuple[Turn, int]:
        """The same on a GPU, where the next pass is built before this one's tokens are read: the device computes it
        while the host turns tokens into text."""
        if not self.batch.built:
            self.lifecycle.keep_left()
            turn = self.decoding.begin()
        else:
            turn = self.decoding.resume(admitted=admitted)
            # Sequences have left since the pass was built: their caches are copied while it runs.
            self.lifecycle.keep_left()
        prompts = bool(self.scheduler.prefilling)
        prefilled = self._compute_prompts(turn) if prompts and not turn.passes else 0
        if prompts:
            self._start(turn)
        if self.batch.running and not turn.checked:
            self.decoding.draw()
            if prompts and turn.passes:
                # Behind the draw, so that no token waits for a prompt. Those that end here join in the next step.
                prefilled = self._compute_prompts(turn)
            self.decoding.build_ahead()
            self.decoding.read()
        return turn, prefilled

    def _start(self, turn: Turn) -> None:
        """Let sequences join whose prompts are computed, where a draw comes."""
        for done in () if turn.checked else self.scheduler.done():
            self.lifecycle.start(done)

    def _compute_prompts(self, turn: Turn) -> int:
        """Compute prompt tokens within this step's budget, and return how many."""
        if not self.scheduler.prefilling:
            return 0
        wait, until = not turn.passes, None
        # Sequences that were checked may have ended.
        if self.scheduler.running and self._steering.rests and not self._overlaps:
            now = time.monotonic()
            until = now + self.scheduler.for_prompts(now - self._began, rests=True)
        self.scheduler.resume()
        # Before the budget: the cost of a chunk depends on how much of its prompt is cached, which `next` looks up.
        prompt = self.prefill.next()
        spent, budget = 0, 0
        if prompt is not None:
            rests = until is not None and self.prefill.rests(prompt)
            budget = self._steering.budget(self.scheduler.chunk(rests=rests))
        # A small rest would cost nearly as much as a whole pass.
        while budget - spent > budget // SMALL_REST and prompt is not None:
            try:
                count, computed = self.prefill.compute(prompt, budget - spent, wait=wait, until=until)
            except ServerError as error:  # the model does not take its media after all
                self.lifecycle.fail(prompt.request, error.report)
                count, computed = 1, []
            spent += count
            self.counters.prompt_tokens += count if computed else 0
            for each in computed:
                self.lifecycle.tell_progress(each)
            # Running sequences wait for one pass only.
            prompt = self.prefill.next() if wait and until is None else None
        return spent

    def _observe(self, seconds: float, prefilled: int, turn: Turn) -> None:
        """Learn from the duration of a step."""
        counters, completed = self.counters, self.lifecycle.completion_tokens
        drawn, self._completed = completed - self._completed, completed
        if turn.sequences and seconds > 0:
            counters.generation_tps += SMOOTHING * (drawn / seconds - counters.generation_tps)
        elif prefilled and seconds > 0:
            counters.prompt_tps += SMOOTHING * (prefilled / seconds - counters.prompt_tps)
        late = turn.passes and self._overlaps
        if self.scheduler.observe(seconds, prefilled, turn.sequences, late=late):
            return
        if late:
            self.decoding.queueing.observe(seconds)
        if turn.timed:
            self.decoding.learn(turn)

    def stats(self) -> EngineStats:
        now, scheduler, lifecycle = time.monotonic(), self.scheduler, self.lifecycle
        return EngineStats(
            **vars(self.counters),
            running=len(scheduler.running) + len(scheduler.prefilling),
            waiting=len(scheduler.waiting),
            completion_tokens=lifecycle.completion_tokens,
            preemptions=lifecycle.preemptions,
            batch_size=len(self.batch.running),
            kv_bytes=self.batch.groups.bytes,
            kv_limit_bytes=scheduler.limits.memory,
            longest_sequence=scheduler.longest(),
            active_bytes=mx.get_active_memory(),
            peak_bytes=mx.get_peak_memory(),
            cached_bytes=mx.get_cache_memory(),
            forced_tokens=lifecycle.forced_tokens,
            media_encoded=self.vision.encoded,
            media_reused=self.vision.reused,
            cache=self.prefixes.stats(),
            requests=tuple(request_status(request, now) for request in lifecycle.live),
        )

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        self.prefixes.clear(disk=disk)
        if prefixes_only:
            self.warm_again()
        else:
            self.vision.clear()
            mx.clear_cache()

    def warm_again(self) -> None:
        """Submit the warm prompts again, scheduled like all other requests."""
        live = {request.job.id for request in self.lifecycle.live}
        for job in self.warm_jobs:
            if job.id not in live:
                self.submit(replace(job, created=time.monotonic()))

    def reconfigure(self, options: dict[str, Any]) -> None:
        merged = changed(self._options, options)
        if merged.memory_bytes is not None and "memory_bytes" in options:
            self.resize(self.share(merged.memory_bytes))  # the pool's, which counts other models too
        self._options = merged
        self.lifecycle.stream_interval = merged.stream_interval
        self.scheduler.limits.target_gap = target_gap(merged.target_gap_ms, overlaps=self._overlaps)
        self.scheduler.limits.queue_size = merged.queue_size

    def resize(self, shares: MemoryShares) -> None:
        self.lifecycle.resize(shares.sequences)
        self.prefixes.resize(shares.prefixes)

    def close(self) -> None:
        for request in self.lifecycle.live:
            self.lifecycle.cancel(request.job.id)
        self.prefixes.close()


def request_status(request: Request, now: float) -> RequestStatus:
    job = request.job
    generated = sum(each.decoder.completion_tokens for each in request.sequences)
    first = request.first_token
    phase: Literal["queued", "prefill", "generation"] = "queued"
    if request.admitted is not None:
        phase = "prefill" if request.prefilled is None else "generation"
    stages = [each.stage for each in request.sequences]
    computed = max((stage.computed for stage in stages if isinstance(stage, Prefilling)), default=0)
    return RequestStatus(
        id=job.id,
        phase=phase,
        prompt_tokens=len(job.prompt),
        cached_tokens=request.cached_tokens,
        prefilled_tokens=computed if request.prefilled is None else len(job.prompt),
        generated_tokens=generated,
        max_tokens=job.max_tokens,
        elapsed=now - job.created,
        time_to_first_token=None if first is None else first - job.created,
        tokens_per_second=0.0 if first is None or now <= first else generated / (now - first),
    )


CHANGEABLE = {"memory_bytes", "target_gap_ms", "queue_timeout", "queue_size", "stream_interval"}


def changed(options: ModelOptions, changes: dict[str, Any]) -> ModelOptions:
    """The options with these changes. Raises `ServerError` for an option that cannot change, or a value it cannot
    have."""
    fixed = sorted(set(changes) - CHANGEABLE)
    if fixed:
        raise ServerError(
            "unsupported",
            f"{', '.join(fixed)} cannot change while the model runs (these can: {', '.join(sorted(CHANGEABLE))}): "
            "unload the model and load it with the new value.",
        )
    try:
        return convert({**msgspec.to_builtins(options), **changes}, ModelOptions)
    except msgspec.ValidationError as error:
        raise ServerError(
            "invalid_request", f"An option has a value that it cannot have: {error}."
        ) from error
