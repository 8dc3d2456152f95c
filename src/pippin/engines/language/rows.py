"""What the engine knows of a running request: its prompts, and the rows that they become."""

import time
from dataclasses import dataclass, field

import msgspec

from pippin.core.events import (
    Event,
    Finished,
    FinishReason,
    PartDelta,
    PartEnded,
    PartStarted,
    Timings,
    Token,
    Usage,
)
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.row_caches import RowCache
from pippin.engines.language.row_decoder import RowDecoder
from pippin.engines.language.scheduler import Ticket


@dataclass(eq=False, kw_only=True)
class Row:
    """One choice. `tokens` is its prompt and all that was generated; the last one may not be in the cache yet."""

    request: "Request"
    choice: int
    decoder: RowDecoder
    tokens: list[int]
    ticket: Ticket
    group: int = 0  # index of the row group
    slot: int = -1
    fresh: int | None = None  # the next input, where it does not come from the sampler
    source: int = -1  # index of the next input in what was sampled last
    held: list[Event] = field(default_factory=list)  # events to send with the next ones
    held_tokens: int = 0
    started: float = 0.0  # when its decoding began, monotonic
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.job.prompt)

    @property
    def wanted(self) -> int | None:
        """Alternatives to report beside each token, None for no logprobs at all."""
        job = self.request.job
        if job.request.logprobs is None and self.request.ranked:
            return 0
        return job.request.logprobs


@dataclass(eq=False, kw_only=True)
class Prompt:
    """Tokens to compute for one or more rows: all choices of a new request, or one preempted row."""

    request: "Request"
    rows: list[Row]
    tokens: tuple[int, ...]  # without the last, which is the first input of decoding
    ticket: Ticket
    cache: RowCache | None = None
    scores: list[Token] = field(default_factory=list)  # of the prompt's own tokens, where asked for


@dataclass(eq=False, kw_only=True)
class Request:
    job: LanguageJob
    rows: list[Row] = field(default_factory=list)  # unfinished ones
    prompts: list[Prompt] = field(default_factory=list)  # waiting or in prefill
    ended: list[tuple[float, list[Event]]] = field(
        default_factory=list
    )  # with best_of: mean logprob, all events
    admitted: float | None = None
    computed: float | None = None  # when the prompt was done
    first_token: float | None = None
    cached: int = 0  # prompt tokens from the prefix cache
    stored: int = 0  # prompt tokens written to it
    completed: int = 0

    @property
    def ranked(self) -> bool:
        """More choices run than are wanted: the best are told when all have ended."""
        return self.job.choices > self.job.request.n

    @property
    def scores_prompt(self) -> bool:
        request = self.job.request
        return request.prompt_logprobs is not None or (request.echo and request.logprobs is not None)

    def deliver(self, row: Row, events: list[Event], *, finished: bool = False) -> list[Event]:
        """What of a row's events may be sent now."""
        row.held.extend(events)
        if not self.ranked:
            sent, row.held = row.held, []
            return sent
        if not finished:
            return []
        decoder = row.decoder
        self.ended.append((decoder.logprob_sum / max(decoder.completion_tokens, 1), row.held))
        if len(self.ended) < self.job.choices:
            return []
        best = sorted(self.ended, key=lambda each: -each[0])[: self.job.request.n]
        quiet = self.job.request.logprobs is None
        return [_renumbered(event, place, quiet) for place, (_, held) in enumerate(best) for event in held]

    def finish(self, row: Row, reason: FinishReason) -> Finished:
        now = time.monotonic()
        job, decoder = self.job, row.decoder
        admitted = self.admitted if self.admitted is not None else now
        computed = self.computed if self.computed is not None else now
        return Finished(
            row.choice,
            reason,
            decoder.stop_sequence,
            Usage(
                prompt_tokens=job.accepted.prompt_tokens,
                cached_tokens=self.cached,
                stored_tokens=self.stored,
                completion_tokens=decoder.completion_tokens,
                reasoning_tokens=decoder.reasoning_tokens,
                draft_tokens=row.draft_tokens,
                accepted_tokens=row.accepted_tokens,
            ),
            Timings(
                queue=(admitted - job.created) * 1e3,
                prefill=(computed - admitted) * 1e3,
                decode=(now - computed) * 1e3,
            ),
        )


def _renumbered(event: Event, choice: int, quiet: bool) -> Event:
    match event:
        case PartDelta():
            return msgspec.structs.replace(event, choice=choice, tokens=() if quiet else event.tokens)
        case PartStarted() | PartEnded() | Finished():
            return msgspec.structs.replace(event, choice=choice)
        case _:
            return event
