"""The language engine: jobs in, events out, one step at a time."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import EngineStats
from pippin.engines.base import Emission
from pippin.engines.device import MemoryShares
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prefix_cache.cache import Prefixes
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.changes import changed
from pippin.engines.language.step.decoding import Counters, Decodes, Turn
from pippin.engines.language.step.lifecycle import Lifecycle
from pippin.engines.language.step.prefill import Prefill
from pippin.engines.language.step.scheduler import Scheduler, StepLimits
from pippin.engines.language.step.statistics import engine_stats
from pippin.engines.language.step.steering import ALONE, Steering

SMALL_REST = 8  # times less than a step's budget
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
        prefixes: Prefixes,
        decodes: Decodes,
        steering: Steering = ALONE,
    ) -> None:
        """`share` divides the model's bytes between sequences and the prefix cache."""
        model = batch.model
        self.model = model.module
        self.vision = model.vision
        self.counters = Counters()
        self.warm_jobs: list[LanguageJob] = []  # prompts to compute again after the prefix cache is cleared
        self.scheduler = Scheduler(limits)
        self.batch = batch
        self.prefixes = prefixes
        self.prefill = Prefill(model, self.scheduler, batch.groups, prefixes, batch.followers)
        parts = model, self.scheduler, self.prefill, batch, prefixes
        self.lifecycle = Lifecycle(*parts, stream_interval=options.stream_interval, steering=steering)
        self.decoding = decodes.open(batch, self.lifecycle, self.scheduler, self.counters)
        self.upkeep = prefixes.upkeep  # called between two steps
        self._options, self._steering, self.share = options, steering, share
        self._overlaps = decodes.overlaps
        self._advance = self._one_step_ahead if decodes.overlaps else self._in_order

    def submit(self, job: LanguageJob) -> None:
        self.lifecycle.submit(job)

    def cancel(self, id: str) -> None:
        self.lifecycle.cancel(id)

    @property
    def busy(self) -> bool:
        return self.lifecycle.busy

    def step(self) -> list[Emission]:
        """Give every running sequence a token, or several where proposals are checked, and compute a chunk of
        prompts."""
        started = self._steering.now()
        self.counters.steps += 1
        self.lifecycle.expire(started, self._options.queue_timeout)
        turn, prefilled = self._advance(self.lifecycle.admit(started))
        for each in self.upkeep:
            each()
        if not turn.sequences and not prefilled and not self.lifecycle.events:
            time.sleep(DISK_PAUSE)  # the only work left waits for the disk
        # After the tokens of this step are known: sequences that have ended need no memory for the next step.
        self.lifecycle.preempt()
        self._observe(time.monotonic() - started, prefilled, turn)
        return self.lifecycle.take_events()

    def _in_order(self, _: bool) -> tuple[Turn, int]:
        """A step on a CPU, where host and device are the same: its pass is built, computed and drawn from within it.
        Returns how it began, and how many prompt tokens were computed."""
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
        wait = not turn.passes
        self.scheduler.resume()
        # Before the budget: the cost of a chunk depends on how much of its prompt is cached, which `next` looks up.
        prompt = self.prefill.next()
        spent, budget = 0, self._steering.budget(self.scheduler.chunk()) if prompt is not None else 0
        # A small rest would cost nearly as much as a whole pass.
        while budget - spent > budget // SMALL_REST and prompt is not None:
            try:
                count, computed = self.prefill.compute(prompt, budget - spent, wait=wait)
            except ServerError as error:  # the model does not take its media after all
                self.lifecycle.fail(prompt.request, error.report)
                count, computed = 1, []
            spent += count
            self.counters.prompt_tokens += count if computed else 0
            for each in computed:
                self.lifecycle.tell_progress(each)
            prompt = self.prefill.next() if wait else None  # running sequences wait for one pass only
        return spent

    def _observe(self, seconds: float, prefilled: int, turn: Turn) -> None:
        """Learn from the duration of a step."""
        decoding, completed = turn.sequences, self.lifecycle.completion_tokens
        self.counters.step_done(seconds, prefilled, completed, decoded=decoding > 0)
        late = turn.passes and self._overlaps
        if self.scheduler.observe(seconds, prefilled, decoding, late=late):
            return
        if late:
            self.decoding.queueing.observe(seconds)
        if turn.timed:
            self.decoding.learn(turn)

    def stats(self) -> EngineStats:
        parts = self.counters, self.scheduler, self.lifecycle, self.batch
        return engine_stats(*parts, self.model, self.prefixes, self.vision)

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
        self.scheduler.limits.target_gap = merged.target_gap_ms / 1e3
        self.scheduler.limits.queue_size = merged.queue_size

    def resize(self, shares: MemoryShares) -> None:
        self.lifecycle.resize(shares.sequences)
        self.prefixes.resize(shares.prefixes)

    def close(self) -> None:
        for request in self.lifecycle.live:
            self.lifecycle.cancel(request.job.id)
        self.prefixes.close()
