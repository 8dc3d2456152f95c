"""The language engine: jobs in, events out, one step at a time."""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import PromptEcho
from pippin.core.models import CacheStats, EngineStats
from pippin.engines.base import Emission
from pippin.engines.device import MemoryShares
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.lora import Adapters
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.lifecycle import Preemption, Requests, RowKeeping
from pippin.engines.language.step.prefill import Prompts, progress_of
from pippin.engines.language.step.scheduler import Limits, Scheduler
from pippin.engines.language.step.sequences import Prompt
from pippin.engines.language.step.speculation import Speculation
from pippin.engines.language.step.stats import Counters, engine_stats
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.sight import Sight

DISK_PAUSE = 0.001  # seconds between looks at blocks under way from the disk


class LanguageEngine:
    """Continuous batching over one model. All on the thread that loaded the weights."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        options: ModelOptions,
        limits: Limits,
        share: Callable[[int], MemoryShares],
        batch: Batch,
        head: Head,
        joint_prompts: bool,
        prefixes: PrefixCache | None = None,
        speculation: Speculation | None = None,
        sight: Sight | None = None,
        adapters: Adapters,
    ) -> None:
        self.model = model
        self.counters = Counters()
        self._options = options
        self._share = share
        self._scheduler = Scheduler(limits)
        self._batch = batch
        self._prefixes = prefixes
        self._prompts = Prompts(
            model,
            tokenizer,
            self._scheduler,
            batch.groups,
            prefixes,
            adapters,
            head=head,
            joint=joint_prompts,
        )
        self._keeping = RowKeeping(batch, prefixes)
        self._requests = Requests(
            tokenizer,
            self._scheduler,
            batch,
            self._prompts,
            self._keeping,
            self.counters,
            adapters=adapters,
            proposer=None if speculation is None else speculation.proposer,
            sight=sight,
            stream_interval=options.stream_interval,
        )
        self._preemption = Preemption(
            self._scheduler, batch, self._prompts, self._requests, self._keeping, self.counters
        )
        self._speculation = speculation
        self._sight = sight
        self._speculates = False  # the next step is to look for proposals

    def submit(self, job: LanguageJob) -> None:
        self._requests.submit(job)

    def cancel(self, id: str) -> None:
        self._requests.cancel(id)

    @property
    def busy(self) -> bool:
        return bool(len(self._requests) or self._requests.events or self._keeping)

    def step(self) -> list[Emission]:
        started = time.monotonic()
        self.counters.steps += 1
        self._requests.expire(started, self._options.queue_timeout)
        admitted = self._admit(started)
        if not self._batch.built:
            self._keeping.settle()
        if admitted or not self._batch.built:
            self._fit()
        decoding = len(self._batch.rows)
        checked = decoding > 0 and self._check_proposals()
        if self._batch.rows and not checked and not self._batch.built:
            self._batch.forward()
        self._keeping.settle()  # rows that left while the step was built: their text is copied beside it
        tokens = self._compute_prompts(wait=checked or not decoding, start=not checked)
        if self._batch.rows and not checked:
            self._draw()
        if self._prefixes is not None:
            self._prefixes.write_some()
        if not decoding and not tokens and not self._requests.events:
            time.sleep(DISK_PAUSE)  # all that there is to do waits for the disk
        self._preemption.preempt()
        seconds = time.monotonic() - started
        self._scheduler.observe(seconds, tokens, decoding)
        self.counters.step_done(seconds, tokens, decoding > 0)
        if self._speculation is not None and decoding and not checked and not tokens:
            self._speculation.observe(seconds, 1, proposed=False)
        sent, self._requests.events = self._requests.events, []
        return sent

    def _draw(self) -> None:
        """A token for every row. Where the device works beside the host, the next step is built meanwhile, unless it
        would be in vain."""
        self._batch.sample()
        self._keeping.keep_states()
        rows = self._batch.rows
        self._speculates = self._speculation is not None and self._speculation.wanted(rows)
        ahead = self._batch.overlaps and not self._speculates and all(row.ticket.growth > 1 for row in rows)
        if ahead and self._fit():
            self._batch.forward()
        self._read()

    def _fit(self) -> bool:
        """Whether the next step fits in the memory, as far as it can be made to."""
        left = self._scheduler.for_rows()
        self._speculates = self._speculates and self._batch.fit(left, 1 + self._options.num_draft_tokens)
        return self._speculates or self._batch.fit(left)

    def _check_proposals(self) -> bool:
        """Let the model judge several next tokens of each row at once, where there are proposals that may pay."""
        if self._speculation is None or not self._speculates or self._prompts.done():
            return False
        proposals = self._speculation.proposals(self._batch.rows)
        self._speculates = any(proposals)
        if self._speculates:
            self._check(proposals)
            self._speculates = self._speculation.wanted(self._batch.rows)
            return True
        return False

    def _read(self) -> None:
        """Accept the tokens of the last draw."""
        for row, choice in self._batch.read():
            if row in self._batch.rows:  # not so if another choice's token has failed the request
                self._requests.accept(row, choice)

    def _check(self, proposals: list[list[int]]) -> None:
        """Let the model judge the proposals."""
        assert self._speculation is not None
        started = time.monotonic()
        rows = list(self._batch.rows)
        chosen = self._batch.check(proposals)
        for row, proposed, choices in zip(rows, proposals, chosen, strict=True):
            row.draft_tokens += len(proposed)
            row.accepted_tokens += len(choices) - 1
            self.counters.draft_tokens += len(proposed)
            self.counters.accepted_tokens += len(choices) - 1
            for choice in choices:
                if row in self._batch.rows:
                    self._requests.accept(row, choice)
        made = sum(map(len, chosen)) / len(rows)
        self._speculation.observe(time.monotonic() - started, made, proposed=True)

    def _admit(self, now: float) -> bool:
        """Whether there are new prompts to compute."""
        admitted = self._scheduler.admit()
        for ticket in admitted:
            request = self._prompts.of(ticket).request
            if request.admitted is None:
                request.admitted = now
        return bool(admitted)

    def _compute_prompts(self, *, wait: bool, start: bool) -> int:
        """Work on prompts for as many tokens as this step may; gives how many it was. `start`: rows may join now."""
        self._prompts.release()
        # Which looks up how much of it is known: what a chunk costs depends on it.
        prompt = self._prompts.next()
        budget = self._scheduler.chunk() if prompt is not None else 0
        spent = 0
        while spent < budget and prompt is not None:
            count, computed = self._prompts.compute(prompt, budget - spent, wait=wait)
            spent += count
            self.counters.prompt_tokens += count if computed else 0
            for each in computed:
                self._requests.tell(each.request, progress_of(each))
            # Whoever decodes waits for one pass.
            prompt = self._prompts.next() if wait else None
        for prompt in self._prompts.done() if start else ():
            self._start_rows(prompt)
        return spent

    def _start_rows(self, prompt: Prompt) -> None:
        """The prompt is computed: its rows join the batch."""
        request = prompt.request
        if request.computed is None:
            request.computed = time.monotonic()
            if request.job.request.echo or request.scores_prompt:
                echo = PromptEcho(request.job.prompt_text, tuple(prompt.scores))
                self._requests.tell(request, [echo])
        self._prompts.remove(prompt)
        if request.viewing is not None and not request.prompts:
            request.viewing.release()
        assert prompt.cache is not None
        assert prompt.logits is not None
        tickets = self._scheduler.split(prompt.ticket)
        limit = self._scheduler.for_rows()
        for row, ticket in zip(prompt.rows, tickets, strict=True):
            row.ticket = ticket
            if row.decoder.finished is not None:  # nothing but the prompt was asked for
                self._requests.finish(row)
                continue
            slot = prompt.slot
            if slot is None:
                asked = ticket.slot_request(self._scheduler.coming(ticket))
                slot = self._batch.groups.reserve(asked, limit)
            self._batch.join(row, prompt.cache, prompt.logits, slot)
            prompt.slot = None
        self._prompts.forget(prompt)

    def stats(self) -> EngineStats:
        cache = CacheStats() if self._prefixes is None else self._prefixes.stats()
        live = self._requests.live
        return engine_stats(self.counters, self._scheduler, self._batch, live, cache, self._sight)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        if self._prefixes is not None:
            self._prefixes.clear(disk=disk)
        if not prefixes_only:
            if self._sight is not None:
                self._sight.cache.clear()
            mx.clear_cache()

    def reconfigure(self, options: dict[str, Any]) -> None:
        merged = changed(self._options, options)
        if merged.memory_bytes is not None and "memory_bytes" in options:
            shares = self._share(merged.memory_bytes)  # the pool's, which also counts what others take
            self._preemption.resize(shares.rows)
            if self._prefixes is not None:
                self._prefixes.tree.resize(shares.prefixes)
        self._options = merged
        self._requests.stream_interval = merged.stream_interval
        self._scheduler.limits.target_gap = merged.target_gap_ms / 1e3
        self._scheduler.limits.queue_size = merged.queue_size

    def close(self) -> None:
        for request in self._requests.live:
            self._requests.cancel(request.job.id)
        if self._prefixes is not None:
            self._prefixes.close()


CHANGEABLE = {"memory_bytes", "target_gap_ms", "queue_timeout", "queue_size", "stream_interval"}


def changed(options: ModelOptions, changes: dict[str, Any]) -> ModelOptions:
    """The options with these changes. Raises `ServerError` for what cannot change, or cannot have the value."""
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
