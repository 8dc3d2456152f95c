"""A request, its sequences, and the stages of a sequence as types.

    submit -> Waiting -> Prefilling -> Running -> the event `Finished`
                 ^                        |
                 +------- preempted ------+

The sequences of a new request share one prompt, so they wait and are prefilled together; each runs by itself. A stage
that ends is dropped with all that it held, and a new one is made. Every field that changes has one writer, which is
named above it.
"""

import time
from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import mlx.core as mx

from pippin.core.errors import ErrorReport
from pippin.core.events import Event, Finished, FinishReason, Timings, Token, Usage
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.kv_cache.kinds.base import PromptCache, Slot
from pippin.engines.language.prefix_cache.cache import DiskRead, Node
from pippin.engines.language.step.branches import Scoring
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.vision.encoder import MediaInputs


@dataclass(eq=False, kw_only=True)
class Request:
    """A client's request. Its choices are sequences that begin with the same prompt."""

    job: LanguageJob
    adapter: int = 0  # index among the model's adapters, 0 for none
    media: MediaInputs | None = None

    # Written by the lifecycle; times are monotonic seconds.
    sequences: list["Sequence"] = field(default_factory=list)  # those that have not ended
    admitted: float | None = None
    prefilled: float | None = None  # when the prompt was computed for the first time
    first_token: float | None = None

    # Written by the prefill, until the prompt is computed for the first time.
    cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    stored_tokens: int = 0  # prompt tokens that are new in the prefix cache

    @property
    def shift(self) -> int:
        """The rotary positions of generated tokens less their places in the sequence."""
        return self.media.positions.shift if self.media else 0

    @property
    def scores_prompt(self) -> bool:
        """Whether the client asked for logprobs of the prompt's own tokens."""
        request = self.job.request
        return request.prompt_logprobs is not None or (request.echo and request.logprobs is not None)

    def overdue(self, now: float, patience: float | None) -> ErrorReport | None:
        """Why the request ends now if it exceeds its own timeout, or has waited in the queue for longer than `patience`
        seconds."""
        waited, limit = now - self.job.created, self.job.request.timeout
        if limit is not None and waited > limit:
            message = f"The request took longer than its timeout of {limit:g} seconds."
            return ErrorReport(kind="timeout", message=message, param="timeout")
        if patience is not None and self.admitted is None and waited > patience:
            message = f"The request waited longer than {patience:g} seconds in the queue: try again later."
            return ErrorReport(kind="overloaded", message=message, retry_after=1.0)
        return None

    def chunk_end(self, position: int, least: int = 0) -> int:
        """Where a chunk of the prompt that should end at `position` ends instead: media tokens that attend to each
        other stay in one chunk, which ends after `least`."""
        return position if self.media is None else self.media.chunk_end(position, least)

    def block_end(self, position: int, size: int) -> int:
        """The last multiple of `size` up to `position` at which a chunk of the prompt can end."""
        end = position // size * size
        while (free := self.chunk_end(end)) < end:
            end = free // size * size
        return end


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One generation of one choice. The object stays the same from submission to end."""

    request: Request
    choice: int
    decoder: SequenceDecoder

    # Written by the lifecycle.
    tokens: list[int]  # prompt and generated tokens; the last may not be in the KV cache yet
    stage: "Waiting | Prefilling | Running | None" = None  # None once it has ended
    unsent: list[Event] = field(default_factory=list)  # events held back to be sent with later ones
    unsent_tokens: int = 0
    state_node: Node | None = None  # the prefix cache's node with its newest recurrent state
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def foreseen(self) -> bool:
        """Whether something is known of the answer: a prediction, or the form that a grammar gives it."""
        job = self.request.job
        return bool(job.prediction) or job.grammar is not None

    def finished(self, reason: FinishReason) -> Finished:
        """The event that ends the sequence."""
        now = time.monotonic()
        request, decoder = self.request, self.decoder
        admitted = request.admitted if request.admitted is not None else now
        prefilled = request.prefilled if request.prefilled is not None else now
        return Finished(
            self.choice,
            reason,
            decoder.stop_sequence,
            Usage(
                prompt_tokens=request.job.accepted.prompt_tokens,
                cached_tokens=request.cached_tokens,
                stored_tokens=request.stored_tokens,
                completion_tokens=decoder.completion_tokens,
                reasoning_tokens=decoder.reasoning_tokens,
                draft_tokens=self.draft_tokens,
                accepted_tokens=self.accepted_tokens,
                forced_tokens=decoder.forced_tokens,
            ),
            Timings(
                queue=(admitted - request.job.created) * 1e3,
                prefill=(prefilled - admitted) * 1e3,
                decode=(now - prefilled) * 1e3,
            ),
            decoder.warnings,
        )


@dataclass(eq=False, kw_only=True)
class Prompt:
    """What sequences begin with: that of a new request with all its choices, or of one preempted sequence. Its fields
    never change."""

    sequences: tuple[Sequence, ...]
    tokens: tuple[int, ...]
    growth: int  # tokens that each sequence may still generate
    priority: int
    arrival: int  # counts submissions; unchanged by a preemption
    account: str = ""
    branched: int = 0  # tokens of the prompt's branches
    rows: int = 0  # in which these are computed

    @property
    def request(self) -> Request:
        return self.sequences[0].request

    @property
    def count(self) -> int:
        return max(len(self.sequences), self.rows)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @cached_property
    def identity(self) -> tuple[int, ...]:
        """The tokens as the prefix cache knows them: those of media by their content."""
        return identity_of(self.request.job, self.tokens)

    def given(self) -> dict[str, Any]:
        """What a prompt keeps in all stages."""
        return {each.name: getattr(self, each.name) for each in fields(Prompt)}


class Waiting(Prompt):
    """A prompt in the queue."""


@dataclass(eq=False)
class RestingChunk:
    """The next `counts` tokens of some prompts, whose pass rests between steps."""

    prompts: "list[Prefilling]"
    counts: list[int]
    parts: Iterator[mx.array | None]  # None after each part of the pass, then the logits
    done: int = 0  # parts
    seconds: float = 0.0  # that these have taken


@dataclass(eq=False, kw_only=True)
class Prefilling(Prompt):
    """A prompt that is being computed, a chunk at a time."""

    # Written by the scheduler.
    length_class: int  # of its sequences when they run
    computed: int = 0  # prompt tokens in its cache
    passed: int = 0  # prompt tokens that were computed for others since it was admitted
    paused: bool = False  # it must wait for another prompt, or for the disk
    in_slot: bool = False  # it is computed in the slot where its sequence will run

    # Written by the prefill.
    cache: PromptCache | None = None  # None until its first chunk is due
    chunk: "RestingChunk | None" = None  # under way, which rests between steps
    slot: Slot | None = None  # the slot that holds `cache`
    asked_disk: bool = False
    disk_read: DiskRead | None = None  # the read under way
    chunk_ends: set[int] = field(default_factory=set)  # positions at which a chunk must end
    spare_ends: set[int] = field(default_factory=set)  # those whose states nobody is known to want
    logits: mx.array | None = None  # [1, vocabulary], after its last token
    scores: list[Token] = field(default_factory=list)  # the prompt's own tokens with logprobs, if asked for
    scoring: Scoring | None = None  # of its branches; None until the prompt is computed

    @property
    def remaining(self) -> int:
        return self.length - self.computed

    @property
    def left(self) -> int:
        """Tokens still to be computed, those of branches among them."""
        if self.scoring is not None:
            return self.scoring.left
        return self.remaining + self.branched


@dataclass(eq=False, kw_only=True)
class Running:
    """A sequence in the batch: each step gives it a token, or several if proposals are accepted."""

    sequence: Sequence
    priority: int
    arrival: int
    account: str

    # Written by the scheduler.
    length: int  # tokens, generated ones included
    growth: int  # tokens that may still be generated
    length_class: int  # decides which sequences share its arrays; never falls

    # Written by the batch.
    slot: Slot = field(init=False, repr=False)  # where its cache lies, set when it joins
    joined: int = 0  # tokens in its cache when it began to run
    next_token: int | None = None  # its next input, if the sampler's last draw does not hold it
    source: int = -1  # index of its next input in the last draw

    count: ClassVar[int] = 1  # sequences, as in the other stages


def identity_of(job: LanguageJob, tokens: abc.Sequence[int]) -> tuple[int, ...]:
    """Tokens as the prefix cache knows them: those of media by their content."""
    return tuple(tokens) if job.media is None else job.media.identify(tokens)
