"""The life of a request: submitted, admitted, started, told of its tokens, preempted, finished, remembered."""

import time
from collections.abc import Callable, Iterable

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Event, Failed, Progress, PromptEcho, Scored
from pippin.engines.base import Emission
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.sampling.sampler import SampledToken
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.branches import rows_of
from pippin.engines.language.step.prefill import Prefill
from pippin.engines.language.step.scheduler import Scheduler
from pippin.engines.language.step.sequences import (
    Prefilling,
    Request,
    Running,
    Sequence,
    Waiting,
    identity_of,
)
from pippin.engines.language.step.steering import Steering
from pippin.engines.language.vision.media import PromptMedia


class Lifecycle:
    """Makes every change of stage. Events for clients gather in `events` until a step ends."""

    def __init__(
        self,
        scheduler: Scheduler,
        prefill: Prefill,
        batch: Batch,
        prefixes: PrefixCache,
        *,
        stream_interval: int,
        steering: Steering,
    ) -> None:
        """`stream_interval`: tokens that are sent together."""
        self.stream_interval = stream_interval
        self.events: list[Emission] = []
        self.completion_tokens = 0  # generated since the load
        self.forced_tokens = 0  # of answers that have ended
        self.preemptions = 0  # since the load
        self._steering = steering
        self._model = batch.model
        self._scheduler = scheduler
        self._prefill = prefill
        self._batch = batch
        self._prefixes = prefixes
        self.on_leave: list[Callable[[Sequence], None]] = []  # told of each sequence that leaves the batch
        self._live: dict[str, Request] = {}
        self._arrivals = 0
        # Sequences that have left the batch and are not in the prefix cache yet: key, tokens, cache.
        self._left: list[tuple[bytes, tuple[int, ...], PromptCache]] = []

    @property
    def live(self) -> list[Request]:
        """The requests that have not ended."""
        return list(self._live.values())

    @property
    def busy(self) -> bool:
        return bool(self._live or self.events or self._left)

    # From the job to the batch

    def submit(self, job: LanguageJob) -> None:
        """Take a request into the queue. Raises `ServerError` if it can never run, or if the queue is full."""
        if not job.prompt:
            raise ServerError("invalid_request", "The prompt is empty: send at least one token.", "messages")
        adapters, named = self._model.adapters, job.request.adapter
        adapter = adapters.default if named is None else adapters.index(named)
        media = job.media
        assert media is None or isinstance(media, PromptMedia)
        opened = None if media is None else self._model.vision.open(job.prompt, media)
        request = Request(job=job, adapter=adapter, media=opened)
        for choice in range(job.request.n):
            decoder = self._steering.decoder(job, choice, self._model.tokenizer)
            sequence = Sequence(request=request, choice=choice, decoder=decoder, tokens=list(job.prompt))
            request.sequences.append(sequence)
        self._arrivals += 1
        waiting = Waiting(
            sequences=tuple(request.sequences),
            tokens=job.prompt,
            growth=max([job.max_tokens, *(branch.longest for branch in job.branches)]),
            priority=job.request.priority,
            arrival=self._arrivals,
            account=job.request.account,
            branched=sum(len(branch.tokens) for branch in job.branches),
            rows=self._rows(job),
        )
        self._scheduler.add(waiting)
        self._live[job.id] = request
        _move(waiting.sequences, waiting)

    def _rows(self, job: LanguageJob) -> int:
        """The number of rows in which the job's branches are computed, as many as fit the memory; 0 if it has none.
        Raises `ServerError`."""
        layout = self._batch.groups.layout
        if not job.branches:
            return 0
        if not layout.forks:
            raise ServerError(
                "unsupported", "The caches of this model can't branch, so it decides nothing.", "model"
            )
        rows = min(rows_of(job), self._scheduler.limits.max_sequences) if self._model.joins_prompts else 1
        while rows > 1 and not self._scheduler.fits_alone(len(job.prompt), rows):
            rows //= 2
        return rows

    def admit(self, now: float) -> bool:
        """Let prompts out of the queue; return whether there were any."""
        admitted = self._scheduler.admit()
        for prompt in admitted:
            _move(prompt.sequences, prompt)
            if prompt.request.admitted is None:
                prompt.request.admitted = now
        return bool(admitted)

    def tell_progress(self, prompt: Prefilling) -> None:
        """Report progress after each chunk, the last included, until the prompt was computed for the first time."""
        request = prompt.request
        if request.prefilled is None:
            begun = request.job.created if request.admitted is None else request.admitted
            done, total = prompt.computed, len(request.job.prompt)
            self._tell(request, [Progress(done, total, request.cached_tokens, time.monotonic() - begun)])

    def start(self, prompt: Prefilling) -> None:
        """Let the sequences of a computed prompt join the batch."""
        request = prompt.request
        if request.prefilled is None:
            request.prefilled = time.monotonic()
            if request.job.request.echo or request.scores_prompt:
                self._tell(request, [PromptEcho(request.job.prompt_text, tuple(prompt.scores))])
            if prompt.scoring is not None:
                self._tell(request, [Scored(prompt.scoring.logprobs)])
        started = self._scheduler.start(prompt)
        for running in started:
            running.sequence.stage = running
        if request.media is not None and all(isinstance(each.stage, Running) for each in request.sequences):
            request.media.release()
        assert prompt.cache is not None
        assert prompt.logits is not None
        if request.job.max_tokens == 0:  # the client asked for the prompt only
            for running in started:
                self._finish(running.sequence)
            self._prefill.discard(prompt)
            return
        limit = self._scheduler.for_running()
        for running in started:
            slot = prompt.slot or self._batch.groups.reserve(self._scheduler.slot_request(running), limit)
            self._batch.join(running, slot, prompt.cache, prompt.logits)
            for each in self._batch.followers:
                each.started(running, prompt)
        self._prefill.discard(prompt, joined=True)

    # In the batch

    def accept(self, running: Running, sampled: SampledToken) -> None:
        """Take a token that was drawn for the sequence, turn it into text, and end the sequence if it was the last."""
        sequence = running.sequence
        request = sequence.request
        if request.first_token is None:
            request.first_token = time.monotonic()
        sequence.tokens.append(sampled.token)
        self._scheduler.grew(running)
        self.completion_tokens += 1
        try:
            events = sequence.decoder.accept(sampled.token, sampled.logprob, sampled.top)
        except ServerError as error:
            self.fail(request, error.report)
            return
        sequence.unsent.extend(events)
        if sequence.decoder.finished is not None:
            self._remember(running)
            self._leave([running])
            self._finish(sequence)
            return
        sequence.unsent_tokens += 1
        if sequence.unsent_tokens >= self.stream_interval:
            self._tell(request, sequence.unsent)
            sequence.unsent, sequence.unsent_tokens = [], 0

    def _tell(self, request: Request, events: Iterable[Event]) -> None:
        self.events += [(request.job.id, event) for event in events]

    # Ends

    def cancel(self, id: str) -> None:
        """Drop a request and its unsent events. An unknown id is ignored."""
        request = self._live.pop(id, None)
        if request is None:
            return
        # Sequences of one prompt share their stage.
        stages = list(dict.fromkeys(each.stage for each in request.sequences if each.stage is not None))
        for stage in stages:
            self._scheduler.drop(stage)
            if isinstance(stage, Prefilling):
                self._prefill.discard(stage)
        running = [stage for stage in stages if isinstance(stage, Running)]
        for each in running:  # whoever gave up goes on from what there is
            self._remember(each)
        self._leave(running)
        _move(request.sequences, None)
        self.events = [(owner, event) for owner, event in self.events if owner != id]

    def expire(self, now: float, patience: float | None) -> None:
        """End requests that exceed their own timeout, and those that have waited in the queue for longer than
        `patience` seconds."""
        for request in self.live:
            if request.admitted is not None and request.job.request.timeout is None:
                continue  # as nearly all in nearly all steps
            if (report := request.overdue(now, patience)) is not None:
                self.fail(request, report)

    def fail(self, request: Request, report: ErrorReport) -> None:
        self.cancel(request.job.id)
        self._tell(request, [Failed(report)])

    def _leave(self, gone: list[Running]) -> None:
        """Take sequences out of the batch, whether they have ended or not."""
        self._batch.leave(gone)
        for running in gone:
            self._prefixes.settle(running.sequence.state_node)
            for told in self.on_leave:
                told(running.sequence)

    def _finish(self, sequence: Sequence) -> None:
        """End a sequence that has left the batch, and its request if it was the last one."""
        request, decoder = sequence.request, sequence.decoder
        assert sequence.stage is not None
        self._scheduler.drop(sequence.stage)
        request.sequences.remove(sequence)
        sequence.stage = None
        self.forced_tokens += decoder.forced_tokens
        # Closing may find that the answer was a tool call.
        closing = decoder.close(decoder.finished or "stop")
        self._tell(request, [*sequence.unsent, *closing, sequence.finished(decoder.finished or "stop")])
        if not request.sequences:
            del self._live[request.job.id]

    def _cut(self, sequence: Sequence) -> None:
        """End a sequence for which there is no memory, as if it had reached the end of the model's context."""
        sequence.decoder.finished = "length"
        match sequence.stage:
            case Running() as running:
                self._leave([running])
            case Prefilling() as prompt:
                self._prefill.discard(prompt)
        self._finish(sequence)

    # Where memory or places are short

    def preempt(self) -> None:
        """Send sequences back to the queue while the running ones outgrow the memory, or hold another's place."""
        while (victim := self._scheduler.victim()) is not None:
            match victim:
                case Prefilling():  # to be computed anew
                    self._prefill.discard(victim)
                    self._requeue(victim, Waiting(**victim.given()))
                case Running() if self._scheduler.fits_alone(victim.length):
                    self.suspend(victim)
                case Running():
                    self._cut(victim.sequence)

    def suspend(self, running: Running) -> None:
        """Preempt a sequence: its tokens become a prompt, most of which the prefix cache keeps, and it resumes."""
        sequence = running.sequence
        self._remember(running)
        self._leave([running])
        waiting = Waiting(
            sequences=(sequence,),
            tokens=tuple(sequence.tokens),
            growth=running.growth,
            priority=running.priority,
            arrival=running.arrival,
            account=running.account,
        )
        self._requeue(running, waiting)

    def _requeue(self, stage: Prefilling | Running, waiting: Waiting) -> None:
        self._scheduler.drop(stage)
        self._scheduler.requeue(waiting)
        _move(waiting.sequences, waiting)
        self.preemptions += 1

    def resize(self, memory: int) -> None:
        """Set the bytes that sequences and prompts may take from now on."""
        self._scheduler.limits.memory = memory
        for prompt in self._scheduler.hopeless():
            self._give_up(prompt)
        self.preempt()
        self._batch.fit(self._scheduler.for_running())

    def _give_up(self, prompt: Waiting | Prefilling) -> None:
        """End a prompt that no longer fits: with the answer so far if it has run before, else with a refusal."""
        request = prompt.request
        if request.prefilled is not None:  # then it is a single preempted sequence
            self._cut(prompt.sequences[0])
            return
        left = self._scheduler.limits.memory / 2**20
        message = (
            f"The prompt of {prompt.length} tokens needs more KV cache than the {left:.1f} MiB that are left "
            "beside other models: try again later."
        )
        self.fail(request, ErrorReport(kind="overloaded", message=message, retry_after=10.0))

    # What the prefix cache remembers

    def _remember(self, running: Running) -> None:
        """Note a sequence that is about to leave, for conversations that continue from its end. `keep_left` copies it
        later, so that its client need not wait for the copy."""
        sequence, slot = running.sequence, running.slot
        length = min(slot.length, len(sequence.tokens))
        stop = self._prefixes.block_end(length)
        earliest = 0  # from where its cache can be restored
        if self._prefixes.has_state:
            earliest = length  # state exists for the very end only
        elif self._prefixes.has_snapshots:
            earliest = running.joined  # a sliding window came with what it needs to resume from there
        if stop and earliest <= stop:
            job = sequence.request.job
            self._left.append((job.key, identity_of(job, sequence.tokens[:stop]), slot.view(stop)))

    def keep_left(self) -> None:
        """Copy sequences that have left the batch into the prefix cache."""
        left, self._left = self._left, []
        for key, tokens, cache in left:
            self._prefixes.keep(key, tokens, cache)

    def keep_states(self) -> None:
        """Keep recurrent state, which cannot be rewound, whenever a sequence passes the end of a block."""
        if not self._prefixes.has_state:
            return
        size = self._prefixes.state_tokens
        for running in self._batch.running:
            sequence, length = running.sequence, running.slot.length
            if length % size == 0 and length <= len(sequence.tokens):
                job = sequence.request.job
                sequence.state_node = self._prefixes.keep_state(
                    job.key,
                    identity_of(job, sequence.tokens[:length]),
                    running.slot.view(length),
                    sequence.state_node,
                )


def _move(sequences: Iterable[Sequence], stage: Waiting | Prefilling | None) -> None:
    """Set the stage that these sequences share now."""
    for sequence in sequences:
        sequence.stage = stage
