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
from pippin.engines.cpu.sharing import BlasThreads
from pippin.engines.device import MemoryShares
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.model.loaded import LoadedModel
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.changes import changed
from pippin.engines.language.step.cost import Counters
from pippin.engines.language.step.lifecycle import Lifecycle
from pippin.engines.language.step.prefill import Prefill
from pippin.engines.language.step.scheduler import Scheduler, StepLimits
from pippin.engines.language.step.speculation.verification import Judged, Speculation
from pippin.engines.language.step.statistics import engine_stats
from pippin.engines.language.step.steering import ALONE, Steering

DISK_PAUSE = 0.001  # seconds between checks for blocks that the disk is reading


class LanguageEngine:
    """Continuous batching over one model. Every method runs on the thread that loaded the weights.

    `scheduler` decides, `prefill` computes prompts, `batch` decodes, `lifecycle` changes stages, `prefixes` caches.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        options: ModelOptions,
        limits: StepLimits,
        share: Callable[[int], MemoryShares],
        batch: Batch,
        prefixes: PrefixCache | None = None,
        speculation: Speculation | None = None,
        steering: Steering = ALONE,
    ) -> None:
        """`share` divides the model's bytes between sequences and the prefix cache."""
        self.model = model.module
        self.vision = model.vision
        self.counters = Counters()
        self.warm_jobs: list[LanguageJob] = []  # prompts to compute again after the prefix cache is cleared
        self.scheduler = Scheduler(limits)
        self.batch = batch
        self.prefixes = prefixes
        self.prefill = Prefill(model, self.scheduler, batch.groups, prefixes, batch.heads)
        self.speculation = speculation
        parts = model, self.scheduler, self.prefill, batch, prefixes, speculation
        self.lifecycle = Lifecycle(*parts, stream_interval=options.stream_interval, steering=steering)
        self._options, self._steering, self.share = options, steering, share
        self._speculates = False  # whether the next step looks for proposals
        self.blas_threads: BlasThreads | None = None

    def submit(self, job: LanguageJob) -> None:
        self.lifecycle.submit(job)

    def cancel(self, id: str) -> None:
        self.lifecycle.cancel(id)

    @property
    def busy(self) -> bool:
        return self.lifecycle.busy

    def step(self) -> list[Emission]:
        """Give every running sequence a token, or several where proposals are checked, and compute a chunk of prompts.

        The order of the work lets host and device run at the same time.
        """
        started = self._steering.now()
        if self.blas_threads is not None:
            self.blas_threads.look()
        self.counters.steps += 1
        self.lifecycle.expire(started, self._options.queue_timeout)
        admitted = self.lifecycle.admit(started)
        # Before a pass is built: views of sequences that have left still refer to the arrays of the KV cache. MLX
        # writes in place only if nothing else refers to an array; otherwise it copies the array whole.
        if not self.batch.built:
            self.lifecycle.keep_left()
        if admitted or not self.batch.built:
            self._fit()
        decoding, looks = len(self.batch.running), self._speculates
        proposing = self._proposing
        began = None if proposing is None else proposing.clock.now()
        judged = self._check_proposals() if decoding else None
        checked = judged is not None
        if self.batch.running and not checked and not self.batch.built:
            self.batch.forward()
        # If the pass was built ahead, sequences have left since then: their caches are copied while it runs.
        self.lifecycle.keep_left()
        # Between the start of the pass and the draw, the host builds chunks while the device computes the pass. A
        # prompt whose last chunk is built here gets its first token in this step's draw.
        prefilled = self._compute_prompts(wait=checked or not decoding, start=not checked)
        if self.batch.running and not checked:
            self._draw()
        if self.prefixes is not None:
            self.prefixes.write_some()
        if not decoding and not prefilled and not self.lifecycle.events:
            time.sleep(DISK_PAUSE)  # the only work left waits for the disk
        # After the tokens of this step are known: sequences that have ended need no memory for the next step.
        self.lifecycle.preempt()
        self._observe(time.monotonic() - started, prefilled, decoding)
        if proposing is not None and began is not None and decoding and not prefilled:
            proposing.learn(began, decoding, judged, looked=looks)
        return self.lifecycle.take_events()

    def _compute_prompts(self, *, wait: bool, start: bool) -> int:
        """Compute prompt tokens within this step's budget, and return how many. `wait`: no pass is under way. `start`:
        sequences may join the batch now."""
        if not self.scheduler.prefilling:
            return 0
        self.scheduler.resume()
        # Before the budget: the cost of a chunk depends on how much of its prompt is cached, which `next` looks up.
        prompt = self.prefill.next()
        spent, budget = 0, self._steering.budget(self.scheduler.chunk()) if prompt is not None else 0
        while spent < budget and prompt is not None:
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
        for done in self.scheduler.done() if start else ():
            self.lifecycle.start(done)
        return spent

    def _draw(self) -> None:
        """Draw a token for every sequence."""
        self.batch.sample()
        self.lifecycle.keep_states()
        running, speculation = self.batch.running, self._proposing
        self._speculates = speculation is not None and speculation.wanted(running)
        # The next pass takes the drawn tokens as its input on the device, so the host can build it without knowing
        # them. The pass would be wasted if a sequence gets its last token now, or if proposals are checked first.
        ahead = self.batch.overlaps and not self._speculates and all(each.growth > 1 for each in running)
        if ahead and self._fit():
            self.batch.forward()
        # Last, because it waits for the draw. The device already has the next pass to compute while the host turns
        # tokens into text.
        for each, sampled in self.batch.read():
            if each.sequence.stage is each:  # false if the token of another choice has failed the request
                self.lifecycle.accept(each, sampled)

    @property
    def _proposing(self) -> Speculation | None:
        """The speculation, or None if no sequence can have proposals: plain steps skip it."""
        found, running = self.speculation, self.batch.running
        always = found is None or found.always
        return found if always or any(each.sequence.request.job.prediction for each in running) else None

    def _fit(self) -> bool:
        """Make room for the next pass as far as possible, and return whether it fits in the memory."""
        left = self.scheduler.for_running()
        self._speculates = self._speculates and self.batch.fit(left, 1 + self._options.num_draft_tokens)
        return self._speculates or self.batch.fit(left)

    def _check_proposals(self) -> Judged | None:
        """Let the model check several next tokens of each sequence at once, if there are proposals that may pay."""
        if self.speculation is None or not self._speculates or self.scheduler.done():
            return None
        running = list(self.batch.running)
        began = time.monotonic()
        proposals = self.speculation.proposals(running)
        self.counters.draft_seconds += time.monotonic() - began
        self._speculates = any(each.tokens for each in proposals)
        if not self._speculates:
            return None
        chosen = self.batch.check(proposals)
        for each, proposed, sampled in zip(running, proposals, chosen, strict=True):
            self.counters.draft_tokens += len(proposed.tokens)
            self.counters.accepted_tokens += len(sampled) - 1
            self.lifecycle.accept_checked(each, proposed, sampled)
        self.lifecycle.keep_states()
        self._speculates = self.speculation.wanted(self.batch.running)
        return Judged(proposals, sum(map(len, chosen)))

    def _observe(self, seconds: float, prefilled: int, decoding: int) -> None:
        """Learn from the duration of a step."""
        self.scheduler.observe(seconds, prefilled, decoding)
        self.counters.step_done(seconds, prefilled, self.lifecycle.completion_tokens, decoded=decoding > 0)

    def stats(self) -> EngineStats:
        parts = self.counters, self.scheduler, self.lifecycle, self.batch
        return engine_stats(*parts, self.model, self.prefixes, self.vision)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        if self.prefixes is not None:
            self.prefixes.clear(disk=disk)
        if prefixes_only:
            self.warm_again()
        else:
            if self.vision is not None:
                self.vision.cache.clear()
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
        if self.prefixes is not None:
            self.prefixes.tree.resize(shares.prefixes)

    def close(self) -> None:
        for request in self.lifecycle.live:
            self.lifecycle.cancel(request.job.id)
        if self.prefixes is not None:
            self.prefixes.close()
